"""What an object is: a byte-exact copy of a range of the log, its name, its description, and places in it to seek by.

An object's key says its topic, generation and offsets, and no time. Its description is small enough for etcd: the index
has an entry about every 64 KiB, and never more than 4,096.
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

from ister.core import kernels
from ister.core.columns import NO_LIMIT, REASONS
from ister.core.errors import CorruptMetadataError, CorruptObjectError
from ister.core.frame import HEADER, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.core.columns import Frames
    from ister.core.names import TopicName

OBJECT_BYTES = 16 * 1024 * 1024
"""Where an object is cut, unless one message is larger: small enough to be held in memory and put in one call."""
INDEX_BYTES = 64 * 1024
"""How far apart the places are that a reader can seek, at least."""
INDEX_ENTRIES_MAX = 4096
VERSION = 1

_KEY = re.compile(r"([A-Za-z0-9_-]+)/([A-Za-z0-9_-]+)/([0-9]+)/data-([0-9]{20})-([0-9]{20})\.dnb", re.ASCII)


class Place(NamedTuple):
    """A byte in a log file."""

    seq: int
    byte: int


class RawRun(NamedTuple):
    """Bytes of one log file from a place on, not checked; the file's messages end at offset `limit`."""

    file: str
    place: Place
    data: bytes
    limit: int


class ObjectName(NamedTuple):
    """What an object's key says."""

    generation: int
    start: int
    stop: int


def topic_prefix(topic: TopicName) -> str:
    """Return what the keys of a topic's objects begin with."""
    return "/".join(topic.path_parts()) + "/"


def generation_prefix(topic: TopicName, generation: int) -> str:
    """Return what the keys of one generation's objects begin with."""
    return f"{topic_prefix(topic)}{generation}/"


def object_key(topic: TopicName, generation: int, start: int, stop: int) -> str:
    """Return the key of the object that holds the offsets [start, stop)."""
    return f"{generation_prefix(topic, generation)}data-{start:020}-{stop:020}.dnb"


def parse_key(key: str) -> ObjectName | None:
    """Return what a key says, None when it is not one of ours."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    name = ObjectName(int(match[3]), int(match[4]), int(match[5]))
    return name if name.start < name.stop else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What metadata says of one completed object."""

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
        """Return it as metadata keeps it; the index as steps from entry to entry."""
        steps = [number for place in _steps(self.index) for number in place]
        content = {
            "version": VERSION,
            "completed": True,
            "generation": self.generation,
            "epoch": self.epoch,
            "start": self.start,
            "stop": self.stop,
            "size": self.size,
            "crc32": self.checksum,
            "etag": self.etag,
            "append_time_us": self.append_time_us,
            "index": steps,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def load(cls, key: str, value: bytes) -> Descriptor:
        """Read it back; CorruptMetadataError when that is not what `dump` wrote."""
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
            found = cls(
                generation=content["generation"],
                epoch=content["epoch"],
                start=content["start"],
                stop=content["stop"],
                size=content["size"],
                checksum=content["crc32"],
                etag=content["etag"],
                append_time_us=content["append_time_us"],
                index=tuple(index),
            )
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
    """What was found in a run of frames: whole frames up to byte `end`, and what is wrong there, if anything."""

    end: int
    next_offset: int
    append_time_us: int
    code: int
    places: tuple[tuple[int, int], ...]


def survey(data: Frames, first_offset: int, *, limit: int = NO_LIMIT) -> Survey:
    """Check every frame of a run up to offset `limit`, and note places to seek by."""
    view = np.frombuffer(data, np.uint8)
    view.flags.writeable = False  # one type for numba, whatever holds the bytes
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
    """Describe an object by its bytes; CorruptObjectError unless they are whole, dense frames of exactly its offsets."""
    found = survey(data, name.start)
    if found.end != len(data) or found.next_offset != name.stop:
        reason = REASONS.get(found.code, "it ends too early" if found.next_offset < name.stop else "it goes on too far")
        raise CorruptObjectError(key, found.end, found.next_offset, reason)
    return descriptor_of(data, found, name, epoch=epoch, etag=etag)


def descriptor_of(data: Frames, found: Survey, name: ObjectName, *, epoch: int, etag: str) -> Descriptor:
    """Describe bytes that were surveyed; the first place is byte 0, though markers may stand there."""
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


def frame_bytes(view: memoryview, at: int) -> int:
    """Return how long the frame is that does not fit into the window; a header that is cut short is a frame too."""
    if at + HEADER_BYTES > len(view):
        return len(view) - at
    _, length, _ = HEADER.unpack_from(view, at)
    return HEADER_BYTES + int(length)


def _steps(index: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    before = (index[0][0], 0)
    for offset, byte in index:
        yield offset - before[0], byte - before[1]
        before = (offset, byte)
