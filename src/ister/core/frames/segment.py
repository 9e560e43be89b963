"""Objects: byte-exact copies of a range of the log, with key, descriptor and index.

A key has the topic, generation and offsets, and no time. The descriptor is small enough for etcd: the index has an entry
about every 64 KiB, and never more than 4,096.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from ister.core.errors import CorruptMetadataError, CorruptObjectError
from ister.core.frames import kernels
from ister.core.frames.columns import NO_LIMIT, REASONS, byte_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.core.frames.columns import Frames
    from ister.core.names import TopicName

OBJECT_BYTES = 16 * 1024 * 1024
"""The largest size of an object, unless one message is larger: small enough for memory and for one put."""
INDEX_BYTES = 64 * 1024
"""The least distance between index entries."""
INDEX_ENTRIES_MAX = 4096
VERSION = 1

_STORED_NAMES = {"checksum": "crc32"}
"""The fields of a descriptor that are stored under another name."""
_KEY = re.compile(r"([A-Za-z0-9_-]+)/([A-Za-z0-9_-]+)/([0-9]+)/data-([0-9]{20})-([0-9]{20})\.dnb", re.ASCII)


class LogPosition(NamedTuple):
    """A byte in a log file."""

    seq: int
    byte: int


class RawRun(NamedTuple):
    """Bytes of one log file from a place on, not checked; the file's messages end at offset `limit`."""

    file: str
    place: LogPosition
    data: bytes
    limit: int


class ObjectName(NamedTuple):
    """The content of an object's key."""

    generation: int
    start: int
    stop: int


def topic_prefix(topic: TopicName) -> str:
    """Return the key prefix of a topic's objects."""
    return "/".join(topic.path_parts()) + "/"


def generation_prefix(topic: TopicName, generation: int) -> str:
    """Return the key prefix of one generation's objects."""
    return f"{topic_prefix(topic)}{generation}/"


def object_key(topic: TopicName, generation: int, start: int, stop: int) -> str:
    """Return the key of the object that holds the offsets [start, stop)."""
    return f"{generation_prefix(topic, generation)}data-{start:020}-{stop:020}.dnb"


def parse_key(key: str) -> ObjectName | None:
    """Return the content of a key, None if it is not one of ours."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    name = ObjectName(int(match[3]), int(match[4]), int(match[5]))
    return name if name.start < name.stop else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """The metadata record of one completed object."""

    generation: int
    epoch: int
    start: int
    stop: int
    size: int
    checksum: int
    etag: str
    append_time_us: int
    index: tuple[tuple[int, int], ...]

    def place(self, offset: int) -> tuple[int, int]:
        """Return the nearest (offset, byte) at or before `offset`."""
        return self.index[bisect_right(self.index, (offset, self.size)) - 1]

    def dump(self) -> bytes:
        """Return the stored form; the index as steps from entry to entry."""
        steps = [number for place in _steps(self.index) for number in place]
        stored = {_STORED_NAMES.get(name, name): getattr(self, name) for name in self.__slots__}
        content = {"version": VERSION, "completed": True, **stored, "index": steps}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def load(cls, key: str, value: bytes) -> Descriptor:
        """Parse the stored form; raise CorruptMetadataError if it is not what `dump` wrote."""
        try:
            content = json.loads(value)
            if content["version"] != VERSION:
                raise CorruptMetadataError(key, f"its version is {content['version']!r}, this release knows {VERSION}")
            steps = content["index"]
            offset, byte = content["start"], 0
            index = []
            for by_offset, by_byte in zip(steps[::2], steps[1::2], strict=True):
                offset += by_offset
                byte += by_byte
                index.append((offset, byte))
            content["index"] = tuple(index)
            found = cls(**{name: content[_STORED_NAMES.get(name, name)] for name in cls.__slots__})
            whole = content["completed"] is True and found._is_possible()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptMetadataError(
                key, f"it is not the description of an object ({type(error).__name__})"
            ) from None
        if not whole:
            raise CorruptMetadataError(key, "what it says of an object cannot be")
        return found

    def _is_possible(self) -> bool:
        numbers = (self.generation, self.epoch, self.start, self.stop, self.size, self.checksum, self.append_time_us)
        return (
            all(type(number) is int and number >= 0 for number in (*numbers, *chain(*self.index)))
            and self.start < self.stop
            and self.size > 0
            and self.checksum < 1 << 32
            and bool(self.index)
            and self.index[0] == (self.start, 0)
            and all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(self.index))
            and self.index[-1][0] < self.stop
            and self.index[-1][1] < self.size
            and isinstance(self.etag, str)
        )


class Survey(NamedTuple):
    """The result of `survey`: whole frames up to byte `end`, the code of the damage there, and index entries."""

    end: int
    next_offset: int
    append_time_us: int
    code: int
    places: tuple[tuple[int, int], ...]


def survey(data: Frames, first_offset: int, *, limit: int = NO_LIMIT) -> Survey:
    """Check every frame up to offset `limit`, and build the index."""
    view = byte_view(data)
    stride = max(INDEX_BYTES, -(-len(view) // INDEX_ENTRIES_MAX))
    places = np.empty((INDEX_ENTRIES_MAX, 2), np.int64)
    out = np.zeros(kernels.SCAN_FIELDS, np.int64)
    out[kernels.S_NEXT] = first_offset
    count = kernels.survey(view, len(view), first_offset, limit, stride, places, out)
    found = tuple((offset, byte) for offset, byte in places[:count].tolist())
    return Survey(
        int(out[kernels.S_END]),
        int(out[kernels.S_NEXT]),
        int(out[kernels.S_APPEND_TIME]),
        int(out[kernels.S_CODE]),
        found,
    )


def describe(data: Frames, key: str, name: ObjectName, *, epoch: int, etag: str) -> Descriptor:
    """Return the descriptor of an object; CorruptObjectError unless it has whole, dense frames of exactly its offsets."""
    found = survey(data, name.start)
    if found.end != len(data) or found.next_offset != name.stop:
        reason = REASONS.get(found.code, "it ends too early" if found.next_offset < name.stop else "it goes on too far")
        raise CorruptObjectError(key, found.end, found.next_offset, reason)
    return descriptor_of(data, found, name, epoch=epoch, etag=etag)


def descriptor_of(data: Frames, found: Survey, name: ObjectName, *, epoch: int, etag: str) -> Descriptor:
    """Return the descriptor of surveyed bytes; the first index entry is byte 0, though markers may be there."""
    return Descriptor(
        generation=name.generation,
        epoch=epoch,
        start=name.start,
        stop=name.stop,
        size=len(data),
        checksum=crc32(data),
        etag=etag,
        append_time_us=found.append_time_us,
        index=((name.start, 0), *found.places[1:]),
    )


def _steps(index: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    before = (index[0][0], 0)
    for offset, byte in index:
        yield offset - before[0], byte - before[1]
        before = (offset, byte)
