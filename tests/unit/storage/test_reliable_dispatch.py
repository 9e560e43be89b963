import asyncio
import errno
import random
from contextlib import suppress
from pathlib import Path

import pytest

from ister.core.errors import (
    CorruptLogError,
    DiskFullError,
    InvalidConfigError,
    InvalidNameError,
    OffsetOutOfRangeError,
)
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.core.tiers.retention import RetentionPolicy
from ister.storage import InMemoryStorage, ReliableDispatch, ReliableOptions, TopicCache, WalStorage
from ister.wal import SyncMode, Wal, WalConfig
from sim.machine import SimClock, SimFiles, run

TOPIC = "/default/topic"
DIRECTORY = Path("/sim/default/topic/1")
ACK = ReliableOptions(1, RetentionPolicy.RETAIN_UNTIL_ACK, 60)
EXPIRE = ReliableOptions(1, RetentionPolicy.RETAIN_UNTIL_EXPIRE, 60)
MINUTE_US = 60_000_000
NO_TIME = 0


async def opened(files, options=ACK, clock=None, **settings):
    """A topic as the specification wires it: the cache was made over another storage."""
    config = WalConfig(**{"dir": DIRECTORY, "sync_mode": SyncMode.NONE, "max_bytes": 4096, "topic": TOPIC} | settings)
    storage = WalStorage.from_wal(await Wal.with_config(config, files=files, clock=clock or SimClock()))
    return ReliableDispatch.new_with_persistent(TOPIC, options, TopicCache(InMemoryStorage(), 100, 10), storage)


async def filled(files, options=ACK, clock=None, **settings):
    """A topic with 100 messages in several files."""
    dispatch = await opened(files, options, clock, **settings)
    for n in range(100):
        await dispatch.store_message(StreamMessage(b"%0100d" % n))
    return dispatch


def segments_of(dispatch):
    return dispatch.topic_store.storage.sealed_segments()


def test_messages_are_stored_tailed_and_replayed():
    async def story():
        dispatch = await opened(SimFiles())
        assert str(dispatch.topic_store.topic) == TOPIC
        assert [await dispatch.store_message(StreamMessage(b"%d" % n)) for n in range(3)] == [0, 1, 2]
        latest = await dispatch.create_stream_latest()
        replay = await dispatch.create_stream(StartPosition.offset(1))
        waiting = asyncio.ensure_future(anext(latest))
        assert await dispatch.store_message(StreamMessage(b"3")) == 3
        assert (await waiting).payload == b"3"
        assert [(await anext(replay)).payload for _ in range(3)] == [b"1", b"2", b"3"]
        again = await dispatch.topic_store.create_reader(StartPosition.offset(2))
        assert (await anext(again)).offset == 2
        one = await dispatch.topic_store.read_message(2)
        assert (one.payload, one.msg_id.topic_name) == (b"2", TOPIC)
        await dispatch.close()

    run(story())


def test_s7_a_topic_name_is_parsed_before_anything_else():
    storage = InMemoryStorage()
    with pytest.raises(InvalidNameError):
        ReliableDispatch.new_with_persistent("../etc", ACK, TopicCache(storage, 1, 1), storage)


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ((0, RetentionPolicy.RETAIN_UNTIL_ACK, 60), "segment_size_mb"),
        ((1.5, RetentionPolicy.RETAIN_UNTIL_ACK, 60), "segment_size_mb"),
        ((True, RetentionPolicy.RETAIN_UNTIL_ACK, 60), "segment_size_mb"),
        ((1, "retain_for_ever", 60), "policy"),
        ((1, RetentionPolicy.RETAIN_UNTIL_ACK, -1), "retention_period_s"),
        ((1, RetentionPolicy.RETAIN_UNTIL_ACK, "60"), "retention_period_s"),
    ],
)
def test_senseless_options_are_refused_by_name(values, setting):
    with pytest.raises(InvalidConfigError, match=setting):
        ReliableOptions(*values)


