"""Splits: contiguous offset ranges of log files and objects, from planning to the task that reads them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SPLIT_BYTES = 16 * 1024 * 1024
"""Default size of a split: a task decodes it whole, in about seven times the memory."""
SPLIT_BYTES_MIN = 64 * 1024
"""No index has closer entries."""
SPLITS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Split:
    """The whole frames of offsets [start, stop): bytes [start_byte, stop_byte) of a log file or of an object."""

    start: int
    stop: int
    start_byte: int
    stop_byte: int
    path: str = ""
    """Of a log file; empty for an object."""
    key: str = ""
    etag: str = ""
    object_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Return the size of the frames."""
        return self.stop_byte - self.start_byte

    def divide(self, index: Iterable[tuple[int, int]], split_bytes: int) -> list[Split]:
        """Return splits of about `split_bytes` that cover this one exactly; entries outside of it are ignored.

        Each ends at the first (offset, byte) of the index where it is large enough, so it is larger than that by at most
        what lies between two entries.
        """
        splits: list[Split] = []
        rest = self
        for offset, byte in index:
            is_inside = rest.start < offset < self.stop and byte < self.stop_byte
            if is_inside and byte - rest.start_byte >= split_bytes:
                splits.append(replace(rest, stop=offset, stop_byte=byte))
                rest = replace(rest, start=offset, start_byte=byte)
        return [*splits, rest] if rest.start < self.stop else splits
