"""Services from their descriptors: no method starts without a handler and a row of properties."""

import pytest

from ister.broker import methods
from ister.broker.methods import METHODS, Properties, build_service
from ister.rpc import danube_admin_pb2, ister_v1_pb2
from ister.transport.service import Prompt, ServerStream, Unary

CLUSTER = danube_admin_pb2.DESCRIPTOR.services_by_name["ClusterAdmin"]
STORAGE = ister_v1_pb2.DESCRIPTOR.services_by_name["Storage"]


class Handlers:
    def __getattr__(self, name):
        return name


def test_a_method_takes_its_types_from_the_descriptor_and_its_handler_by_name():
    service = build_service(CLUSTER, Handlers())
    assert service.name == "danube_admin.ClusterAdmin"
    assert service.methods[1] == Unary(
        "AddNode", "add_node", danube_admin_pb2.AddNodeRequest, danube_admin_pb2.AddNodeResponse
    )
    assert [one.name for one in service.methods] == [one.name for one in CLUSTER.methods]


def test_the_row_decides_how_a_method_is_run(monkeypatch):
    row = {"danube_admin.ClusterAdmin/AddNode": Properties(prompt=True)}
    row["danube_admin.ClusterAdmin/RemoveNode"] = Properties(finishes=True, large=True)
    monkeypatch.setattr(methods, "METHODS", {**METHODS, **row})
    made = {one.name: one for one in build_service(CLUSTER, Handlers()).methods}
    assert isinstance(made["AddNode"], Prompt)
    assert (made["RemoveNode"].finishes, made["RemoveNode"].large) == (True, True)
    streams = [one.name for one in build_service(STORAGE, Handlers()).methods if isinstance(one, ServerStream)]
    assert streams == ["WatchWakeups"]


def test_a_method_without_a_row_does_not_start(monkeypatch):
    rows = {name: row for name, row in METHODS.items() if not name.endswith("/PromoteNode")}
    monkeypatch.setattr(methods, "METHODS", rows)
    with pytest.raises(LookupError, match=r"danube_admin\.ClusterAdmin/PromoteNode has no row"):
        build_service(CLUSTER, Handlers())


def test_a_method_that_the_descriptor_lacks_needs_a_row_too():
    with pytest.raises(LookupError, match=r"danube_admin\.ClusterAdmin/Other has no row"):
        build_service(CLUSTER, Handlers(), {"Other": (danube_admin_pb2.Empty, danube_admin_pb2.Empty)})


def test_a_method_without_a_handler_does_not_start():
    class Lacking(Handlers):
        promote_node = None

    with pytest.raises(LookupError, match=r"danube_admin\.ClusterAdmin/PromoteNode has no handler"):
        build_service(CLUSTER, Lacking())