def test_a_policy_can_be_given_by_its_name():
    assert ReliableOptions(2, "retain_until_ack", 0).policy is RetentionPolicy.RETAIN_UNTIL_ACK
    assert ReliableOptions(2, "retain_until_ack", 0).segment_bytes == 2 * 1024 * 1024


def test_an_acknowledgement_covers_its_message_and_all_before_it():
    async def story():
        dispatch = await filled(SimFiles())
        assert await dispatch.ack("s", 0) == 1
        assert await dispatch.ack("s", 9) == 10
        assert await dispatch.ack("s", 5) == 10
        with pytest.raises(OffsetOutOfRangeError):
            await dispatch.ack("s", 100)
        assert await dispatch.ack("s", 99) == 100

    run(story())


def test_a_known_subscription_keeps_its_place_and_a_new_one_starts_where_it_asks():
    async def story():
        files = SimFiles()
        dispatch = await filled(files)
        assert await dispatch.subscribe("all", StartPosition.offset(0)) == 0
        assert await dispatch.subscribe("new", StartPosition.latest()) == 100
        await dispatch.ack("all", 41)
        await dispatch.close()
        dispatch = await opened(files)
        assert await dispatch.subscribe("all", StartPosition.latest()) == 42
        assert await dispatch.subscribe("new", StartPosition.offset(0)) == 100
        await dispatch.unsubscribe("all")
        assert await dispatch.subscribe("all", StartPosition.offset(7)) == 7

    run(story())


def test_i5_what_everyone_has_acknowledged_is_deleted_and_no_more():
    async def story():
        dispatch = await filled(SimFiles())
        cuts = [segment.stop for segment in segments_of(dispatch)]
        assert len(cuts) >= 3
        assert await dispatch.enforce_retention(10**18) == 0, "nobody has acknowledged anything"
        await dispatch.subscribe("slow", StartPosition.offset(0))
        await dispatch.ack("fast", 99)
        assert await dispatch.enforce_retention(10**18) == 0
        await dispatch.ack("slow", cuts[1] - 2)
        assert await dispatch.enforce_retention(10**18) == cuts[0], "one message of the second file is still unread"
        await dispatch.ack("slow", cuts[1] - 1)
        assert await dispatch.enforce_retention(10**18) == cuts[1]
        await dispatch.unsubscribe("slow")
        assert await dispatch.enforce_retention(10**18) == cuts[-1], "the active file stays"
        rest = await dispatch.create_stream(StartPosition.offset(cuts[-1]))
        assert (await anext(rest)).offset == cuts[-1]

    run(story())


def test_i5_a_later_tier_that_is_behind_holds_the_log():
    async def story():
        dispatch = await filled(SimFiles())
        cuts = [segment.stop for segment in segments_of(dispatch)]
        await dispatch.ack("s", 99)
        assert await dispatch.enforce_retention(NO_TIME, 0) == 0
        assert await dispatch.enforce_retention(NO_TIME, later_tier_offset=cuts[1] - 1) == cuts[0]
        assert await dispatch.enforce_retention(NO_TIME, later_tier_offset=cuts[1]) == cuts[1]

    run(story())


def test_i5_what_is_old_is_deleted_unless_someone_still_needs_it():
    async def story():
        clock = SimClock()
        dispatch = await filled(SimFiles(), EXPIRE, clock)
        segments = segments_of(dispatch)
        newest_us = segments[-1].append_time_us
        await dispatch.subscribe("s", StartPosition.offset(segments[0].stop))
        assert await dispatch.enforce_retention(segments[0].append_time_us + MINUTE_US) == 0
        assert await dispatch.enforce_retention(segments[0].append_time_us - MINUTE_US) == 0
        assert await dispatch.enforce_retention(newest_us + MINUTE_US + 1) == segments[0].stop
        await dispatch.unsubscribe("s")
        assert await dispatch.enforce_retention(segments[1].append_time_us + MINUTE_US + 1) == segments[1].stop
        assert await dispatch.enforce_retention(newest_us + MINUTE_US + 1) == segments[-1].stop

    run(story())


