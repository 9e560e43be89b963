"""The table as the last tier of a topic; `ister.lake.topic_table` implements TopicTable with Iceberg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ister.core.table.data_files import NO_TABLE, RowLocation, TableEnd
from ister.core.tiers.selection import OffsetRange

if TYPE_CHECKING:
    from ister.core.reader import MessageReader


class TopicTable(Protocol):
    """The rows of one topic, or of one partition of a topic, in its table.

    Every call may raise LakeUnavailableError (nothing happened, try later) and TableMovedError (rolled back, replaced or
    dropped).
    """

    async def look(self) -> TableEnd:
        """Ask the catalog for the table's end; NO_TABLE if there is no table."""
        ...

    def open(self, start: int, stop: int) -> MessageReader:
        """Read the messages [start, stop), in order, each once, even if the table's files are replaced meanwhile.

        MissingRowsError if the newest snapshot does not hold them all.
        """
        ...

    async def prove(self, start: int, stop: int) -> None:
        """Check that the newest snapshot holds every offset of [start, stop); MissingRowsError if it does not."""
        ...

    def place(self, offset: int) -> RowLocation | None:
        """Return where an offset is in the last known snapshot, None if it is not there. No I/O."""
        ...

    async def close(self) -> None:
        """Close files and threads; readers end."""
        ...


@dataclass(slots=True)
class TableTier:
    """A topic's table, which holds it from offset 0 on; `end` is its known end, which only grows."""

    table: TopicTable
    end: TableEnd = NO_TABLE

    @property
    def span(self) -> OffsetRange:
        """The offsets that the table holds, as far as known."""
        return OffsetRange(0, self.end.upto)

    def reached(self, end: TableEnd) -> None:
        """Record the table's end; a lower one than known is late, and ignored."""
        if end.upto > self.end.upto:
            self.end = end
