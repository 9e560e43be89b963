"""Progress in metadata: its keys and records, its owner, its generation, and a store that answers badly."""

import asyncio
import json
from urllib.parse import unquote

import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st

from ister.core.errors import (
    CorruptMetadataError,
    CursorTakenError,
    FencedError,
    MetadataUnknownError,
)
from ister.core.names import TopicName
from ister.core.table.data_files import RowLocation
from ister.ports.metadata import MemoryMetadata
from ister.storage.cursors import metadata as progress
from ister.storage.cursors.metadata import PART_CHARS_MAX, OwnedKey, key_part
from parts.progress import ENTRY, KEY, ROOT, Script, made, opened, said
from sim.cloud_machine import SimMetadata
from sim.machine import run

# --- keys and records -------------------------------------------------------------------------------------------------


def test_a_record_is_at_the_specified_key_and_says_where_its_last_row_is():
    async def story():
        metadata, asked = MemoryMetadata(), []

        def place(offset):
            asked.append(offset)
            return RowLocation(77, "s3://b/f.parquet") if offset == 6 else None

        cursors = await opened(metadata, generation=3, place=place)
        await cursors.advance("s", 7)
        found = await said(metadata)
        assert found.pop("time_ms") == 1_800_000_000_000
        assert found == {
            "version": 1, "subscription": "s", "generation": 3, "offset": 7, "snapshot": 77, "file": "s3://b/f.parquet",
        }  # fmt: skip
        await cursors.advance("s", 9)
        assert (await said(metadata))["snapshot"] is None
        await cursors.put("s", 0)
        assert (await said(metadata))["file"] is None
        assert asked == [6, 8], "nothing is below offset 0"

    run(story())


@given(st.text(st.characters(), max_size=300))
def test_a_name_can_be_read_back_from_its_key_unless_it_is_long(name):
    part = key_part(name)
    assert len(part) <= PART_CHARS_MAX
    assert not set(part) & set("/\0 ")
    if "!" not in part:
        assert unquote(part, errors="surrogatepass") == name


@given(st.sets(st.text(st.sampled_from("a!%/é\ud800"), max_size=300), min_size=2, max_size=2))
def test_two_names_never_share_a_key(names):
    assert len({key_part(name) for name in names}) == 2
    assert len({key_part("x" * 300 + name) for name in names}) == 2


def test_a_long_name_is_cut_between_characters_and_stands_in_the_record():
    async def story():
        metadata, name = MemoryMetadata(), "ü" * 1000
        await (await opened(metadata)).advance(name, 3)
        key = f"{ROOT}/subscriptions/{key_part(name)}/default/orders"
        assert (await said(metadata, key))["subscription"] == name
        assert (await opened(metadata)).durable() == {name: 3}
        cut = key_part(name).partition("!")[0]
        assert cut.count("%") * 3 == len(cut)

    run(story())


def test_a_topic_sees_its_own_subscriptions_only():
    async def story():
        metadata = MemoryMetadata()
        topics = [TopicName("default", name) for name in ("orders", "order", "orders-2")]
        for cursor, topic in enumerate(topics):
            await (await opened(metadata, topic=topic)).advance("s", cursor)
        assert [(await opened(metadata, topic=topic)).durable() for topic in topics] == [{"s": 0}, {"s": 1}, {"s": 2}]

    run(story())


def test_nothing_is_left_of_what_is_forgotten_or_cleared():
    async def story():
        metadata = MemoryMetadata()
        await (await opened(metadata)).advance("old", 1)
        cursors = await opened(metadata, generation=2)
        await cursors.advance("a", 1)
        await cursors.advance("b", 1)
        await cursors.forget("a")
        assert [entry.key for entry in await metadata.list("/") if "/a" in entry.key] == []
        await cursors.clear()
        assert await metadata.list("/") == []

    run(story())


def test_a_cursor_that_is_cut_back_is_told_once(monkeypatch):
    logs = structlog.testing.CapturingLogger()
    monkeypatch.setattr(progress, "log", logs)

    async def story():
        metadata = MemoryMetadata()
        await (await opened(metadata)).advance("s", 10)
        assert (await opened(metadata, limit=4)).durable() == {"s": 4}
        await opened(metadata, limit=4)
        [told] = logs.calls
        assert (told.method_name, told.args) == ("warning", ("cursors_cut_back",))
        assert told.kwargs == {"topic": "/default/orders", "subscriptions": ["s"], "cursor": 4}

    run(story())


