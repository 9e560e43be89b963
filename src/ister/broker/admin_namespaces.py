"""danube_admin.NamespaceAdmin: namespaces, their topics and their policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.broker.service import Service, Unary
from ister.rpc.danube_admin_pb2 import NamespaceRequest, NamespaceResponse, PolicyResponse, TopicListResponse

if TYPE_CHECKING:
    from ister.broker.broker import Broker


class AdminNamespaces:
    """The handlers of danube_admin.NamespaceAdmin."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def services(self) -> tuple[Service, ...]:
        """Describe the service."""
        methods = (
            Unary("CreateNamespace", self.create_namespace, NamespaceRequest, NamespaceResponse, finishes=True),
            Unary("DeleteNamespace", self.delete_namespace, NamespaceRequest, NamespaceResponse, finishes=True),
            Unary("GetNamespaceTopics", self.get_namespace_topics, NamespaceRequest, TopicListResponse),
            Unary("GetNamespacePolicies", self.get_namespace_policies, NamespaceRequest, PolicyResponse),
        )
        return (Service("danube_admin.NamespaceAdmin", methods),)

    async def create_namespace(self, request: NamespaceRequest) -> NamespaceResponse:
        """Make a namespace."""
        await self._broker.create_namespace(request.name)
        return NamespaceResponse(success=True)

    async def delete_namespace(self, request: NamespaceRequest) -> NamespaceResponse:
        """Delete a namespace that has no topics."""
        await self._broker.delete_namespace(request.name)
        return NamespaceResponse(success=True)

    async def get_namespace_topics(self, request: NamespaceRequest) -> TopicListResponse:
        """Return a namespace's topics, sorted."""
        return TopicListResponse(topics=[topic.text for topic in self._broker.topics_of(request.name)])

    async def get_namespace_policies(self, request: NamespaceRequest) -> PolicyResponse:
        """Return what holds for a namespace's topics unless they say otherwise: an object with every key."""
        return PolicyResponse(policies=self._broker.namespace_policies(request.name).to_json())
