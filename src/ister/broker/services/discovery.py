"""danube.Discovery and danube.HealthCheck: topic lookup and health checks of clients."""

from __future__ import annotations

from danube.proto import DanubeApi_pb2 as pb

from ister.broker.methods import Handlers
from ister.core.errors import InvalidRequestError
from ister.core.names import TopicName


class Discovery(Handlers):
    """The handlers of danube.Discovery and danube.HealthCheck."""

    descriptors = (pb.DESCRIPTOR.services_by_name["Discovery"], pb.DESCRIPTOR.services_by_name["HealthCheck"])

    async def topic_lookup(self, request: pb.TopicLookupRequest) -> pb.TopicLookupResponse:
        """Return the address of this broker, which hosts every topic."""
        self._broker.topics.find(request.topic)
        broker = self._broker
        connect_url = broker.settings.connect_url or broker.url
        return pb.TopicLookupResponse(
            request_id=request.request_id,
            response_type=pb.TopicLookupResponse.LookupType.Connect,
            connect_url=connect_url,
            broker_url=broker.url,
            proxy=connect_url != broker.url,
        )

    async def topic_partitions(self, request: pb.TopicLookupRequest) -> pb.TopicPartitionsResponse:
        """Return a topic, or its partitions in order, or nothing."""
        partitions = self._broker.topics.partitions(TopicName.parse(request.topic))
        return pb.TopicPartitionsResponse(request_id=request.request_id, partitions=partitions)

    async def health_check(self, request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        """Return OK if a client is known; otherwise it has to register again."""
        broker = self._broker
        match request.client:
            case pb.HealthCheckRequest.ClientType.Producer:
                refused = broker.topics.draining or broker.factory.read_only
                known = not refused and broker.topics.refresh_producer(request.id)
            case pb.HealthCheckRequest.ClientType.Consumer:
                known = broker.subscriptions.refresh_consumer(request.id)
            case other:
                raise InvalidRequestError(f"client {other} is neither Producer (0) nor Consumer (1)")
        status = pb.HealthCheckResponse.ClientStatus.OK if known else pb.HealthCheckResponse.ClientStatus.CLOSE
        return pb.HealthCheckResponse(status=status)
