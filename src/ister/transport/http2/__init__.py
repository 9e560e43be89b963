"""HTTP/2 and gRPC on it, as a server needs them: bytes in, calls out, and back (RFC 9113, gRPC over HTTP/2)."""
