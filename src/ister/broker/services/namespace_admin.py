"""danube_admin.NamespaceAdmin: namespaces, their topics and their policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.broker.methods import build_service
from ister.rpc import danube_admin_pb2 as pb
from ister.rpc.danube_admin_pb2 import NamespaceRequest, NamespaceResponse, PolicyResponse, TopicListResponse

if TYPE_CHECKING:
    from ister.broker.topics.broker import Broker
    from ister.transport.service import Service


class NamespaceAdmin:
    """The handlers of danube_admin.NamespaceAdmin."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def services(self) -> tuple[Service, ...]:
        """Describe the service."""
        return (build_service(pb.DESCRIPTOR.services_by_name["NamespaceAdmin"], self),)

    async def create_namespace(self, request: NamespaceRequest) -> NamespaceResponse:
        """Create a namespace."""
        await self._broker.namespaces.create(request.name)
        return NamespaceResponse(success=True)

    async def delete_namespace(self, request: NamespaceRequest) -> NamespaceResponse:
        """Delete a namespace that has no topics."""
        await self._broker.namespaces.delete(request.name)
        return NamespaceResponse(success=True)

    async def get_namespace_topics(self, request: NamespaceRequest) -> TopicListResponse:
        """Return a namespace's topics, sorted."""
        return TopicListResponse(topics=[topic.text for topic in self._broker.namespaces.topics(request.name)])

    async def get_namespace_policies(self, request: NamespaceRequest) -> PolicyResponse:
        """Return the effective policies of a namespace, with every key."""
        return PolicyResponse(policies=self._broker.namespaces.policies(request.name).to_json())
