"""What a topic's table is asked for, as the last of its tiers; `ister.lake.topic_table` answers from Iceberg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ister.core.handoff import Span
from ister.core.layout import NO_TABLE, Place, TableEnd

if TYPE_CHECKING:
    from ister.core.message import StreamMessage


class TableStream(Protocol):
    """An ordered stream of messages from a table; close it when you stop early."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""
        ...

    @property
    def skipped_upto(self) -> int:
        """The offset behind the last one that is missing and was skipped, as it was told to; 0 when none was."""
        ...

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, a bounded number; none at the end."""
        ...

    async def close(self) -> None:
        """Stop reading ahead."""
        ...


class TopicTable(Protocol):
    """The rows of one topic, or of one partition of a topic, in its table.

    Every call may raise LakeUnavailableError (nothing happened, try later) and TableMovedError (rolled back, replaced,
    dropped).
    """

    async def look(self) -> TableEnd:
        """Ask the catalog how far the table goes now; NO_TABLE when there is none."""
        ...

    def open(self, start: int, stop: int) -> TableStream:
        """Read the messages [start, stop), in order, each once, whatever happens to the table's files meanwhile.

        MissingRowsError when the newest snapshot does not hold them all.
        """
        ...

    async def prove(self, start: int, stop: int) -> None:
        """Return once the newest snapshot was seen to hold every offset of [start, stop); MissingRowsError when it does not."""
        ...

    def place(self, offset: int) -> Place | None:
        """Return where an offset is in the snapshot that was last looked at; None when it is not there. Asks nobody."""
        ...

    async def close(self) -> None:
        """Let go of files and threads; streams end."""
        ...


@dataclass(slots=True)
class TableTier:
    """A topic's table as the last of its tiers; `end` is what is known of it, which only grows.

    A table holds a topic from offset 0 on.
    """

    table: TopicTable
    end: TableEnd = NO_TABLE

    @property
    def span(self) -> Span:
        """The offsets that the table holds, as far as is known."""
        return Span(0, self.end.upto)

    def reached(self, end: TableEnd) -> None:
        """Note how far the table is now; what is less than is known already comes late, and changes nothing."""
        if end.upto > self.end.upto:
            self.end = end