def test_f12_an_expiry_without_a_checkpoint_goes_by_the_files_themselves():
    async def story(damage):
        files = SimFiles()
        clock = SimClock()
        dispatch = await filled(files, EXPIRE, clock)
        segments = segments_of(dispatch)
        await dispatch.close()
        files.remove(DIRECTORY / "checkpoint.json")
        names = sorted(path for path in files.names_now if path.suffix == ".log")
        dispatch = await opened(files, EXPIRE, clock)
        assert segments_of(dispatch)[0].append_time_us == 0
        if damage:
            files.names_now[names[0]].data[200] ^= 1
            with pytest.raises(CorruptLogError, match=names[0].name):
                await dispatch.enforce_retention(segments[0].append_time_us + MINUTE_US)
            assert dispatch.topic_store.storage.start_offset == 0
            return
        assert await dispatch.enforce_retention(segments[0].append_time_us + MINUTE_US) == 0
        assert await dispatch.enforce_retention(segments[0].append_time_us + MINUTE_US + 1) == segments[0].stop

    run(story(damage=False))
    run(story(damage=True))


def test_what_was_deleted_is_not_served_from_the_cache():
    async def story():
        dispatch = await filled(SimFiles())
        await dispatch.topic_store.read_message(0)
        await dispatch.ack("s", 99)
        start = await dispatch.enforce_retention(NO_TIME)
        assert start > 0
        with pytest.raises(OffsetOutOfRangeError):
            await dispatch.topic_store.read_message(0)

    run(story())


def test_i5_a_subscription_that_begins_while_retention_runs_is_held_or_refused():
    async def story(moments):
        dispatch = await filled(SimFiles())
        storage = dispatch.topic_store.storage
        await dispatch.ack("s", 99)
        retaining = asyncio.ensure_future(dispatch.enforce_retention(NO_TIME))
        for _ in range(moments):
            await asyncio.sleep(0)
        try:
            await dispatch.subscribe("new", StartPosition.offset(0))
        except OffsetOutOfRangeError:
            assert storage.start_offset > 0
            return False
        start = await retaining
        assert start == 0 == (await storage.cursors())["new"]
        return True

    held = [run(story(moments), seed=moments) for moments in range(30)]
    assert any(held)
    assert not all(held)


def test_a_segment_is_sealed_at_its_size_while_messages_are_stored():
    async def story():
        files = SimFiles()
        dispatch = await opened(files, max_bytes=64 * 1024 * 1024)
        await dispatch.topic_store.storage.cursors()
        asked = []
        files.open_read = lambda path: asked.append(path) or SimFiles.open_read(files, path)
        for _ in range(50):
            await dispatch.store_message(StreamMessage(bytes(100_000)))
        segments = segments_of(dispatch)
        assert [segment.stop - segment.first for segment in segments] == [11, 11, 11, 11]
        assert asked == [], "the log knows its size without asking the disk"

    run(story())


def test_a_segment_that_was_full_already_is_sealed_by_enforcing():
    async def story():
        files = SimFiles()
        dispatch = await opened(files, ReliableOptions(1000, "retain_until_ack", 0), max_bytes=64 * 1024 * 1024)
        for _ in range(20):
            await dispatch.store_message(StreamMessage(bytes(100_000)))
        await dispatch.ack("s", 19)
        await dispatch.close()
        dispatch = await opened(files, max_bytes=64 * 1024 * 1024)
        assert await dispatch.enforce_retention(NO_TIME) == 0
        assert await dispatch.enforce_retention(NO_TIME) == 20

    run(story())


