"""Decide where a topic's messages lie: byte ranges of log files and of objects, for tasks that read them by themselves.

Every range is exact: its frames are those of its offsets and no others. What an index says of a log file is a cache, so
each place is looked at before it is told; an object's index was made from its bytes and is part of its description.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ister.core import kernels
from ister.core.columns import REASONS, scan_run
from ister.core.errors import CorruptLogError, CorruptObjectError, OffsetOutOfRangeError
from ister.core.frame import HEADER, HEADER_BYTES
from ister.core.splits import Cut, Share, share_out
from ister.ports.background import in_background
from ister.ports.objects.checked import read_checked
from ister.wal.directory import READ_BYTES, unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.segment import Descriptor
    from ister.ports.files import File, Files
    from ister.storage.tiers import ObjectTier
    from ister.storage.wal_storage import WalStorage
    from ister.wal.directory import Segment

LOOKS = 3
"""How often a plan is made anew when retention takes a file away meanwhile."""


class LogPart(NamedTuple):
    """Frames in a file of the log."""

    share: Share
    path: str


class ObjectPart(NamedTuple):
    """Frames in an object."""

    share: Share
    key: str
    etag: str
    size: int


async def plan_parts(
    storage: WalStorage, start: int, stop: int, *, with_log: bool, split_bytes: int, parts_max: int
) -> list[LogPart | ObjectPart]:
    """Cover the offsets from `start` on, in order and without a hole, up to `stop` or as far as `parts_max` reach.

    With the log, objects serve only what the log does not have any more; without it, only what is in objects is given.
    """
    objects = storage.objects
    assert objects is not None, "every topic of a factory has objects, if only none yet"
    looks = 0
    parts: list[LogPart | ObjectPart] = []
    at = start
    while at < stop and len(parts) < parts_max:
        found: Sequence[LogPart | ObjectPart]
        if with_log and at >= storage.log_start:
            try:
                found = await _log_parts(storage, at, stop, split_bytes)
            except FileNotFoundError as error:
                looks += 1
                if looks == LOOKS:
                    gone, end = _locate(storage, at)
                    raise unreadable(gone, end, error) from error
                continue
        elif at < objects.span.stop:
            found = await _object_parts(objects, at, split_bytes)
        else:
            break
        parts += found
        at = parts[-1].share.stop.offset
    return parts[:parts_max]


# --- the log ----------------------------------------------------------------------------------------------------------


async def _log_parts(storage: WalStorage, start: int, stop: int, split_bytes: int) -> list[LogPart]:
    """Return the parts of one file."""
    segment, end = _locate(storage, start)
    places = tuple(segment.index)  # the log goes on noting places meanwhile
    work = partial(_look_at_file, storage.wal.files, segment, places, start, min(stop, end), split_bytes)
    path = str(segment.path.absolute())  # whoever reads it may be in another directory
    return [LogPart(share, path) for share in await in_background(work)]


def _locate(storage: WalStorage, offset: int) -> tuple[Segment, int]:
    found = storage.wal.locate(offset)
    if found is None:
        raise OffsetOutOfRangeError(offset, storage.start_offset, storage.next_offset)
    return found


def _look_at_file(
    files: Files, segment: Segment, places: Sequence[tuple[int, int]], start: int, stop: int, split_bytes: int
) -> list[Share]:
    try:
        file = files.open_read(segment.path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(segment, stop, error) from error
    try:
        first = Cut(start, _byte_of(file, segment, places, start))
        last = Cut(stop, _byte_of(file, segment, places, stop))
        wanted = share_out(first, places, last, split_bytes)
        if all(_stands(file, share.stop) for share in wanted[:-1]):
            return wanted
        return share_out(first, [place for place in places if _stands(file, Cut(*place))], last, split_bytes)
    except OSError as error:
        raise unreadable(segment, stop, error) from error
    finally:
        file.close()


def _stands(file: File, cut: Cut) -> bool:
    """Tell whether a frame that may be that of the offset begins there; a marker has the next message's offset."""
    header = file.read(cut.byte, HEADER_BYTES)
    return len(header) == HEADER_BYTES and HEADER.unpack(header)[0] == cut.offset


def _byte_of(file: File, segment: Segment, places: Sequence[tuple[int, int]], offset: int) -> int:
    """Return where the frames below `offset` end."""
    known = max((place for place in places if place[0] <= offset), default=(segment.first, 0))
    try:
        return _walk(file, segment, known, offset)
    except CorruptLogError:
        if known[1] == 0:
            raise
        return _walk(file, segment, (segment.first, 0), offset)  # a place to seek by is a cache


def _walk(file: File, segment: Segment, known: tuple[int, int], offset: int) -> int:
    expected, at = known
    if expected == offset and at > 0 and not _stands(file, Cut(expected, at)):
        raise CorruptLogError(str(segment.path), at, offset, "a place to seek by is wrong")
    count = READ_BYTES
    while expected < offset:
        data = file.read(at, count)
        scan = scan_run(data, first_offset=expected, limit=offset)
        if scan.end:
            at += scan.end
            expected = scan.next_offset
            count = READ_BYTES
        elif scan.code == kernels.NEED_MORE and len(data) == count:
            count = HEADER_BYTES + HEADER.unpack_from(data)[1]
        else:
            reason = REASONS.get(scan.code, "the file ends too early")
            raise CorruptLogError(str(segment.path), at, expected, reason)
    return at


# --- objects ----------------------------------------------------------------------------------------------------------


async def _object_parts(objects: ObjectTier, start: int, split_bytes: int) -> list[ObjectPart]:
    """Return the parts of one object."""
    catalog = objects.reader.catalog
    descriptor = await catalog.find(start)
    if descriptor is None:
        raise OffsetOutOfRangeError(start, objects.span.start, objects.span.stop)
    key = catalog.object_key(descriptor)
    first = Cut(*descriptor.place(start))
    if first.offset < start:
        first = Cut(start, await _byte_in_object(objects, descriptor, key, first, start))
    shares = share_out(first, descriptor.index, Cut(descriptor.stop, descriptor.size), split_bytes)
    return [ObjectPart(share, key, descriptor.etag, descriptor.size) for share in shares]


async def _byte_in_object(objects: ObjectTier, descriptor: Descriptor, key: str, near: Cut, offset: int) -> int:
    """Return where the frames below `offset` end; reads what lies between two places of the index."""
    stop = next((byte for at, byte in descriptor.index if at > offset), descriptor.size)

    def check(data: bytes) -> int:
        scan = scan_run(data, first_offset=near.offset, limit=offset)
        if scan.next_offset != offset:
            reason = REASONS.get(scan.code, "it ends too early")
            raise CorruptObjectError(key, near.byte + scan.end, scan.next_offset, reason)
        return near.byte + scan.end

    return await read_checked(objects.reader.store, key, near.byte, stop, etag=descriptor.etag, check=check)
