"""What every PersistentStorage promises, asked of each in turn: the fake passes the same suite as the real thing."""

import asyncio

import pytest

from ister.core.errors import InvalidMessageError, LogClosedError, OffsetOutOfRangeError
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.storage import InMemoryStorage, WalStorage
from ister.wal import Wal, WalConfig
from parts.storage import TOPIC, every_storage, in_memory, run, wal_on_disk

FULL = StreamMessage(
    payload=b"\0payload",
    msg_id=MsgID(7, "/other/name", "broker:6650", 99),
    request_id=2**64 - 1,
    publish_time=1234,
    producer_name="prödücer",
    subscription_name="not stored",
    attributes={"k": "v", "": "empty key"},
    schema_id=0,
    schema_version=3,
    routing_key="",
    append_time_us=5,
)


def numbered(start, stop):
    return [StreamMessage(b"%d" % n, publish_time=n) for n in range(start, stop)]


async def take(reader, count):
    return [await anext(reader) for _ in range(count)]


@every_storage
def test_i6_a_reader_sees_history_and_then_what_comes_each_message_once(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        assert await storage.append_messages(numbered(0, 300)) == range(300)
        reader = await storage.create_reader(StartPosition.offset(5))
        seen = await take(reader, 200)
        assert [await storage.append_message(m) for m in numbered(300, 320)] == list(range(300, 320))
        while len(seen) < 315:
            seen += await reader.read()
        assert [m.offset for m in seen] == list(range(5, 320))
        assert [m.payload for m in seen] == [b"%d" % n for n in range(5, 320)]
        assert {m.msg_id.topic_name for m in seen} == {TOPIC}
        times = [m.append_time_us for m in seen]
        assert times[0] > 0
        assert times == sorted(times)
        await storage.close()

    run(story())


@every_storage
def test_a_reader_at_the_end_is_woken_by_an_append(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        await storage.append_messages(numbered(0, 3))
        readers = [await storage.create_reader(StartPosition.latest()) for _ in range(3)]
        waiting = [asyncio.ensure_future(reader.read()) for reader in readers]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        await storage.append_message(StreamMessage(b"news"))
        for task in waiting:
            assert [(m.offset, m.payload) for m in await task] == [(3, b"news")]
        await storage.close()

    run(story())


@every_storage
def test_f37_a_reader_whose_wait_is_cancelled_loses_nothing(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        reader = await storage.create_reader(StartPosition.latest())
        for offset in range(5):
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await storage.append_message(StreamMessage(b"%d" % offset))
            assert (await anext(reader)).offset == offset
        await storage.close()

    run(story())


@every_storage
def test_every_stored_field_comes_back_and_no_other(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        attributes = dict(FULL.attributes)
        await storage.append_message(FULL._replace(attributes=attributes))
        attributes["k"] = "changed later"
        message = await anext(await storage.create_reader(StartPosition.offset(0)))
        assert message == FULL._replace(
            msg_id=MsgID(7, TOPIC, "broker:6650", 0), subscription_name="", append_time_us=message.append_time_us
        )
        await storage.close()

    run(story())


@every_storage
def test_a_batch_with_a_bad_message_is_refused_whole(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        with pytest.raises(InvalidMessageError, match="payload"):
            await storage.append_messages([StreamMessage(b"good"), StreamMessage("text")])
        assert storage.next_offset == 0
        assert await storage.append_message(StreamMessage(b"first")) == 0
        await storage.close()

    run(story())


@every_storage
def test_a_reader_cannot_start_where_nothing_is(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        await storage.append_messages(numbered(0, 3))
        for offset in (-1, 4):
            with pytest.raises(OffsetOutOfRangeError) as refused:
                await storage.create_reader(StartPosition.offset(offset))
            assert (refused.value.start, refused.value.stop) == (0, 3)
        await storage.close()

    run(story())


@every_storage
def test_closing_ends_readers_and_refuses_everything_else(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        await storage.append_messages(numbered(0, 3))
        reader = await storage.create_reader(StartPosition.latest())
        waiting = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        await storage.close()
        await storage.close()
        with pytest.raises(LogClosedError):
            await waiting
        for refused in (
            storage.append_message(FULL),
            storage.append_messages([FULL]),
            storage.create_reader(StartPosition.latest()),
            storage.ack_checkpoint("s", 1),
            storage.forget_cursor("s"),
            storage.cursors(),
        ):
            with pytest.raises(LogClosedError):
                await refused

    run(story())


@every_storage
def test_a_cursor_moves_on_and_never_back(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        await storage.append_messages(numbered(0, 10))
        assert await storage.cursors() == {}
        assert await storage.ack_checkpoint("s", 0) == 0
        assert await storage.ack_checkpoint("s", 7) == 7
        assert await storage.ack_checkpoint("s", 3) == 7
        assert await storage.ack_checkpoint("other", 10) == 10
        assert await storage.cursors() == {"s": 7, "other": 10}
        await storage.forget_cursor("other")
        await storage.forget_cursor("never known")
        assert await storage.cursors() == {"s": 7}
        assert await storage.ack_checkpoint("other", 1) == 1
        await storage.close()

    run(story())


@every_storage
def test_i9_a_cursor_beyond_the_end_is_refused(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        await storage.append_messages(numbered(0, 10))
        await storage.ack_checkpoint("s", 4)
        for subscription, cursor in (("s", 11), ("new", 11), ("new", -1)):
            with pytest.raises(OffsetOutOfRangeError):
                await storage.ack_checkpoint(subscription, cursor)
        assert await storage.cursors() == {"s": 4}
        await storage.close()

    run(story())


@every_storage
def test_what_is_returned_cannot_change_what_is_kept(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        await storage.append_messages(numbered(0, 10))
        await storage.ack_checkpoint("s", 4)
        (await storage.cursors()).clear()
        assert await storage.cursors() == {"s": 4}
        await storage.close()

    run(story())


@pytest.mark.parametrize("make", [in_memory, wal_on_disk])
def test_what_is_pruned_is_gone_and_the_rest_is_whole(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        for message in numbered(0, 200):
            await storage.append_message(message)
        behind = await storage.create_reader(StartPosition.offset(0))
        segments = storage.sealed_segments()
        assert len(segments) > 2
        assert [s.first for s in segments] == [0, *(s.stop for s in segments[:-1])]
        cut = segments[1].stop
        assert await storage.prune(cut) == cut == storage.start_offset
        assert storage.sealed_segments() == segments[2:]
        assert await storage.prune(0) == cut
        seen = await take(await storage.create_reader(StartPosition.offset(cut)), 200 - cut)
        assert [m.offset for m in seen] == list(range(cut, 200))
        with pytest.raises(OffsetOutOfRangeError):
            await behind.read()
        with pytest.raises(OffsetOutOfRangeError):
            await storage.ack_checkpoint("late", cut - 1)
        await storage.close()

    run(story())


def test_a_late_acknowledgement_of_what_was_pruned_is_no_error(tmp_path):
    async def story():
        storage = InMemoryStorage()
        await storage.append_messages(numbered(0, 10))
        await storage.ack_checkpoint("s", 8)
        await storage.prune(8)
        assert await storage.ack_checkpoint("s", 3) == 8

    run(story())


def test_memory_gives_a_reader_a_bounded_batch(tmp_path):
    async def story():
        storage = InMemoryStorage()
        await storage.append_messages(numbered(0, 2500))
        reader = await storage.create_reader(StartPosition.offset(0))
        assert [len(await reader.read()) for _ in range(3)] == [1024, 1024, 452]

    run(story())


def test_f12_an_append_time_that_no_checkpoint_tells_is_read_from_the_file(tmp_path):
    async def story():
        storage = await wal_on_disk(tmp_path)
        for message in numbered(0, 200):
            await storage.append_message(message)
        known = storage.sealed_segments()
        assert len(known) > 2
        assert all(segment.append_time_us for segment in known)
        await storage.close()

        (tmp_path / "log" / "checkpoint.json").unlink()
        storage = await wal_on_disk(tmp_path)
        assert storage.sealed_segments()[0].append_time_us == 0
        assert await storage.dated_segments() == known
        assert storage.sealed_segments() == known
        await storage.close()

        storage = await wal_on_disk(tmp_path)
        assert storage.sealed_segments() == known
        await storage.close()

    run(story())


def test_sealing_waits_for_the_size_and_starts_one_file_however_many_ask(tmp_path):
    async def story():
        config = WalConfig(dir=tmp_path / "log")
        storage = WalStorage.from_wal(await Wal.with_config(config))
        await storage.append_message(StreamMessage(bytes(5000)))
        size = sum(path.stat().st_size for path in (tmp_path / "log").glob("*.log"))
        await storage.seal(size + 1)
        assert storage.sealed_segments() == []
        await asyncio.gather(*(storage.seal(size) for _ in range(5)))
        await storage.append_message(StreamMessage(b"in the next file"))
        await storage.close()
        assert [(s.first, s.stop) for s in storage.sealed_segments()] == [(0, 1)]
        assert len(list((tmp_path / "log").glob("*.log"))) == 2

    run(story())


@every_storage
def test_cursors_are_moved_by_hand_and_saved_together(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        await storage.append_messages(numbered(0, 8))
        await storage.flush()
        assert await storage.reset_cursor("a", 6) == 6
        assert await storage.reset_cursor("a", 2) == 2
        assert await storage.ack_checkpoint("b", 1) == 1
        for wrong in (-1, 9):
            with pytest.raises(OffsetOutOfRangeError):
                await storage.reset_cursor("a", wrong)
        assert await storage.save_cursors({"a": 1, "b": 7, "never": 3}) == {"a": 2, "b": 7}
        assert await storage.save_cursors({"a": 99}) == {"a": 8}
        assert await storage.cursors() == {"a": 8, "b": 7}
        await storage.close()

    run(story())