def test_f10_a_full_disk_that_cannot_seal_is_freed_all_the_same():
    async def story():
        files = SimFiles()
        dispatch = await filled(files, max_bytes=64 * 1024 * 1024)
        await dispatch.topic_store.storage.wal.rotate()
        await dispatch.ack("s", 99)
        for _ in range(11):
            await dispatch.store_message(StreamMessage(bytes(100_000)))

        def fail(op, path):
            if op == "create" and path.suffix == ".log":
                raise OSError(errno.ENOSPC, "No space left on device")

        files.on_step = fail
        with pytest.raises(DiskFullError):
            await dispatch.enforce_retention(NO_TIME)
        assert dispatch.topic_store.storage.start_offset == 100
        stored = dispatch.topic_store.storage.next_offset
        with pytest.raises(DiskFullError):
            await dispatch.store_message(StreamMessage(b"refused"))
        assert dispatch.topic_store.storage.next_offset == stored, "what is refused is not stored"
        files.on_step = lambda op, path: None
        assert await dispatch.store_message(StreamMessage(b"stored")) == stored

    run(story())


def test_memory_can_be_the_storage_of_a_topic_too():
    async def story():
        storage = InMemoryStorage()
        dispatch = ReliableDispatch.new_with_persistent(TOPIC, ACK, TopicCache(storage, 100, 10), storage)
        for n in range(10):
            await dispatch.store_message(StreamMessage(b"%d" % n))
        await dispatch.ack("s", 4)
        assert await dispatch.enforce_retention(NO_TIME) == 5
        assert (await dispatch.topic_store.read_message(5)).payload == b"5"
        await dispatch.close()

    run(story())


def test_i5_i9_no_interleaving_and_no_crash_leaves_a_subscription_before_the_start_of_the_log(count, tell):
    """Producers, subscribers, leavers and retention at once; a crash at every other step."""
    seeds = count(40, 2000)
    crashes = deleted = 0
    for seed in range(seeds):
        life = run(_life(seed), seed)
        crashes += life[0]
        deleted += life[1]
    tell("F23", f"retention against subscriptions: {crashes} crashes, {deleted} deletions in {seeds} lives")
    assert crashes >= 20 * seeds
    assert deleted >= seeds


async def _life(seed):
    rng = random.Random(seed)
    files = SimFiles()
    dispatch = await opened(files)
    storage = dispatch.topic_store.storage
    crashes = []
    deletions = 0

    def crash(op, path):
        if rng.random() < 0.6:
            crashes.append((op, files.unpowered(rng) if rng.random() < 0.7 else files.killed()))

    def check(cursors, start, stop):
        assert all(start <= cursor <= stop for cursor in cursors.values()), (seed, cursors, start, stop)

    async def produce():
        for _ in range(15):
            await storage.append_messages([StreamMessage(rng.randbytes(150))] * rng.randint(1, 9))

    async def consume(name):
        cursor = await dispatch.subscribe(
            name, rng.choice([StartPosition.latest(), StartPosition.offset(storage.start_offset)])
        )
        for _ in range(6):
            if cursor == storage.next_offset:
                return
            acks = sorted(rng.sample(range(cursor, storage.next_offset), min(2, storage.next_offset - cursor)))
            cursor = max(await asyncio.gather(*(dispatch.ack(name, offset) for offset in acks)))
        if rng.random() < 0.5:
            await dispatch.unsubscribe(name)
            await consume(name)

    async def retain():
        nonlocal deletions
        for _ in range(30):
            before = storage.start_offset
            deletions += await dispatch.enforce_retention(NO_TIME) > before
            check(await storage.cursors(), storage.start_offset, storage.next_offset)
            await asyncio.sleep(rng.choice((0, 0.0005, 0.002)))  # in virtual time

    files.on_step = crash
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        tasks.create_task(retain())
        for _ in range(4):
            for name in "abc":
                tasks.create_task(_unless_deleted(consume(name)))
    await dispatch.close()
    for _, disk in crashes:
        again = await opened(disk)
        kept = again.topic_store.storage
        check(await kept.cursors(), kept.start_offset, kept.next_offset)
        await again.close()
    return len(crashes), deletions


async def _unless_deleted(consuming):
    """A start that is deleted before the subscription is known is refused, and that is an answer."""
    with suppress(OffsetOutOfRangeError):
        await consuming
