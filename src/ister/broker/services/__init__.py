"""gRPC services: one handler module a service."""
