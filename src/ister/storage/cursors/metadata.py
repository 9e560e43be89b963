"""Cursors in metadata: one record a subscription, and a list of subscriptions a topic.

    {root}/subscriptions/{subscription}/{namespace}/{topic}      the record: the truth
    {root}/topics/{namespace}/{topic}/{subscription}             the entry: there may be a record

The root lies below `root_prefix`, so that two deployments on one metadata store do not share progress (I5).
Records are ordered by subscription first, so a topic's records cannot be listed; the entries are there to find them. An
entry is written before its record and deleted after it: a crash in between leaves an entry without a record, which counts
as no subscription and is overwritten. In the other order a crash could leave a record without an entry, which is a lost
subscription. The broker that creates the entry has the subscription: a second one that creates it too is refused.

Several brokers may write the cursors of one topic, each only those of the subscriptions that it serves: `adopt` reads a
cursor again, and after `release` nothing is written of it here, not even a change that was waiting to be saved.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from ister.core.errors import CorruptMetadataError, CursorTakenError, MetadataUnavailableError
from ister.core.ownership.subscriptions import lease_lost
from ister.ports.clock import SystemClock
from ister.ports.metadata.store import entries
from ister.storage.cursors.saved import NOTHING_FINISHED, SavedCursors, check_ranges, clip_ranges, cut_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ister.core.names import TopicName
    from ister.core.table.data_files import RowLocation
    from ister.ports.clock import Clock
    from ister.ports.metadata import Entry, Metadata
    from ister.storage.cursors.saved import Ranges

log = structlog.get_logger()

OLD_ROOT = "/persistent_storage/iceberg"
"""The root in earlier releases, whatever `root_prefix` was."""
VERSION = 1
PAGE = 500
PART_CHARS_MAX = 240
"""The longest part of a key that is a subscription's name; a longer one is truncated, and ends with a hash."""
_HASH_CHARS = 32
WRITE_ATTEMPTS = 4
"""A write that finds an earlier one of its own landed late is retried."""


