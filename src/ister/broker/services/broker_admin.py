"""danube_admin.BrokerAdmin, ClusterAdmin and SecurityAdmin: this broker, which is all of its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ister.broker.methods import Handlers
from ister.broker.topics import ids
from ister.core.errors import UnsupportedError
from ister.rpc import danube_admin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from ister.broker.topics.broker import Broker

ALONE = "this broker is all of its cluster: there is no other that could take anything over"
NO_NODES = "this broker is all of its cluster: there are no nodes to show, to add or to remove"
NO_ROLES = "this broker keeps no roles and no bindings: whoever reaches its ports may do everything"


def _refuse(why: str) -> Callable[[object, Message], Awaitable[NoReturn]]:
    async def refuse(_: object, __: Message) -> NoReturn:
        raise UnsupportedError(why)

    return refuse


class BrokerAdmin(Handlers):
    """The handlers of danube_admin.BrokerAdmin, and those of ClusterAdmin and SecurityAdmin, which refuse."""

    descriptors = (
        pb.DESCRIPTOR.services_by_name["BrokerAdmin"],
        pb.DESCRIPTOR.services_by_name["ClusterAdmin"],
        pb.DESCRIPTOR.services_by_name["SecurityAdmin"],
    )
    unload_broker = activate_broker = get_cluster_balance = trigger_rebalance = _refuse(ALONE)
    cluster_status = add_node = promote_node = remove_node = _refuse(NO_NODES)
    create_role = get_role = list_roles = delete_role = _refuse(NO_ROLES)
    create_binding = get_binding = list_bindings = list_all_bindings = delete_binding = _refuse(NO_ROLES)

    async def list_brokers(self, _: pb.Empty) -> pb.BrokerListResponse:
        """Return this broker."""
        broker = self._broker
        this = pb.BrokerInfo(
            broker_id=broker_id(broker),
            broker_addr=broker.url,
            broker_role="Cluster_Leader",
            admin_addr=broker.admin_url,
            metrics_addr=broker.metrics_url,
            broker_status="draining" if broker.topics.draining else "active",
        )
        return pb.BrokerListResponse(brokers=[this])

    async def get_leader_broker(self, _: pb.Empty) -> pb.BrokerResponse:
        """Return this broker's id."""
        return pb.BrokerResponse(leader=broker_id(self._broker))

    async def list_namespaces(self, _: pb.Empty) -> pb.NamespaceListResponse:
        """Return every namespace, sorted."""
        return pb.NamespaceListResponse(namespaces=sorted(self._broker.namespaces))


def broker_id(broker: Broker) -> str:
    """Return the id of this broker, the same after a restart."""
    return str(ids.broker_id(broker.settings.cluster_name, broker.url))
