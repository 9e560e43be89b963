"""Decide how the subscriptions' progress is kept in metadata: one record a subscription, and a list of them a topic.

    {root}/subscriptions/{subscription}/{namespace}/{topic}      the record: the truth
    {root}/topics/{namespace}/{topic}/{subscription}             that there may be a record

The root lies below `root_prefix`, so that two deployments on one metadata store do not share progress (I5).
Keys are ordered by subscription first, so a topic's records cannot be listed; the second key is there to find them. It
is written before the record and removed behind it: a crash in between leaves an entry without a record, and that counts
as no subscription, to be overwritten. In the other order a crash could leave a record that nobody finds, and with it a
subscription that is lost. Whoever makes the entry has the subscription: a second owner that makes it too is refused.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from ister.core.errors import CorruptMetadataError
from ister.ports.clock import SystemClock
from ister.ports.metadata.pages import entries
from ister.storage.cursors import NOTHING_FINISHED, SavedCursors, are_beyond, check_ranges, clip_ranges
from ister.storage.owned_key import CursorTakenError, OwnedKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ister.core.layout import Place
    from ister.core.names import TopicName
    from ister.ports.clock import Clock
    from ister.ports.metadata import Metadata
    from ister.storage.cursors import Ranges

log = structlog.get_logger()

OLD_ROOT = "/persistent_storage/iceberg"
"""Where earlier releases kept progress, whatever `root_prefix` was."""
VERSION = 1
PAGE = 500
PART_CHARS_MAX = 240
"""The longest part of a key that a subscription's name makes; a longer one is cut, and carries a hash."""
_HASH_CHARS = 32


