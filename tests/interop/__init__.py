"""The broker as its users have it: in a process of its own, with the official client, and with bare gRPC."""
