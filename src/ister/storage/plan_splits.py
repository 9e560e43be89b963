"""Split planning: byte ranges of log files and objects that hold a topic's messages, for tasks that read them directly.

Every range is exact: its frames are those of its offsets and no others. The index of a log file is a cache, so each of its
entries is verified before use; an object's index was computed from its bytes and is part of its descriptor.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ister.aio.background import in_background
from ister.core.errors import CorruptLogError, CorruptObjectError, OffsetOutOfRangeError
from ister.core.frames.columns import REASONS, scan_run
from ister.core.frames.frame import HEADER, HEADER_BYTES
from ister.core.frames.scanner import FrameScanner
from ister.core.tiers.splits import Split
from ister.ports.objects.checked import read_checked
from ister.wal.directory import READ_BYTES, unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.frames.segment import Descriptor
    from ister.ports.files.files import File, Files
    from ister.storage.tiered_reader import ObjectTier
    from ister.storage.wal_storage import WalStorage
    from ister.wal.directory import Segment

ATTEMPTS_MAX = 3
"""How often a plan is retried when retention deletes a log file meanwhile."""


async def plan_splits(
    storage: WalStorage, start: int, stop: int, *, with_log: bool, split_bytes: int, splits_max: int
) -> list[Split]:
    """Cover the offsets from `start` on, in order and without a hole, up to `stop` or as far as `splits_max` reach.

    With the log, objects serve only what the log does not have any more; without it, only objects are used.
    """
    objects = storage.objects
    assert objects is not None, "every topic of a factory has objects, if only none yet"
    attempts = 0
    splits: list[Split] = []
    at = start
    while at < stop and len(splits) < splits_max:
        if with_log and at >= storage.log_start:
            try:
                splits += await _log_splits(storage, at, stop, split_bytes)
            except FileNotFoundError as error:
                attempts += 1
                if attempts == ATTEMPTS_MAX:
                    segment, end = _locate(storage, at)
                    raise unreadable(segment, end, error) from error
                continue
        elif at < objects.span.stop:
            splits += await _object_splits(objects, at, split_bytes)
        else:
            break
        at = splits[-1].stop
    return splits[:splits_max]


# --- the log ----------------------------------------------------------------------------------------------------------


async def _log_splits(storage: WalStorage, start: int, stop: int, split_bytes: int) -> list[Split]:
    """Return the splits of one file."""
    segment, end = _locate(storage, start)
    index = tuple(segment.index)  # the log goes on adding entries meanwhile
    return await in_background(
        partial(_file_splits, storage.wal.files, segment, index, start, min(stop, end), split_bytes)
    )


def _locate(storage: WalStorage, offset: int) -> tuple[Segment, int]:
    found = storage.wal.locate(offset)
    if found is None:
        raise OffsetOutOfRangeError(offset, storage.start_offset, storage.next_offset)
    return found


def _file_splits(
    files: Files, segment: Segment, index: Sequence[tuple[int, int]], start: int, stop: int, split_bytes: int
) -> list[Split]:
    try:
        file = files.open_read(segment.path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(segment, stop, error) from error
    try:
        first, last = (_byte_of(file, segment, index, offset) for offset in (start, stop))
        whole = Split(start, stop, first, last, path=str(segment.path.absolute()))  # readers have other directories
        splits = whole.divide(index, split_bytes)
        if all(_is_frame(file, split.stop, split.stop_byte) for split in splits[:-1]):
            return splits
        return whole.divide([entry for entry in index if _is_frame(file, *entry)], split_bytes)
    except OSError as error:
        raise unreadable(segment, stop, error) from error
    finally:
        file.close()


def _is_frame(file: File, offset: int, byte: int) -> bool:
    """Return True if a frame that may be that of the offset begins there; a marker has the next message's offset."""
    header = file.read(byte, HEADER_BYTES)
    return len(header) == HEADER_BYTES and HEADER.unpack(header)[0] == offset


def _byte_of(file: File, segment: Segment, index: Sequence[tuple[int, int]], offset: int) -> int:
    """Return where the frames below `offset` end."""
    known = max((entry for entry in index if entry[0] <= offset), default=(segment.first, 0))
    try:
        return _scan_to(file, segment, known, offset)
    except CorruptLogError:
        if known[1] == 0:
            raise
        return _scan_to(file, segment, (segment.first, 0), offset)  # the index is a cache


def _scan_to(file: File, segment: Segment, known: tuple[int, int], offset: int) -> int:
    expected, at = known
    if expected == offset and at > 0 and not _is_frame(file, expected, at):
        raise CorruptLogError(str(segment.path), at, offset, "a place to seek by is wrong")
    scanner = FrameScanner(str(segment.path), expected, at, READ_BYTES, limit=offset)
    while scanner.offset < offset:
        scanner.feed(file.read(scanner.byte, scanner.need))
    return scanner.byte


# --- objects ----------------------------------------------------------------------------------------------------------


async def _object_splits(objects: ObjectTier, start: int, split_bytes: int) -> list[Split]:
    """Return the splits of one object."""
    catalog = objects.reader.catalog
    descriptor = await catalog.find(start)
    if descriptor is None:
        raise OffsetOutOfRangeError(start, objects.span.start, objects.span.stop)
    key = catalog.object_key(descriptor)
    near = descriptor.place(start)
    byte = near[1] if near[0] == start else await _byte_in_object(objects, descriptor, key, near, start)
    size = descriptor.size
    whole = Split(start, descriptor.stop, byte, size, key=key, etag=descriptor.etag, object_bytes=size)
    return whole.divide(descriptor.index, split_bytes)


async def _byte_in_object(
    objects: ObjectTier, descriptor: Descriptor, key: str, near: tuple[int, int], offset: int
) -> int:
    """Return where the frames below `offset` end; reads what lies between two entries of the index."""
    near_offset, near_byte = near
    stop = next((byte for at, byte in descriptor.index if at > offset), descriptor.size)

    def check(data: bytes) -> int:
        scan = scan_run(data, first_offset=near_offset, limit=offset)
        if scan.next_offset != offset:
            reason = REASONS.get(scan.code, "it ends too early")
            raise CorruptObjectError(key, near_byte + scan.end, scan.next_offset, reason)
        return near_byte + scan.end

    return await read_checked(objects.reader.store, key, near_byte, stop, etag=descriptor.etag, check=check)
