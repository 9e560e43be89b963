"""Protocols of a log as the object tier uses it: synced messages, raw bytes, pruning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.aio.watermark import Watermark
    from ister.core.frames.columns import Scan
    from ister.core.frames.segment import LogPosition, RawRun
    from ister.core.offsets import StartPosition
    from ister.core.tiers.retention import SealedSegment


class FrameReader(Protocol):
    """Reads a log's frames in order."""

    async def read_frames(self) -> tuple[bytes, Scan]:
        """Return the next frames as they are stored, checked, with their scan."""


class SyncedLog(Protocol):
    """A log that can be uploaded."""

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""

    @property
    def next_offset(self) -> int:
        """The offset of the next message."""

    @property
    def synced_offset(self) -> int:
        """Every message below this offset survives power loss."""

    @property
    def append_watermark(self) -> Watermark:
        """The bytes of messages appended since the log was opened."""

    async def wait_beyond(self, offset: int) -> None:
        """Return once readers see a message at `offset` or behind it, or the log was closed."""

    async def sync(self) -> int:
        """Return the synced offset once every message appended so far survives power loss."""

    async def read_raw(self, offset: int, hint: LogPosition | None, bytes_max: int) -> RawRun:
        """Return bytes of the file that holds `offset`, from its frame on, unchecked; `hint` is where that may be."""

    def create_reader(self, position: StartPosition) -> FrameReader:
        """Return a reader from a position on."""


class PrunableLog(Protocol):
    """A log that can be pruned."""

    @property
    def log_start(self) -> int:
        """The oldest offset that the log itself holds."""

    @property
    def active_bytes(self) -> int:
        """The size of the active file."""

    async def dated_segments(self) -> Sequence[SealedSegment]:
        """Return the sealed files with their append times and sizes, oldest first."""

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`; return the log's new start offset."""
