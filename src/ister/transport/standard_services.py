"""The standard health service (grpc.health.v1) and reflection service (grpc.reflection.v1alpha)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpc_health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from ister.core.errors import NotFoundError
from ister.transport.service import BidirectionalStream, ServerStream, Service, Unary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


class Health:
    """Reports SERVING for every service, and for the server as a whole (the empty name), until `drain`."""

    def __init__(self, services: Iterable[str]) -> None:
        self._names = frozenset({"", *services})
        self._status = HealthCheckResponse.SERVING
        self._changed = asyncio.Event()

    @property
    def service(self) -> Service:
        """The service's description."""
        return Service(
            "grpc.health.v1.Health",
            (
                Unary("Check", self.check, HealthCheckRequest, HealthCheckResponse),
                Unary("List", self.list_all, HealthListRequest, HealthListResponse),
                ServerStream("Watch", self.watch, HealthCheckRequest, HealthCheckResponse),
            ),
        )

    def drain(self) -> None:
        """Report NOT_SERVING from now on."""
        self._status = HealthCheckResponse.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Return the status of one service."""
        if request.service not in self._names:
            raise NotFoundError(f"there is no service {request.service[:80]!r} here")
        return HealthCheckResponse(status=self._status)

    async def list_all(self, _: HealthListRequest) -> HealthListResponse:
        """Return the status of every service."""
        return HealthListResponse(statuses={name: HealthCheckResponse(status=self._status) for name in self._names})

    async def watch(self, request: HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
        """Yield the status of one service, now and after each change; SERVICE_UNKNOWN for an unknown one."""
        while True:
            changed = self._changed
            known = request.service in self._names
            yield HealthCheckResponse(status=self._status if known else HealthCheckResponse.SERVICE_UNKNOWN)
            await changed.wait()


def reflection(services: Iterable[str]) -> Service:
    """Return the service that describes these services and itself."""
    known = ReflectionServicer((*services, SERVICE_NAME))

    async def describe(request: ServerReflectionRequest) -> ServerReflectionResponse:
        answer: ServerReflectionResponse = next(iter(known.ServerReflectionInfo(iter((request,)), None)))
        return answer

    method = BidirectionalStream("ServerReflectionInfo", describe, ServerReflectionRequest, ServerReflectionResponse)
    return Service(SERVICE_NAME, (method,))
