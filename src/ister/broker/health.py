"""The standard health service: whether the broker serves, as a whole and by service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpc_health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

from ister.broker.service import ServerStream, Service, Unary
from ister.core.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


class Health:
    """Says that every service is serving, until `drain`; the empty name asks for the broker as a whole."""

    def __init__(self, services: Iterable[str]) -> None:
        self._names = frozenset({"", *services})
        self._status = HealthCheckResponse.SERVING
        self._changed = asyncio.Event()

    @property
    def service(self) -> Service:
        """The service to serve beside the others."""
        return Service(
            "grpc.health.v1.Health",
            (
                Unary("Check", self.check, HealthCheckRequest, HealthCheckResponse),
                Unary("List", self.list_all, HealthListRequest, HealthListResponse),
                ServerStream("Watch", self.watch, HealthCheckRequest, HealthCheckResponse),
            ),
        )

    def drain(self) -> None:
        """Say from now on that nothing is serving."""
        self._status = HealthCheckResponse.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Answer for one service, now."""
        if request.service not in self._names:
            raise NotFoundError(f"there is no service {request.service[:80]!r} here")
        return HealthCheckResponse(status=self._status)

    async def list_all(self, _: HealthListRequest) -> HealthListResponse:
        """Answer for every service, now."""
        return HealthListResponse(statuses={name: HealthCheckResponse(status=self._status) for name in self._names})

    async def watch(self, request: HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
        """Answer for one service, now and whenever it changes; of an unknown one the standard wants to hear, too."""
        while True:
            changed = self._changed
            known = request.service in self._names
            yield HealthCheckResponse(status=self._status if known else HealthCheckResponse.SERVICE_UNKNOWN)
            await changed.wait()
