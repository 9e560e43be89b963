"""gRPC and HTTP servers on asyncio; they know no service."""
