"""The admin plane by bare gRPC, with messages built from the specification; health and reflection; storage."""

import json
import subprocess
from pathlib import Path

import grpc
import pytest
from danube import SchemaType
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from interop.official import numbered
from interop.raw import EXCLUSIVE, once_allowed, refused

DATA_SERVICES = {
    "danube.ProducerService",
    "danube.ConsumerService",
    "danube.Discovery",
    "danube.HealthCheck",
    "danube.StorageService",
    "danube_schema.SchemaRegistry",
    "ister.v1.Storage",
}
ADMIN_SERVICES = {
    "danube_admin.TopicAdmin",
    "danube_admin.NamespaceAdmin",
    "danube_admin.BrokerAdmin",
    "danube_admin.ClusterAdmin",
    "danube_admin.SecurityAdmin",
    "danube_schema.SchemaRegistry",
    "ister.v1.Admin",
}


async def test_a_topic_is_made_listed_described_and_deleted(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await refused(grpc.StatusCode.ALREADY_EXISTS, raw.ask("CreateTopic", name=topic, dispatch_strategy=1))
        for sub in ("b", "a"):
            await raw.subscribe(topic, sub)
        found = await raw.ask("DescribeTopic", name=topic)
        assert (found.name, found.delivery, sorted(found.subscriptions)) == (topic, "Reliable", ["a", "b"])
        assert not found.HasField("schema_subject")
        (info,) = [t for t in (await raw.ask("ListNamespaceTopics", name="default")).topics if t.name == topic]
        assert (info.delivery, info.broker_id) == ("Reliable", found.broker_id)
        assert topic in [t.name for t in (await raw.ask("ListBrokerTopics", broker_id=info.broker_id)).topics]
        assert topic in (await raw.ask("GetNamespaceTopics", name="default")).topics
        assert (await raw.ask("DeleteTopic", name=topic)).success
        for call in ("DescribeTopic", "DeleteTopic", "ListSubscriptions"):
            await refused(grpc.StatusCode.NOT_FOUND, raw.ask(call, name=topic))


async def test_a_topic_made_with_a_subject_is_bound_to_it(broker, topics):
    bound, unbound = topics(2)
    subject = bound.rpartition("/")[2]
    async with broker.raw() as raw, broker.client() as client:
        number = (
            await client.schema()
            .register_schema(subject)
            .with_type(SchemaType.STRING)
            .with_schema_data(b"string")
            .execute()
        )
        assert (await raw.ask("CreateTopic", name=bound, schema_subject=subject, dispatch_strategy=1)).success
        found = await raw.ask("DescribeTopic", name=bound)
        assert (found.schema_subject, found.schema_id, found.schema_version) == (subject, number, 1)
        with pytest.raises(grpc.aio.AioRpcError):
            await raw.ask("CreateTopic", name=unbound, schema_subject="no-such-subject", dispatch_strategy=1)


async def test_namespaces_are_made_listed_and_deleted_when_empty(broker, topic):
    name = topic.rpartition("/")[2]
    async with broker.raw() as raw:
        assert {"default", "system"} <= {*(await raw.ask("ListNamespaces")).namespaces}
        assert (await raw.ask("CreateNamespace", name=name)).success
        await refused(grpc.StatusCode.ALREADY_EXISTS, raw.ask("CreateNamespace", name=name))
        await raw.create_topic(f"/{name}/t")
        assert [*(await raw.ask("GetNamespaceTopics", name=name)).topics] == [f"/{name}/t"]
        policies = json.loads((await raw.ask("GetNamespacePolicies", name=name)).policies)
        assert policies["max_message_size"] > 0
        with pytest.raises(grpc.aio.AioRpcError):
            await raw.ask("DeleteNamespace", name=name)
        await raw.ask("DeleteTopic", name=f"/{name}/t")
        assert (await raw.ask("DeleteNamespace", name=name)).success
        assert name not in (await raw.ask("ListNamespaces")).namespaces
        for bad in ("", "a/b", "..", "ä"):
            await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.ask("CreateNamespace", name=bad))


async def test_brokers_are_listed_and_this_one_leads(broker):
    async with broker.raw() as raw:
        (found,) = (await raw.ask("ListBrokers")).brokers
        assert found.broker_id
        assert str(broker.port) in found.broker_addr
        assert str(broker.admin_port) in found.admin_addr
        assert str(broker.prom_port) in found.metrics_addr
        assert (await raw.ask("GetLeaderBroker")).leader