@pytest.mark.parametrize(
    "change",
    [
        b"", b"[]", b"7", b"{}", {"version": 2}, {"offset": -1}, {"offset": True}, {"offset": "3"}, {"generation": None},
        {"subscription": "t"}, {"snapshot": ""}, {"file": 3}, {"time_ms": None},
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", [KEY, ENTRY])
def test_i11_a_damaged_record_is_an_error_that_names_it_and_never_an_empty_result(change, key):
    async def story():
        metadata = MemoryMetadata()
        await (await opened(metadata)).advance("s", 3)
        whole = await said(metadata, key)
        if isinstance(change, dict) and not change.keys() <= whole.keys():
            return
        value = change if isinstance(change, bytes) else json.dumps({**whole, **change}).encode()
        await metadata.put(key, value)
        cursors = made(metadata)
        for _ in range(2):
            with pytest.raises(CorruptMetadataError, match=key):
                await cursors.load()
        assert (await metadata.get(key)).value == value, "nothing was changed"

    run(story())


# --- one owner, one generation ----------------------------------------------------------------------------------------


def test_d5_a_record_of_an_earlier_generation_counts_as_absent_and_is_overwritten():
    async def story():
        metadata = MemoryMetadata()
        await (await opened(metadata)).advance("s", 9)
        cursors = await opened(metadata, generation=2)
        assert cursors.durable() == {}
        assert await cursors.advance("s", 1) == 1
        assert (await opened(metadata, generation=2)).durable() == {"s": 1}

    run(story())


def test_d5_a_record_of_a_later_generation_stops_the_earlier_one():
    async def story():
        metadata = MemoryMetadata()
        await (await opened(metadata, generation=2)).advance("s", 9)
        with pytest.raises(CursorTakenError, match=KEY):
            await made(metadata).load()
        assert (await said(metadata))["offset"] == 9

    run(story())


@pytest.mark.parametrize(
    "act",
    [lambda c: c.advance("s", 8), lambda c: c.put("s", 1), lambda c: c.forget("s"), lambda c: c.advance("new", 1)],
)
def test_a_second_owners_write_is_noticed_and_never_overwritten(act):
    async def story():
        metadata = MemoryMetadata()
        first = await opened(metadata)
        await first.advance("s", 3)
        second = await opened(metadata)
        await second.advance("s", 5)
        await second.advance("new", 6)
        before = await metadata.list("/")
        for _ in range(2):
            with pytest.raises(CursorTakenError) as caught:
                await act(first)
            assert isinstance(caught.value, FencedError)
        assert await metadata.list("/") == before
        assert await second.advance("s", 9) == 9

    run(story())


def test_a_second_owner_that_removed_a_subscription_is_noticed():
    async def story():
        metadata = MemoryMetadata()
        first = await opened(metadata)
        await first.advance("s", 3)
        await (await opened(metadata)).forget("s")
        with pytest.raises(CursorTakenError):
            await first.advance("s", 4)

    run(story())


# --- how it is written ------------------------------------------------------------------------------------------------


def test_many_changes_share_a_save_and_one_that_changes_nothing_asks_nobody():
    async def story():
        metadata = SimMetadata(Script())
        cursors = await opened(metadata)
        for n in range(5):
            await cursors.advance(f"s{n}", 0)
        metadata.network.calls.clear()
        await asyncio.gather(*(cursors.advance(f"s{n % 5}", n) for n in range(1, 101)))
        assert len(metadata.network.calls) <= 10
        assert {op for op, _ in metadata.network.calls} == {"cas"}
        metadata.network.calls.clear()
        assert await cursors.advance("s0", 3) == 100
        assert await cursors.advance_known({"s1": 5, "never": 9}) == {"s1": 96}
        assert metadata.network.calls == []

    run(story())


def test_the_list_entry_comes_before_the_record_and_goes_behind_it():
    async def story():
        metadata = SimMetadata(Script())
        cursors = await opened(metadata)
        await cursors.advance("s", 1)
        await cursors.forget("s")
        changes = [call for call in metadata.network.calls if call[0] in {"cas", "delete"}]
        assert changes == [("cas", ENTRY), ("cas", KEY), ("delete", KEY), ("delete", ENTRY)]

    run(story())


def test_a_record_that_landed_long_after_its_removal_is_overwritten():
    async def story():
        metadata = MemoryMetadata()
        cursors = await opened(metadata)
        await cursors.advance("s", 9)
        late = (await metadata.get(KEY)).value
        await cursors.forget("s")
        await metadata.put(KEY, late)
        assert (await opened(metadata)).durable() == {}
        assert await cursors.advance("s", 2) == 2
        assert (await opened(metadata)).durable() == {"s": 2}

    run(story())


def test_a_write_that_lands_after_we_looked_is_known_as_ours():
    async def story():
        metadata = MemoryMetadata()
        key = OwnedKey(metadata, "/k")
        await key.set(b"1")
        plain, sent = metadata.cas, []

        async def lose(name, value, *, version):
            sent.append((name, value, version))
            raise MetadataUnknownError("sim", "cas", "no answer")

        metadata.cas = lose
        with pytest.raises(MetadataUnknownError):
            await key.set(b"2")

        async def late(name, value, *, version):
            metadata.cas = plain
            [(old_name, old_value, old_version)] = sent
            await plain(old_name, old_value, version=old_version)
            return await plain(name, value, version=version)

        metadata.cas = late
        await key.set(b"3")
        assert (await metadata.get("/k")).value == b"3"

    run(story())
