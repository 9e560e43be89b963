"""ister.v1.Storage: what the pipeline is told, what it may ask for, and who is its owner."""

import asyncio
import json
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest
from grpc import StatusCode

from ister.core.errors import MetadataUnavailableError, MetadataUnknownError
from ister.core.frames.columns import decode_messages
from ister.core.names import TopicName
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.rpc import ister_v1_pb2 as pb
from parts.admin import TOKEN, AdminWorld, Asker, refused
from parts.cloud import TroubledMetadata, run

T = "/default/t"
CHILD = {"ister-token": TOKEN}


async def spans(asker, headers=None, **fields):
    return await asker.storage("ListSpans", headers=headers, topic=T, **fields)


def decoded(world, splits):
    """Read every split as a task would; returns the offsets in them."""
    found = []
    for split in splits:
        if split.WhichOneof("place") == "log":
            data = Path(split.log.path).read_bytes()
        else:
            data = (world.directory / "objects" / split.object.key).read_bytes()
            assert len(data) == split.object.size
        held = decode_messages(data[split.start_byte : split.stop_byte], first_offset=split.start_offset)
        assert [m.offset for m in held] == list(range(split.start_offset, split.stop_offset))
        found += [m.offset for m in held]
    assert all(a.stop_offset == b.start_offset for a, b in pairwise(splits))
    return found


# --- what there is ----------------------------------------------------------------------------------------------------


def test_topics_are_told_with_what_a_pipeline_needs(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 3)
            await asker.topic("CreatePartitionedTopic", base_name="/system/p", partitions=1, dispatch_strategy=1)
            await asker.topic("CreateTopic", name="/default/volatile")
            await asker.admin("SetTopicPolicies", topic=T, policies='{"lake": false}')
            plain, volatile, part = (await asker.storage("ListTopics")).topics
            assert [t.name for t in (plain, volatile, part)] == [T, "/default/volatile", "/system/p-part-0"]
            assert (plain.generation, plain.dispatch, plain.level) == (1, pb.DISPATCH_RELIABLE, pb.ACK_LEVEL_WAL)
            assert (plain.offsets.start, plain.offsets.next) == (0, 3)
            assert not plain.offsets.HasField("cloud_stop")
            assert json.loads(plain.policies)["lake"] is False
            assert json.loads(part.policies)["lake"] is True
            assert (volatile.dispatch, volatile.level) == (pb.DISPATCH_NON_RELIABLE, pb.ACK_LEVEL_MEMORY)
            assert not volatile.HasField("offsets")
            assert (part.partition.base, part.partition.number) == ("/system/p", 0)
            (only,) = (await asker.storage("ListTopics", namespace="system")).topics
            assert only.name == part.name
            with refused(StatusCode.NOT_FOUND):
                await asker.storage("ListTopics", namespace="nowhere")
            with refused(StatusCode.INVALID_ARGUMENT):
                await asker.storage("ListTopics", namespace="a/b")

    run(story())


