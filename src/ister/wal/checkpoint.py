"""What a log remembers of its sealed files, so that it need not read them again: a cache, never the truth.

Deleting it changes nothing but time. A checkpoint that is missing, damaged or from another day is ignored entry by
entry, and a reader that an index entry misleads starts over from the file's first byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from ister.core.envelope import seal, unseal

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
    """Return the checkpoint's bytes."""
    return seal({"version": VERSION, "sealed": [[f.seq, f.first, f.stop, f.append_time_us, f.index] for f in sealed]})


def load_checkpoint(data: bytes) -> dict[int, SealedFile]:
    """Return the sealed files by sequence; empty when the bytes cannot be trusted."""
    try:
        content = unseal(data)
        if content["version"] != VERSION:
            return {}
        return {
            seq: SealedFile(seq, first, stop, time, tuple((offset, at) for offset, at in index))
            for seq, first, stop, time, index in content["sealed"]
        }
    except (ValueError, KeyError, TypeError):
        return {}
