"""The standard reflection service (grpc.reflection.v1alpha)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc_reflection.v1alpha.reflection import SERVICE_NAME, ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from ister.transport.service import BidirectionalStream, Service

if TYPE_CHECKING:
    from collections.abc import Iterable


def reflection(services: Iterable[str]) -> Service:
    """Return the service that describes these services and itself."""
    known = ReflectionServicer((*services, SERVICE_NAME))

    async def describe(request: ServerReflectionRequest) -> ServerReflectionResponse:
        answer: ServerReflectionResponse = next(iter(known.ServerReflectionInfo(iter((request,)), None)))
        return answer

    method = BidirectionalStream("ServerReflectionInfo", describe, ServerReflectionRequest, ServerReflectionResponse)
    return Service(SERVICE_NAME, (method,))