def key_part(subscription: str) -> str:
    """Return a subscription's name as a part of a key: letters, digits and `_.-~` as they are, other bytes as %XX.

    That can be undone, except for a long name: it is cut, and `!` and a hash of the whole name follow. No name gives a
    `!` of its own, so the two kinds never meet.
    """
    part = quote(subscription, safe="", errors="surrogatepass")
    if len(part) <= PART_CHARS_MAX:
        return part
    digest = sha256(subscription.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    cut = re.sub("%[0-9A-F]?$", "", part[: PART_CHARS_MAX - _HASH_CHARS - 1])
    return f"{cut}!{digest}"


def progress_root(root_prefix: str) -> str:
    """Return what the keys of progress begin with."""
    return f"{root_prefix.rstrip('/')}{OLD_ROOT}"


def record_key(root: str, subscription: str, topic: TopicName) -> str:
    """Return the key of a subscription's record."""
    return f"{root}/subscriptions/{key_part(subscription)}/{topic.namespace}/{topic.topic}"


def topic_key(root: str, topic: TopicName) -> str:
    """Return the key that stands for a topic; the names of its subscriptions are below."""
    return f"{root}/topics/{topic.namespace}/{topic.topic}"


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """How far a subscription has got, and where the row just before its cursor was found."""

    subscription: str
    generation: int
    offset: int
    snapshot: int | None
    file: str | None
    time_ms: int
    finished: Ranges = ()
    """What is finished beyond the cursor, as of when the subscription was last stopped; earlier releases ignore it."""

    def dump(self) -> bytes:
        """Return the value that is stored."""
        content = {"version": VERSION, **asdict(self)}
        if not self.finished:
            del content["finished"]
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def load(cls, key: str, value: bytes) -> CursorRecord:
        """Return what a value says; CorruptMetadataError when it is not one of ours."""
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
    """Return the object that a value holds, of a version that this release knows."""
    try:
        content = json.loads(value)
        version = content["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadataError(key, f"it is not a record of ours ({type(error).__name__})") from None
    if not isinstance(content, dict) or version != VERSION:
        raise CorruptMetadataError(key, f"its version is {version!r}, this release knows {VERSION}")
    return content


@dataclass(slots=True)
class _Pair:
    """A subscription's two keys; whether the record was ever read."""

    entry: OwnedKey
    record: OwnedKey
    is_read: bool = False


class MetadataCursors(SavedCursors):
    """Progress of one topic and generation in metadata.

    A record of an earlier generation counts as absent, and is overwritten; one of a later generation means that this
    owner's topic is gone. `limit` is where the topic ended when it was opened, as for CursorFile. `place` says where a
    row is; it is asked for the one just below a cursor when that is saved. A save goes key by key: the ones that were
    written stay written when a later one fails, and `kept` counts on neither.
    """

    def __init__(
        self,
        metadata: Metadata,
        topic: TopicName,
        generation: int,
        limit: int,
        *,
        root: str,
        place: Callable[[int], Place | None],
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
        self._load_task: asyncio.Future[dict[str, int]] | None = None
        self._save_task: asyncio.Future[None] | None = None

    async def replace(self, cursors: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED) -> None:
        """Save exactly this progress, whatever was there; for a move, before anyone else uses this."""
        await self.load()
        await super().replace(cursors, finished)

    async def clear(self) -> None:
        """Remove every key of this topic's subscriptions, earlier generations' too. Nobody may use this afterwards."""
        await self.replace({})
        for name in list(self._pairs):
            await self._remove(name)

    def _begin_load(self) -> asyncio.Future[dict[str, int]]:
        self._load_task = asyncio.ensure_future(self._load())  # kept here: the loop holds a task by a weak reference
        return self._load_task

    def _begin_save(self, cursors: dict[str, int]) -> asyncio.Future[None]:
        assert self._loaded, "without its versions nothing can be written"
        self._save_task = asyncio.ensure_future(self._save(cursors))
        return self._save_task

    async def _load(self) -> dict[str, int]:
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
        beyond = are_beyond(cursors, self._finished, self._limit)
        if beyond:
            # In metadata too, and now: once the topic has grown past such a cursor, nobody could tell that it is wrong.
            cursors = {name: min(cursor, self._limit) for name, cursor in cursors.items()}
            self._finished = {name: clip_ranges(each, 0, self._limit) for name, each in self._finished.items()}
            await self._save(cursors)
            log.warning("cursors_cut_back", topic=str(self._topic), subscriptions=sorted(beyond), cursor=self._limit)
        return cursors

    async def _save(self, cursors: dict[str, int]) -> None:
        for name in [name for name in self._stored if name not in cursors]:
            await self._remove(name)
        for name, cursor in cursors.items():
            finished = clip_ranges(self._finished.get(name, ()), cursor, sys.maxsize)
            if self._stored.get(name) != cursor or self._stored_finished.get(name, ()) != finished:
                await self._write(name, cursor, finished)

    async def _write(self, name: str, cursor: int, finished: Ranges) -> None:
        self._stored[name] = None  # not known until the answer is there
        pair = self._pairs.get(name) or self._new_pair(name)
        await pair.entry.look()
        if pair.entry.value is None:
            await pair.entry.set(_dump_entry(name))
        if pair.is_read:
            await pair.record.look()
        else:
            # The entry is ours, so whatever stands here was left by a write that landed long after it was sent.
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
        """Return the cursor that a key holds, None when it holds none of this generation."""
        if key.value is None:
            return None
        record = CursorRecord.load(key.key, key.value)
        if record.subscription != name:
            raise CorruptMetadataError(key.key, "it is another subscription's record")
        if record.generation > self._generation:
            raise CursorTakenError(key.key)
        return record.offset if record.generation == self._generation else None

    def _finished_of(self, key: OwnedKey) -> Ranges:
        """Return what the record of this generation that a key holds says of offsets beyond its cursor."""
        return () if key.value is None else CursorRecord.load(key.key, key.value).finished

    def _record(self, name: str, cursor: int, finished: Ranges) -> CursorRecord:
        place = self._place(cursor - 1) if cursor > 0 else None
        snapshot, file = place or (None, None)
        return CursorRecord(name, self._generation, cursor, snapshot, file, self._clock.wall_us() // 1000, finished)


def _dump_entry(name: str) -> bytes:
    return json.dumps({"version": VERSION, "subscription": name}, separators=(",", ":")).encode()