async def test_a_subscription_is_listed_once_and_removed_when_nobody_is_there(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await raw.set_policy(topic, "sub")
        await raw.set_window(topic, "sub", 3)
        stream = await raw.consume(topic, "sub", "first")
        await raw.subscribe(topic, "sub", "second")
        assert [*(await raw.ask("ListSubscriptions", name=topic)).subscriptions] == ["sub"]
        with pytest.raises(grpc.aio.AioRpcError):
            await raw.ask("Unsubscribe", topic=topic, subscription="sub")
        stream.cancel()
        await once_allowed(grpc.StatusCode.NOT_FOUND, lambda: raw.ask("Unsubscribe", topic=topic, subscription="sub"))
        assert [*(await raw.ask("ListSubscriptions", name=topic)).subscriptions] == []
        await refused(grpc.StatusCode.NOT_FOUND, raw.ask("Unsubscribe", topic=topic, subscription="sub"))


async def test_a_removed_subscription_begins_anew(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        await raw.subscribe(topic, "sub", kind=EXCLUSIVE)
        await raw.send_all(topic, producer, numbered(3))
        await once_allowed(grpc.StatusCode.NOT_FOUND, lambda: raw.ask("Unsubscribe", topic=topic, subscription="sub"))
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        await raw.send(topic, producer, b"new")
        assert (await stream.next()).payload == b"new"
        stream.cancel()


async def test_what_needs_a_cluster_is_not_implemented(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw.ask("UnloadTopic", name=topic)
        assert caught.value.code() in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION}


@pytest.mark.parametrize(("plane", "expected"), [("target", DATA_SERVICES), ("admin_target", ADMIN_SERVICES)])
async def test_health_and_reflection_are_there_on_both_planes(broker, plane, expected):
    target = getattr(broker, plane)
    async with grpc.aio.insecure_channel(target) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(target) as channel:
        assert expected <= {*ProtoReflectionDescriptorDatabase(channel).get_services()}


async def test_metrics_health_and_readiness_are_on_a_port_of_their_own(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, numbered(3))
    assert broker.asks("/healthz") == broker.asks("/readyz") == 200
    assert broker.asks("/nothing") == 404
    assert broker.metrics()[f'danube_wal_append_total{{topic="{topic}"}}'] == 3


async def test_s16_every_port_is_on_loopback_alone(broker):
    """No socket of a broker that was told no host listens on an address that another machine could reach."""
    assert "host" not in (broker.directory / "ister.yml").read_text()
    inodes = set()
    for link in Path(f"/proc/{broker.pid}/fd").iterdir():
        try:
            name = str(link.readlink())
        except FileNotFoundError:
            continue
        if name.startswith("socket:["):
            inodes.add(name[8:-1])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{broker.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].partition(":")[0])
    assert len(listening) == 3
    assert {*listening} <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


async def test_segments_are_listed_from_the_first_on(broker, topic):
    async with broker.raw() as raw:
        assert [*(await raw.ask("ListSegmentDescriptors", topic="/default/nowhere")).segments] == []
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, numbered(10))
        assert (await raw.ask("RequestSync", topic=topic)).synced_offset == 10
        assert (await raw.ask("RequestUpload", topic=topic)).cloud_stop == 10
        segments = [*(await raw.ask("ListSegmentDescriptors", topic=topic)).segments]
        assert segments[0].start_offset == 0
        assert segments[0].size > 0
        last = segments[-1].end_offset
        assert last == 9, "the end is inclusive"
        without_slash = await raw.ask("ListSegmentDescriptors", topic=topic.removeprefix("/"))
        assert without_slash.segments[0].start_offset == 0
        later = await raw.ask("ListSegmentDescriptors", topic=topic, after_offset=last)
        assert all(segment.end_offset > last for segment in later.segments)


def test_a_second_broker_on_the_same_data_or_the_same_port_is_refused(broker):
    same_data = ended(broker.command())
    assert same_data.returncode != 0
    assert "Traceback" not in same_data.stderr
    same_port = ended([*broker.command()[:-1], str(broker.directory / "elsewhere")])
    assert same_port.returncode != 0
    taken = [str(port) for port in (broker.port, broker.admin_port, broker.prom_port) if str(port) in same_port.stderr]
    assert taken, "it says which port is taken"
    assert "Traceback" not in same_port.stderr
    assert broker.is_ready()


def ended(command):
    return subprocess.run(command, capture_output=True, timeout=30, check=False, text=True)
