"""What a log remembers of its sealed files, so that it need not read them again: a cache, never the truth.

Deleting it changes nothing but time. A checkpoint that is missing, damaged or from another day is ignored entry by
entry, and a reader that an index entry misleads starts over from the file's first byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from zlib import crc32

CHECKPOINT_NAME = "checkpoint.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One sealed file: its offsets [first, stop), its last append time, and (offset, byte) pairs to seek by."""

    seq: int
    first: int
    stop: int
    append_time_us: int
    index: tuple[tuple[int, int], ...]


def dump_checkpoint(sealed: list[SealedFile]) -> bytes:
    """Return the checkpoint's bytes: a line with the CRC of the second line, and that line."""
    body = json.dumps(
        {"version": VERSION, "sealed": [[f.seq, f.first, f.stop, f.append_time_us, f.index] for f in sealed]},
        separators=(",", ":"),
    ).encode()
    return b"%08x\n%s\n" % (crc32(body), body)


def load_checkpoint(data: bytes) -> dict[int, SealedFile]:
    """Return the sealed files by sequence; empty when the bytes cannot be trusted."""
    crc, _, body = data.partition(b"\n")
    body = body.rstrip(b"\n")
    try:
        if int(crc, 16) != crc32(body):
            return {}
        content = json.loads(body)
        if content["version"] != VERSION:
            return {}
        return {
            seq: SealedFile(seq, first, stop, time, tuple((offset, at) for offset, at in index))
            for seq, first, stop, time, index in content["sealed"]
        }
    except (ValueError, KeyError, TypeError):
        return {}
