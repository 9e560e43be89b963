"""danube_admin.NamespaceAdmin, BrokerAdmin, ClusterAdmin and SecurityAdmin."""

import json

import pytest
from grpc import StatusCode

from ister.config.policies import CompletePolicies
from ister.core.errors import MetadataUnavailableError
from ister.ports.metadata import MemoryMetadata
from ister.rpc import danube_admin_pb2 as pb
from parts.admin import AdminWorld, Asker, refused
from parts.cloud import TroubledMetadata, run

BROKERS = "danube_admin.BrokerAdmin"


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_a_namespace_is_made_and_stays_until_it_is_deleted(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker(bootstrap_namespaces=("team",)) as asker:
            listed = (await asker.ask(f"{BROKERS}/ListNamespaces")).namespaces
            assert [*listed] == ["default", "system", "team"]
            assert (await asker.namespace("CreateNamespace", name="a")).success
            with refused(StatusCode.ALREADY_EXISTS):
                await asker.namespace("CreateNamespace", name="a")
        async with world.asker() as asker:
            assert [*(await asker.ask(f"{BROKERS}/ListNamespaces")).namespaces] == ["a", "default", "system", "team"]
            assert (await asker.namespace("DeleteNamespace", name="a")).success
            with refused(StatusCode.NOT_FOUND):
                await asker.namespace("DeleteNamespace", name="a")
        async with world.asker() as asker:
            assert [*(await asker.ask(f"{BROKERS}/ListNamespaces")).namespaces] == ["default", "system", "team"]

    run(story())


def test_only_an_empty_namespace_is_deleted_and_never_those_that_always_exist(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.namespace("CreateNamespace", name="a")
            await asker.topic("CreateTopic", name="/a/t", dispatch_strategy=1)
            assert [*(await asker.namespace("GetNamespaceTopics", name="a")).topics] == ["/a/t"]
            with refused(StatusCode.FAILED_PRECONDITION, "topics"):
                await asker.namespace("DeleteNamespace", name="a")
            await asker.topic("DeleteTopic", name="/a/t")
            assert [*(await asker.namespace("GetNamespaceTopics", name="a")).topics] == []
            await asker.namespace("DeleteNamespace", name="a")
            for name in ("default", "system"):
                with refused(StatusCode.FAILED_PRECONDITION, name):
                    await asker.namespace("DeleteNamespace", name=name)

    run(story())


@pytest.mark.parametrize("name", ["", "a/b", "..", "ä", "a b", "x" * 201, "x" * 1000])
def test_a_malformed_namespace_is_refused_by_every_method(tmp_path, name):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            for method in ("CreateNamespace", "DeleteNamespace", "GetNamespaceTopics", "GetNamespacePolicies"):
                with refused(StatusCode.INVALID_ARGUMENT):
                    await asker.namespace(method, name=name)

    run(story())


def test_a_namespace_that_is_not_there_is_not_found(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            for method in ("DeleteNamespace", "GetNamespaceTopics", "GetNamespacePolicies"):
                with refused(StatusCode.NOT_FOUND, "nowhere"):
                    await asker.namespace(method, name="nowhere")

    run(story())


def test_a_namespaces_policies_are_told_with_every_key(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker(policies=CompletePolicies(max_publish_rate=5)) as asker:
            found = json.loads((await asker.namespace("GetNamespacePolicies", name="default")).policies)
            assert {*found} == {*CompletePolicies.model_fields}
            assert (found["max_publish_rate"], found["max_message_size"]) == (5, 10_485_760)

    run(story())


def test_a_namespace_that_could_not_be_deleted_is_still_there(tmp_path):
    async def story():
        metadata = TroubledMetadata(MemoryMetadata())
        async with AdminWorld(tmp_path, metadata).asker() as asker:
            await asker.namespace("CreateNamespace", name="a")
            metadata.fail["delete"] = [MetadataUnavailableError("m", "delete", "down")]
            with refused(StatusCode.UNAVAILABLE):
                await asker.namespace("DeleteNamespace", name="a")
            assert [*(await asker.namespace("GetNamespaceTopics", name="a")).topics] == []
            await asker.namespace("DeleteNamespace", name="a")

    run(story())


# --- brokers ----------------------------------------------------------------------------------------------------------


def test_this_broker_is_the_only_one_and_leads(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker(broker_url="http://host:6650") as asker:
            asker.broker.set_addresses(asker.broker.url, "http://host:50051", "http://host:9040")
            (this,) = (await asker.ask(f"{BROKERS}/ListBrokers")).brokers
            assert this.broker_addr == "http://host:6650"
            assert (this.admin_addr, this.metrics_addr) == ("http://host:50051", "http://host:9040")
            assert (this.broker_role, this.broker_status) == ("Cluster_Leader", "active")
            assert 0 < int(this.broker_id) < 2**63
            assert (await asker.ask(f"{BROKERS}/GetLeaderBroker")).leader == this.broker_id
            asker.broker.topics.begin_drain()
            (draining,) = (await asker.ask(f"{BROKERS}/ListBrokers")).brokers
            assert draining.broker_status == "draining"
        async with world.asker(broker_url="http://host:6650") as asker:
            assert (await asker.ask(f"{BROKERS}/GetLeaderBroker")).leader == this.broker_id, "the same after a restart"

    run(story())


def test_what_needs_a_cluster_or_roles_is_not_implemented(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            refusing = [
                (f"{service.name}/{method.name}", method)
                for service in asker.services
                for method in service.methods
                if service.name in {"danube_admin.ClusterAdmin", "danube_admin.SecurityAdmin"}
                or method.name in {"UnloadBroker", "ActivateBroker", "GetClusterBalance", "TriggerRebalance"}
            ]
            assert len(refusing) == 4 + 9 + 4
            for path, _ in refusing:
                with refused(StatusCode.UNIMPLEMENTED, "this broker"):
                    await asker.ask(path)

    run(story())


def test_every_method_of_the_admin_protos_is_served_with_its_own_messages(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).broker() as client:
            served = {service.name: service for service in Asker(client).services}
            for described in pb.DESCRIPTOR.services_by_name.values():
                methods = {method.name: method for method in served[described.full_name].methods}
                assert {*methods} == {*described.methods_by_name}
                for name, method in described.methods_by_name.items():
                    assert methods[name].request.DESCRIPTOR is method.input_type
                    assert methods[name].response.DESCRIPTOR is method.output_type

    run(story())