def test_a_schema_is_given_as_it_was_registered(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        first, second = b'{"type": "object"}', b'{"type":   "object", "title": "2"}'
        async with world.asker() as asker:
            number = await asker.register("orders", first, "json_schema")
            assert await asker.register("orders", second, "json_schema") == number
            await asker.topic("CreateTopic", name=T, schema_subject="orders", dispatch_strategy=1)
        async with world.asker() as asker:
            (topic,) = (await asker.storage("ListTopics")).topics
            assert (topic.schema.subject, topic.schema.schema_id, topic.schema.latest_version) == ("orders", number, 2)
            assert (topic.schema.schema_type, topic.schema.validation_policy) == ("json_schema", "warn")
            for version, definition in [(1, first), (2, second), (0, second)]:
                found = await asker.storage("GetSchema", schema_id=number, version=version)
                assert (found.definition, found.version) == (definition, version or 2)
                assert (found.schema_id, found.subject, found.schema_type) == (number, "orders", "json_schema")
                assert found.fingerprint.startswith("sha256:")
            for schema_id, version in [(number, 3), (number + 1, 1), (0, 0), (2**64 - 1, 2**32 - 1)]:
                with refused(StatusCode.NOT_FOUND, "not found"):
                    await asker.storage("GetSchema", schema_id=schema_id, version=version)

    run(story())


# --- where messages lie -----------------------------------------------------------------------------------------------


def test_only_the_brokers_own_child_is_told_of_files(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 10)
            await asker.broker.topics.find(T).storage.flush()
            found = await spans(asker, CHILD)
            assert {split.WhichOneof("place") for split in found.splits} == {"log"}
            assert decoded(world, found.splits) == [*range(10)]
            assert (found.generation, found.stop_offset, found.synced_offset, found.start_offset) == (1, 10, 10, 0)
            found = await spans(asker)
            assert (len(found.splits), found.stop_offset, found.synced_offset) == (0, 0, 10), (
                "nothing is in objects yet"
            )
            await asker.storage("RequestUpload", topic=T)
            found = await spans(asker)
            assert {split.WhichOneof("place") for split in found.splits} == {"object"}
            assert decoded(world, found.splits) == [*range(10)]

    run(story())


@pytest.mark.parametrize("given", ["", "wrong", TOKEN + "x", "ä"])
def test_a_token_that_is_not_the_childs_is_refused(tmp_path, given):
    async def story():
        async with AdminWorld(tmp_path).broker() as client:
            for asker in (Asker(client), Asker(client, token=None)):
                await asker.fill(T, 1)
                with refused(StatusCode.PERMISSION_DENIED, "ister-token"):
                    await spans(asker, {"ister-token": given})

    run(story())


def test_spans_reach_to_what_is_synced_and_go_on_from_there(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 4)
            found = await spans(asker, CHILD)
            assert (len(found.splits), found.stop_offset) == (0, 0), "nothing is synced yet"
            assert (await asker.storage("RequestSync", topic=T)).synced_offset == 4
            await asker.fill(T, 4)
            found = await spans(asker, CHILD)
            assert decoded(world, found.splits) == [0, 1, 2, 3]
            assert (found.stop_offset, found.synced_offset) == (4, 4)
            await asker.storage("RequestSync", topic=T, generation=1)
            found = await spans(asker, CHILD, from_offset=found.stop_offset)
            assert decoded(world, found.splits) == [4, 5, 6, 7]
            found = await spans(asker, CHILD, from_offset=8)
            assert (len(found.splits), found.stop_offset) == (0, 8)

    run(story())


def test_spans_over_objects_and_log_are_bounded_in_size_and_number(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 40, 60_000)
            storage = asker.broker.topics.find(T).storage
            await storage.seal(0)
            await storage.objects.uploader.drain()
            await storage.prune(40)
            await asker.fill(T, 5)
            await storage.flush()
            found = await spans(asker, CHILD, split_bytes=1)
            assert {split.WhichOneof("place") for split in found.splits} == {"log", "object"}
            assert decoded(world, found.splits) == [*range(45)]
            assert len(found.splits) > 15
            (whole, rest) = (await spans(asker, CHILD, split_bytes=2**64 - 1, splits_max=2**32 - 1)).splits
            assert (whole.stop_offset, rest.stop_offset) == (40, 45)
            at, seen = 0, []
            while (found := await spans(asker, CHILD, from_offset=at, split_bytes=1, splits_max=3)).splits:
                assert len(found.splits) <= 3
                assert found.stop_offset == found.splits[-1].stop_offset
                seen += decoded(world, found.splits)
                at = found.stop_offset
            assert seen == [*range(45)]
            assert decoded(world, (await spans(asker, CHILD, from_offset=17)).splits) == [*range(17, 45)]

    run(story())


def test_offsets_that_cannot_be_given_are_refused(tmp_path):
    async def story():
        async with AdminWorld(tmp_path, upload={"enabled": False}).asker() as asker:
            await asker.fill(T, 5)
            storage = asker.broker.topics.find(T).storage
            await storage.seal(0)
            await asker.fill(T, 5)
            await storage.flush()
            await storage.wal.prune(5)
            for offset in (4, 11, 2**64 - 1):
                for headers in (CHILD, None):
                    with refused(StatusCode.OUT_OF_RANGE, "5"):
                        await spans(asker, headers, from_offset=offset)
            assert (await spans(asker, CHILD, from_offset=5)).start_offset == 5

    run(story())


def test_a_topic_of_another_generation_or_without_a_log_is_refused(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            epoch = (await asker.storage("RegisterPipeline", name="p")).epoch
            methods = [("ListSpans", {}), ("RequestSync", {}), ("RequestUpload", {}), ("ReportUpto", {"epoch": epoch})]
            for method, fields in methods:
                with refused(StatusCode.NOT_FOUND):
                    await asker.storage(method, topic=T, generation=1, **fields)
                with refused(StatusCode.INVALID_ARGUMENT):
                    await asker.storage(method, topic="t", generation=1, **fields)
            await asker.fill(T, 1)
            for method, fields in methods:
                with refused(StatusCode.FAILED_PRECONDITION, "generation 1"):
                    await asker.storage(method, topic=T, generation=2, **fields)
                await asker.storage(method, topic=T, generation=1, **fields)
            await asker.topic("DeleteTopic", name=T)
            await asker.topic("CreateTopic", name=T)
            for method, fields in methods:
                with refused(StatusCode.FAILED_PRECONDITION, "not reliable"):
                    await asker.storage(method, topic=T, generation=1, **fields)

    run(story())


# --- what is to be done -----------------------------------------------------------------------------------------------


def test_an_upload_on_request_carries_what_is_synced(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 3)
            await asker.storage("RequestSync", topic=T)
            assert (await asker.storage("RequestUpload", topic=T)).cloud_stop == 3
            assert (await asker.storage("RequestUpload", topic=T)).cloud_stop == 3

    run(story())


def test_without_an_uploader_there_is_no_upload(tmp_path):
    async def story():
        async with AdminWorld(tmp_path, upload={"enabled": False}).asker() as asker:
            await asker.fill(T, 3)
            with refused(StatusCode.FAILED_PRECONDITION, "uploader"):
                await asker.storage("RequestUpload", topic=T)

    run(story())


# --- pipelines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_every_registration_gets_a_higher_epoch_for_ever(tmp_path, kind):
    async def story():
        metadata = MemoryMetadata() if kind == "memory" else await SqliteMetadata.open(tmp_path / "metadata.db")
        world = AdminWorld(tmp_path, metadata)
        epochs = []
        for _ in range(3):
            async with world.asker() as asker:
                together = (asker.storage("RegisterPipeline", name=f"p{n}") for n in range(5))
                epochs += [answer.epoch for answer in await asyncio.gather(*together)]
        assert epochs == sorted({*epochs})
        assert epochs[0] > 0
        await metadata.close()

    run(story())


def test_an_epoch_whose_registration_was_not_answered_is_not_given_again(tmp_path):
    async def story():
        metadata = TroubledMetadata(MemoryMetadata())
        async with AdminWorld(tmp_path, metadata).asker() as asker:
            first = (await asker.storage("RegisterPipeline", name="a")).epoch
            metadata.lose["cas"] = [MetadataUnknownError("m", "cas", "no answer")]
            with refused(StatusCode.UNKNOWN):
                await asker.storage("RegisterPipeline", name="b")
            assert (await asker.storage("RegisterPipeline", name="c")).epoch == first + 2

    run(story())


def test_an_owner_whose_tables_have_seen_higher_epochs_gets_one_behind_them(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            first = (await asker.storage("RegisterPipeline", name="a")).epoch
            again = await asker.storage("RegisterPipeline", name="a", owner_epoch=first, least_epoch=41)
            assert again.epoch == 41
            assert (await asker.storage("RegisterPipeline", name="b")).epoch == 42
            low = await asker.storage("RegisterPipeline", name="b", owner_epoch=42, least_epoch=7)
            assert low.epoch == 43, "never one that was given"

    run(story())


def test_who_is_not_the_owner_any_more_does_not_become_it_by_registering_again(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            first = (await asker.storage("RegisterPipeline", name="a")).epoch
            second = (await asker.storage("RegisterPipeline", name="b")).epoch
            for owner in (first, second + 1):
                with refused(StatusCode.FAILED_PRECONDITION, "not the owner"):
                    await asker.storage("RegisterPipeline", name="a", owner_epoch=owner, least_epoch=99)
            with refused(StatusCode.INVALID_ARGUMENT, "least_epoch"):
                await asker.storage("RegisterPipeline", name="a", least_epoch=(1 << 62) + 1)
            assert (await asker.storage("RegisterPipeline", name="c")).epoch == second + 1

    run(story())


def test_a_pipeline_that_is_at_work_is_known_by_its_watch(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            pipelines = asker.broker.pipelines
            epoch = (await asker.storage("RegisterPipeline", name="a")).epoch
            assert not pipelines.has_owner()
            pipelines.wakeups.wake("/default/t", 1, 1)
            async with aclosing(asker.watch(epoch=epoch)) as watch:
                await anext(watch)
                assert pipelines.has_owner()
            assert not pipelines.has_owner()

    run(story())


def test_the_owner_is_woken_to_look_at_a_table_that_someone_else_has_changed(tmp_path):
    """K2."""

    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 3)
            await asker.storage("RequestSync", topic=T)
            epoch = (await asker.storage("RegisterPipeline", name="p")).epoch
            await asker.storage("ReportUpto", topic=T, generation=1, epoch=epoch, upto=3)
            await asker.storage("WakePipeline", topic=T, generation=1)
            async with aclosing(asker.watch(epoch=epoch)) as watch:
                assert await anext(watch) == pb.Wakeup(topic=T, generation=1, upto=3)
            with refused(StatusCode.FAILED_PRECONDITION, "generation"):
                await asker.storage("WakePipeline", topic=T, generation=2)
            with refused(StatusCode.NOT_FOUND, "nobody"):
                await asker.storage("WakePipeline", topic="/default/nobody")

    run(story())


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b"])
def test_a_pipeline_has_a_name_for_people(tmp_path, name):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            with refused(StatusCode.INVALID_ARGUMENT, "name"):
                await asker.storage("RegisterPipeline", name=name)

    run(story())


async def lake_upto(asker):
    (topic,) = (await asker.storage("ListTopics")).topics
    return topic.offsets.lake_upto if topic.offsets.HasField("lake_upto") else None


def test_what_a_table_holds_is_kept_through_restarts_and_forgotten_with_the_topic(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 10)
            await asker.storage("RequestSync", topic=T)
            assert await lake_upto(asker) is None
            epoch = (await asker.storage("RegisterPipeline", name="p")).epoch
            report = {"topic": T, "generation": 1, "epoch": epoch}
            assert (await asker.storage("ReportUpto", upto=6, **report)).upto == 6
            assert (await asker.storage("ReportUpto", upto=4, **report)).upto == 6, "what comes late takes nothing back"
            assert await lake_upto(asker) == 6
        async with world.asker() as asker:
            assert await lake_upto(asker) == 6
            assert (await asker.admin("DescribeTopic", topic=T)).topic.offsets.lake_upto == 6
            assert (await asker.storage("ReportUpto", upto=7, **report)).upto == 7, "a restart changes no owner"
            assert asker.broker.pipelines.upto(TopicName.parse(T), 2) is None, "another generation has another table"
            await asker.topic("DeleteTopic", name=T)
            assert await world.metadata.list("/danube-data/broker/upto/") == []
            await asker.fill(T, 10)
            assert await lake_upto(asker) is None
        async with world.asker() as asker:
            assert await lake_upto(asker) is None

    run(story())


def test_a_new_owner_says_what_the_table_really_holds(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 10)
            await asker.storage("RequestSync", topic=T)
            old = (await asker.storage("RegisterPipeline", name="p")).epoch
            await asker.storage("ReportUpto", topic=T, generation=1, epoch=old, upto=6)
            new = (await asker.storage("RegisterPipeline", name="q")).epoch
            for epoch in (old, 0, new + 1):
                with refused(StatusCode.FAILED_PRECONDITION, "epoch"):
                    await asker.storage("ReportUpto", topic=T, generation=1, epoch=epoch, upto=8)
            assert await lake_upto(asker) == 6
            assert (await asker.storage("ReportUpto", topic=T, generation=1, epoch=new, upto=3)).upto == 3
            assert await lake_upto(asker) == 3

    run(story())


def test_a_table_cannot_hold_what_is_not_synced(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 3)
            await asker.storage("RequestSync", topic=T)
            await asker.fill(T, 3)
            epoch = (await asker.storage("RegisterPipeline", name="p")).epoch
            for upto in (4, 2**64 - 1):
                with refused(StatusCode.OUT_OF_RANGE):
                    await asker.storage("ReportUpto", topic=T, generation=1, epoch=epoch, upto=upto)
            with refused(StatusCode.INVALID_ARGUMENT, "generation"):
                await asker.storage("ReportUpto", topic=T, epoch=epoch, upto=3)
            assert await lake_upto(asker) is None

    run(story())


def test_a_report_that_is_not_kept_does_not_count(tmp_path):
    async def story():
        metadata = TroubledMetadata(MemoryMetadata())
        async with AdminWorld(tmp_path, metadata).asker() as asker:
            await asker.fill(T, 3)
            await asker.storage("RequestSync", topic=T)
            epoch = (await asker.storage("RegisterPipeline", name="p")).epoch
            metadata.fail["put"] = [MetadataUnavailableError("m", "put", "down")]
            with refused(StatusCode.UNAVAILABLE):
                await asker.storage("ReportUpto", topic=T, generation=1, epoch=epoch, upto=3)
            assert await lake_upto(asker) is None
            assert (await asker.storage("ReportUpto", topic=T, generation=1, epoch=epoch, upto=3)).upto == 3

    run(story())


def test_the_owner_is_woken_for_what_waits_until_another_registers(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 3)
            await asker.storage("RequestSync", topic=T)
            wakeups = asker.broker.pipelines.wakeups
            epoch = (await asker.storage("RegisterPipeline", name="p")).epoch
            async with aclosing(asker.watch(epoch=epoch)) as watch:
                asking = asyncio.ensure_future(anext(watch))
                await asyncio.sleep(0)
                wakeups.wake(T, 1, 2)
                assert await asking == pb.Wakeup(topic=T, generation=1, upto=2)
                wakeups.wake(T, 1, 3)
                await asker.storage("ReportUpto", topic=T, generation=1, epoch=epoch, upto=3)
                asking = asyncio.ensure_future(anext(watch))
                await asyncio.sleep(0)
                await asker.storage("RegisterPipeline", name="q")
                with pytest.raises(StopAsyncIteration):
                    await asking
            for stale in (epoch, 0, epoch + 2):
                with refused(StatusCode.FAILED_PRECONDITION, "epoch"):
                    await anext(asker.watch(epoch=stale))

    run(story())


def test_what_is_waited_for_in_a_deleted_topic_wakes_nobody(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 3)
            asker.broker.pipelines.wakeups.wake(T, 1, 2)
            await asker.topic("DeleteTopic", name=T)
            asker.broker.pipelines.wakeups.wake("/default/u", 1, 2)
            epoch = (await asker.storage("RegisterPipeline", name="p")).epoch
            async with aclosing(asker.watch(epoch=epoch)) as watch:
                assert (await anext(watch)).topic == "/default/u"

    run(story())
