"""Checkpoint of a log's sealed files, so that opening need not read them: only a cache.

Deleting it costs time alone. Missing, damaged or outdated entries are ignored, and a reader that a wrong index entry
misleads starts over from the file's first byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from ister.core.frames.checksummed_json import seal, unseal

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
