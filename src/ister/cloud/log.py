"""What the cloud tier asks of a log: only what is synced, and its bytes as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.columns import Scan
    from ister.core.offsets import StartPosition
    from ister.core.retain import SealedSegment
    from ister.core.segment import Place, RawRun
    from ister.ports.progress import Progress


class FrameReader(Protocol):
    """Reads a log's frames in order."""

    async def read_frames(self) -> tuple[bytes, Scan]:
        """Return the next frames as they are stored, checked, with what was found in them."""
        ...


class SyncedLog(Protocol):
    """A log that can be carried away."""

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        ...

    @property
    def synced_offset(self) -> int:
        """Every message below this offset survives power loss."""
        ...

    @property
    def append_progress(self) -> Progress:
        """How many bytes of messages were appended since the log was opened."""
        ...

    async def wait_beyond(self, offset: int) -> None:
        """Return once readers see a message at `offset` or behind it, or the log was closed."""
        ...

    async def sync(self) -> int:
        """Return once every message given so far survives power loss; returns the synced offset."""
        ...

    async def read_raw(self, offset: int, hint: Place | None, bytes_max: int) -> RawRun:
        """Return bytes of the file that holds `offset`, from its frame on, unchecked; `hint` is where that may be."""
        ...

    def create_reader(self, position: StartPosition) -> FrameReader:
        """Read from a position on."""
        ...


class PrunableLog(Protocol):
    """A log that can be cut off at its old end."""

    @property
    def log_start(self) -> int:
        """The oldest offset that the log itself holds."""
        ...

    @property
    def active_bytes(self) -> int:
        """How many bytes the file has that is being written."""
        ...

    async def dated_segments(self) -> Sequence[SealedSegment]:
        """Return the sealed files with their append times and sizes, oldest first."""
        ...

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`; returns the log's new start offset."""
        ...