def key_part(subscription: str) -> str:
    """Return a subscription's name as a part of a key: letters, digits and `_.-~` as they are, other bytes as %XX.

    A long name is truncated, and `!` and a hash of the whole name follow. No short name has a `!`, so they never collide.
    """
    part = quote(subscription, safe="", errors="surrogatepass")
    if len(part) <= PART_CHARS_MAX:
        return part
    digest = sha256(subscription.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    cut = re.sub("%[0-9A-F]?$", "", part[: PART_CHARS_MAX - _HASH_CHARS - 1])
    return f"{cut}!{digest}"


def progress_root(root_prefix: str) -> str:
    """Return the prefix of all keys of cursors."""
    return f"{root_prefix.rstrip('/')}{OLD_ROOT}"


def record_key(root: str, subscription: str, topic: TopicName) -> str:
    """Return the key of a subscription's record."""
    return f"{root}/subscriptions/{key_part(subscription)}/{topic.namespace}/{topic.topic}"


def topic_key(root: str, topic: TopicName) -> str:
    """Return the key of a topic; the entries of its subscriptions are below it."""
    return f"{root}/topics/{topic.namespace}/{topic.topic}"


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A subscription's cursor, and the data file with the row just before it."""

    subscription: str
    generation: int
    offset: int
    snapshot: int | None
    file: str | None
    time_ms: int
    finished: Ranges = ()
    """Finished ranges beyond the cursor, as of when the subscription was last stopped; earlier releases ignore them."""

    def dump(self) -> bytes:
        """Return the stored value."""
        content = {"version": VERSION, **asdict(self)}
        if not self.finished:
            del content["finished"]
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def load(cls, key: str, value: bytes) -> CursorRecord:
        """Return the record of a value; CorruptMetadataError if it is not one of ours."""
        content = load_content(key, value)
        try:
            content["finished"] = check_ranges(content.get("finished", []))
        except (TypeError, ValueError) as error:
            raise CorruptMetadataError(key, str(error)) from None
        record = cls(*(content.get(name) for name in cls.__slots__))  # type: ignore[arg-type]  # checked below
        numbers = (record.generation, record.offset, record.time_ms)
        if not (
            isinstance(record.subscription, str)
            and all(type(number) is int for number in numbers)
            and (record.snapshot is None or type(record.snapshot) is int)
            and isinstance(record.file, str | None)
            and record.offset >= 0
        ):
            raise CorruptMetadataError(key, "what it says of a cursor cannot be")
        return record


def load_content(key: str, value: bytes) -> dict[str, object]:
    """Return the JSON object of a value; CorruptMetadataError if this release does not know its version."""
    try:
        content = json.loads(value)
        version = content["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadataError(key, f"it is not a record of ours ({type(error).__name__})") from None
    if not isinstance(content, dict) or version != VERSION:
        raise CorruptMetadataError(key, f"its version is {version!r}, this release knows {VERSION}")
    return content


class OwnedKey:
    """One key as it was last read or written.

    Every write is on the known version, so that a second owner's write is detected. A write whose answer was lost is
    remembered by its value: before the next one the key is read, and a value that was sent here is ours. A cancelled
    call counts as one whose answer was lost.
    """

    __slots__ = ("_doubts", "_metadata", "key", "value", "version")

    def __init__(self, metadata: Metadata, key: str, entry: Entry | None = None) -> None:
        self.key = key
        self.value: bytes | None = None
        self.version = 0
        self._metadata = metadata
        self._doubts: list[bytes | None] = []
        self._adopt(entry)

    async def read(self) -> None:
        """Read the key, and accept its value from any writer."""
        self._adopt(await self._metadata.get(self.key))
        self._doubts.clear()

    async def resolve(self) -> None:
        """Find out whether writes whose answer was lost have landed; makes no call if there are none."""
        if self._doubts:
            await self._recognise()

    async def set(self, value: bytes | None) -> None:
        """Write a value, or delete the key (None); CursorTakenError if another owner has written it."""
        await self.resolve()
        for _ in range(WRITE_ATTEMPTS):
            if value is None and self.version == 0:
                return
            if await self._send(value):
                return
            # Refused: another owner's write, or one of ours that was still in flight at the read.
            await self._recognise()
        raise CursorTakenError(self.key)

    async def _send(self, value: bytes | None) -> bool:
        self._doubts.append(value)
        try:
            if value is None:
                done = 0 if await self._metadata.delete(self.key, version=self.version) else None
            else:
                done = await self._metadata.cas(self.key, value, version=self.version)
        except MetadataUnavailableError:
            self._doubts.pop()  # nothing happened
            raise
        if done is None:
            self._doubts.pop()
            return False
        self.value, self.version = value, done
        self._doubts.clear()
        return True

    async def _recognise(self) -> None:
        entry = await self._metadata.get(self.key)
        if (0 if entry is None else entry.version) == self.version:
            return
        if (None if entry is None else entry.value) not in self._doubts:
            raise CursorTakenError(self.key)
        self._adopt(entry)
        self._doubts.clear()

    def _adopt(self, entry: Entry | None) -> None:
        self.value, self.version = (None, 0) if entry is None else (entry.value, entry.version)


@dataclass(slots=True)
class _Pair:
    """A subscription's two keys; whether the record was ever read."""

    entry: OwnedKey
    record: OwnedKey
    is_read: bool = False


class MetadataCursors(SavedCursors):
    """Cursors of one topic and generation in metadata.

    A record of an earlier generation counts as absent, and is overwritten; one of a later generation means that this
    owner's topic was deleted. `limit` is where the topic ended when it was opened, as for CursorFile. `place` returns the
    data file of a row; it is called for the one just below a cursor when that is saved. A save writes key by key: those
    written stay written when a later one fails, and `durable` assumes neither.
    """

    def __init__(
        self,
        metadata: Metadata,
        topic: TopicName,
        generation: int,
        limit: int,
        *,
        root: str,
        place: Callable[[int], RowLocation | None],
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._metadata = metadata
        self._root = root
        self._topic = topic
        self._generation = generation
        self._limit = limit
        self._place = place
        self._clock = clock or SystemClock()
        self._pairs: dict[str, _Pair] = {}
        self._stored: dict[str, int | None] = {}
        self._stored_finished: dict[str, Ranges] = {}
        self._released: set[str] = set()

    async def adopt(self, subscription: str) -> int | None:
        """Read a subscription's cursor again and begin to write it; None if it has none."""
        await self.load()
        self.release(subscription)
        while self._saving is not None:  # it may be writing the cursor that was known before
            await asyncio.wait({self._saving})
        pair = self._new_pair(subscription)
        await pair.entry.read()
        await pair.record.read()
        pair.is_read = True
        cursor = None if pair.entry.value is None else self._cursor_of(subscription, pair.record)
        self._released.discard(subscription)
        for known in (self._wanted, self._lowest, self._stored, self._finished, self._stored_finished):
            known.pop(subscription, None)
        if cursor is not None:
            self._finished[subscription] = self._stored_finished[subscription] = self._finished_of(pair.record)
            self._wanted[subscription] = self._lowest[subscription] = self._stored[subscription] = cursor
        return cursor

    def release(self, subscription: str) -> None:
        """Stop writing a subscription's cursor; it stays known here as the minimum that it can be.

        So it still counts for retention: the broker that serves the subscription next may begin there.
        """
        cursor = self.durable().get(subscription)
        if cursor is not None:
            self._released.add(subscription)
            self._wanted[subscription] = self._lowest[subscription] = self._stored[subscription] = cursor

    async def advance(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward; refused if it was released, before or meanwhile."""
        with self._adopted(subscription):
            return await super().advance(subscription, cursor)

    async def put(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward or back; refused if it was released, before or meanwhile."""
        with self._adopted(subscription):
            return await super().put(subscription, cursor)

    async def advance_known(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Move those subscriptions forward that are known and not released."""
        return await super().advance_known(
            {name: cursor for name, cursor in wanted.items() if name not in self._released},
            {name: ranges for name, ranges in finished.items() if name not in self._released},
        )

    async def replace(self, cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> None:
        """Save exactly these cursors in place of all others; for a move, before anything else uses this object."""
        await self.load()
        await super().replace(cursors, finished)

    async def clear(self) -> None:
        """Delete every key of this topic's subscriptions, also of earlier generations. Do not use this afterwards."""
        await self.replace({})
        for name in list(self._pairs):
            await self._remove(name)

    @contextmanager
    def _adopted(self, subscription: str) -> Iterator[None]:
        """Raise if a subscription is released, at first or at the end.

        Its cursor is not written here; counted as saved, it would let retention delete what another broker needs.
        """
        if subscription not in self._released:
            yield
        if subscription in self._released:
            raise lease_lost(str(self._topic), subscription)

    async def _read(self) -> dict[str, int]:
        self._pairs, self._stored, self._finished, self._stored_finished = {}, {}, {}, {}
        cursors: dict[str, int] = {}
        prefix = f"{topic_key(self._root, self._topic)}/"
        async for entry in entries(self._metadata, prefix, PAGE):
            name = load_content(entry.key, entry.value).get("subscription")
            if not isinstance(name, str) or entry.key != prefix + key_part(name):
                raise CorruptMetadataError(entry.key, "it names another subscription than its key")
            record = OwnedKey(self._metadata, record_key(self._root, name, self._topic))
            await record.read()
            self._pairs[name] = _Pair(OwnedKey(self._metadata, entry.key, entry), record, is_read=True)
            cursor = self._cursor_of(name, record)
            if cursor is not None:
                self._stored[name] = cursors[name] = cursor
                self._finished[name] = self._stored_finished[name] = self._finished_of(record)
        cursors, self._finished, beyond = cut_back(cursors, self._finished, self._limit)
        if beyond:
            # In metadata too, and now: once the topic has grown past such a cursor, no later open could detect it.
            await self._write(cursors)
            log.warning("cursors_cut_back", topic=str(self._topic), subscriptions=sorted(beyond), cursor=self._limit)
        return cursors

    async def _write(self, cursors: dict[str, int]) -> None:
        for name in [name for name in self._stored if name not in cursors]:
            await self._remove(name)
        for name, cursor in cursors.items():
            if name in self._released:
                continue
            finished = clip_ranges(self._finished.get(name, ()), cursor, sys.maxsize)
            if self._stored.get(name) != cursor or self._stored_finished.get(name, ()) != finished:
                await self._write_record(name, cursor, finished)

    async def _write_record(self, name: str, cursor: int, finished: Ranges) -> None:
        self._stored[name] = None  # not known until the answer is there
        pair = self._pairs.get(name) or self._new_pair(name)
        await pair.entry.resolve()
        if pair.entry.value is None:
            await pair.entry.set(_dump_entry(name))
        if pair.is_read:
            await pair.record.resolve()
        else:
            # The entry is ours, so a record here was left by a write that landed long after it was sent.
            await pair.record.read()
            pair.is_read = True
        if self._cursor_of(name, pair.record) != cursor or self._finished_of(pair.record) != finished:
            await pair.record.set(self._record(name, cursor, finished).dump())
        self._stored[name] = cursor
        self._stored_finished[name] = finished

    async def _remove(self, name: str) -> None:
        self._stored[name] = None
        await self._pairs[name].record.set(None)
        await self._pairs[name].entry.set(None)
        del self._pairs[name], self._stored[name]
        self._stored_finished.pop(name, None)

    def _new_pair(self, name: str) -> _Pair:
        entry = OwnedKey(self._metadata, f"{topic_key(self._root, self._topic)}/{key_part(name)}")
        self._pairs[name] = _Pair(entry, OwnedKey(self._metadata, record_key(self._root, name, self._topic)))
        return self._pairs[name]

    def _cursor_of(self, name: str, key: OwnedKey) -> int | None:
        """Return the cursor of a record, None if it has none of this generation."""
        if key.value is None:
            return None
        record = CursorRecord.load(key.key, key.value)
        if record.subscription != name:
            raise CorruptMetadataError(key.key, "it is another subscription's record")
        if record.generation > self._generation:
            raise CursorTakenError(key.key)
        return record.offset if record.generation == self._generation else None

    def _finished_of(self, key: OwnedKey) -> Ranges:
        """Return the finished ranges of a record of this generation."""
        return () if key.value is None else CursorRecord.load(key.key, key.value).finished

    def _record(self, name: str, cursor: int, finished: Ranges) -> CursorRecord:
        place = self._place(cursor - 1) if cursor > 0 else None
        snapshot, file = place or (None, None)
        return CursorRecord(name, self._generation, cursor, snapshot, file, self._clock.wall_us() // 1000, finished)


def _dump_entry(name: str) -> bytes:
    return json.dumps({"version": VERSION, "subscription": name}, separators=(",", ":")).encode()
