"""danube_admin.NamespaceAdmin: namespaces, their topics and their policies."""

from __future__ import annotations

from ister.broker.methods import Handlers
from ister.rpc import danube_admin_pb2 as pb


class NamespaceAdmin(Handlers):
    """The handlers of danube_admin.NamespaceAdmin."""

    descriptors = (pb.DESCRIPTOR.services_by_name["NamespaceAdmin"],)

    async def create_namespace(self, request: pb.NamespaceRequest) -> pb.NamespaceResponse:
        """Create a namespace."""
        await self._broker.namespaces.create(request.name)
        return pb.NamespaceResponse(success=True)

    async def delete_namespace(self, request: pb.NamespaceRequest) -> pb.NamespaceResponse:
        """Delete a namespace that has no topics."""
        await self._broker.namespaces.delete(request.name)
        return pb.NamespaceResponse(success=True)

    async def get_namespace_topics(self, request: pb.NamespaceRequest) -> pb.TopicListResponse:
        """Return a namespace's topics, sorted."""
        return pb.TopicListResponse(topics=[topic.text for topic in self._broker.namespaces.topics(request.name)])

    async def get_namespace_policies(self, request: pb.NamespaceRequest) -> pb.PolicyResponse:
        """Return the effective policies of a namespace, with every key."""
        return pb.PolicyResponse(policies=self._broker.namespaces.policies(request.name).to_json())
