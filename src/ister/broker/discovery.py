"""danube.Discovery and danube.HealthCheck: where a topic is, and whether a client is still known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.proto.DanubeApi_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    TopicLookupRequest,
    TopicLookupResponse,
    TopicPartitionsResponse,
)

from ister.broker.service import Service, Unary
from ister.core.errors import InvalidRequestError
from ister.core.names import TopicName

if TYPE_CHECKING:
    from ister.broker.broker import Broker


class Discovery:
    """The handlers of danube.Discovery and danube.HealthCheck."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def services(self) -> tuple[Service, ...]:
        """Describe both services."""
        lookup = Unary("TopicLookup", self.topic_lookup, TopicLookupRequest, TopicLookupResponse)
        partitions = Unary("TopicPartitions", self.topic_partitions, TopicLookupRequest, TopicPartitionsResponse)
        health = Unary("HealthCheck", self.health_check, HealthCheckRequest, HealthCheckResponse)
        return Service("danube.Discovery", (lookup, partitions)), Service("danube.HealthCheck", (health,))

    async def topic_lookup(self, request: TopicLookupRequest) -> TopicLookupResponse:
        """Tell where a topic is; this broker hosts all that there are."""
        self._broker.topic(request.topic)
        broker = self._broker
        connect_url = broker.settings.connect_url or broker.url
        return TopicLookupResponse(
            request_id=request.request_id,
            response_type=TopicLookupResponse.LookupType.Connect,
            connect_url=connect_url,
            broker_url=broker.url,
            proxy=connect_url != broker.url,
        )

    async def topic_partitions(self, request: TopicLookupRequest) -> TopicPartitionsResponse:
        """Return a topic, or its partitions in their order, or nothing."""
        partitions = self._broker.partitions(TopicName.parse(request.topic))
        return TopicPartitionsResponse(request_id=request.request_id, partitions=partitions)

    async def health_check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Tell a client whether it is still known; one that is not begins anew."""
        broker = self._broker
        match request.client:
            case HealthCheckRequest.ClientType.Producer:
                known = not broker.draining and broker.following is None and broker.sees_producer(request.id)
            case HealthCheckRequest.ClientType.Consumer:
                known = broker.sees_consumer(request.id)
            case other:
                raise InvalidRequestError(f"client {other} is neither Producer (0) nor Consumer (1)")
        status = HealthCheckResponse.ClientStatus.OK if known else HealthCheckResponse.ClientStatus.CLOSE
        return HealthCheckResponse(status=status)
