"""danube_admin.BrokerAdmin, ClusterAdmin and SecurityAdmin: this broker, which is all of its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ister.broker import ids
from ister.broker.service import Service, Unary
from ister.core.errors import UnsupportedError
from ister.rpc import danube_admin_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ister.broker.broker import Broker
    from ister.broker.service import UnaryHandler

ALONE = "this broker is all of its cluster: there is no other that could take anything over"
NO_NODES = "this broker is all of its cluster: there are no nodes to show, to add or to remove"
NO_ROLES = "this broker keeps no roles and no bindings: whoever reaches its ports may do everything"


class AdminBrokers:
    """The handlers of danube_admin.BrokerAdmin, ClusterAdmin and SecurityAdmin."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def services(self) -> tuple[Service, ...]:
        """Describe all three services."""
        return self._brokers(), _cluster(), _security()

    def _brokers(self) -> Service:
        alone = _refuse(ALONE)
        return Service(
            "danube_admin.BrokerAdmin",
            (
                Unary("ListBrokers", self.list_brokers, pb.Empty, pb.BrokerListResponse),
                Unary("GetLeaderBroker", self.get_leader_broker, pb.Empty, pb.BrokerResponse),
                Unary("ListNamespaces", self.list_namespaces, pb.Empty, pb.NamespaceListResponse),
                Unary("UnloadBroker", alone, pb.UnloadBrokerRequest, pb.UnloadBrokerResponse),
                Unary("ActivateBroker", alone, pb.ActivateBrokerRequest, pb.ActivateBrokerResponse),
                Unary("GetClusterBalance", alone, pb.ClusterBalanceRequest, pb.ClusterBalanceResponse),
                Unary("TriggerRebalance", alone, pb.RebalanceRequest, pb.RebalanceResponse),
            ),
        )

    async def list_brokers(self, _: pb.Empty) -> pb.BrokerListResponse:
        """Return this broker."""
        broker = self._broker
        this = pb.BrokerInfo(
            broker_id=broker_id(broker),
            broker_addr=broker.url,
            broker_role="Cluster_Leader",
            admin_addr=broker.admin_url,
            metrics_addr=broker.metrics_url,
            broker_status="draining" if broker.draining else "active",
        )
        return pb.BrokerListResponse(brokers=[this])

    async def get_leader_broker(self, _: pb.Empty) -> pb.BrokerResponse:
        """Return this broker's id."""
        return pb.BrokerResponse(leader=broker_id(self._broker))

    async def list_namespaces(self, _: pb.Empty) -> pb.NamespaceListResponse:
        """Return every namespace, sorted."""
        return pb.NamespaceListResponse(namespaces=sorted(self._broker.namespaces))


def _cluster() -> Service:
    no_nodes = _refuse(NO_NODES)
    return Service(
        "danube_admin.ClusterAdmin",
        (
            Unary("ClusterStatus", no_nodes, pb.Empty, pb.ClusterStatusResponse),
            Unary("AddNode", no_nodes, pb.AddNodeRequest, pb.AddNodeResponse),
            Unary("PromoteNode", no_nodes, pb.PromoteNodeRequest, pb.PromoteNodeResponse),
            Unary("RemoveNode", no_nodes, pb.RemoveNodeRequest, pb.RemoveNodeResponse),
        ),
    )


def _security() -> Service:
    no_roles = _refuse(NO_ROLES)
    return Service(
        "danube_admin.SecurityAdmin",
        (
            Unary("CreateRole", no_roles, pb.CreateRoleRequest, pb.CreateRoleResponse),
            Unary("GetRole", no_roles, pb.GetRoleRequest, pb.GetRoleResponse),
            Unary("ListRoles", no_roles, pb.Empty, pb.ListRolesResponse),
            Unary("DeleteRole", no_roles, pb.DeleteRoleRequest, pb.DeleteRoleResponse),
            Unary("CreateBinding", no_roles, pb.CreateBindingRequest, pb.CreateBindingResponse),
            Unary("GetBinding", no_roles, pb.GetBindingRequest, pb.GetBindingResponse),
            Unary("ListBindings", no_roles, pb.ListBindingsRequest, pb.ListBindingsResponse),
            Unary("ListAllBindings", no_roles, pb.Empty, pb.ListBindingsResponse),
            Unary("DeleteBinding", no_roles, pb.DeleteBindingRequest, pb.DeleteBindingResponse),
        ),
    )


def broker_id(broker: Broker) -> str:
    """Return the number by which administration knows this broker, the same after a restart."""
    return str(ids.broker_id(broker.settings.cluster_name, broker.url))


def _refuse(why: str) -> UnaryHandler:
    async def refuse(_: Message) -> NoReturn:
        raise UnsupportedError(why)

    return refuse
