"""Errors of tables and catalogs; each message ends with the operator's next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from ister.core.errors import BusyError, CorruptError, FencedError, UnknownOutcomeError
from ister.core.table.commit import Refused, Why

if TYPE_CHECKING:
    from ister.core.errors import IsterError


FORMAT_VERSION_MAX = 2
"""PyIceberg writes no manifests of a newer one."""


def error_text(error: BaseException | str) -> str:
    """Return an exception's type and message; a text as it is."""
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"


class CommitRefusedError(FencedError):
    """Another owner has claimed the table: this writer must stop."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(f"table {table} takes no commit: {reason}; nothing was changed, stop: another one carries on")


class CommitMisplacedError(BusyError):
    """An append that does not start at the table's committed offset; refresh the table and plan again."""

    def __init__(self, table: str, reason: str) -> None:
        self.table, self.reason = table, reason
        super().__init__(f"table {table} takes no such commit: {reason}; nothing was changed, plan again from its end")


class TableMovedError(CorruptError):
    """The table is not what was last committed: rolled back, emptied, replaced or dropped."""

    def __init__(self, table: str, found: str, text: str = "") -> None:
        self.table, self.found = table, found
        super().__init__(
            text
            or f"table {table} is not as it was left: {found}; its topic is not committed to it any more, "
            "run `ister lake repair` to append what is missing from the log or the objects"
        )


class OutsideWarehouseError(TableMovedError):
    """A table has files outside of the configured local warehouse, as in a data directory that was copied or moved."""

    def __init__(self, table: str, place: str, warehouse: str) -> None:
        self.place, self.warehouse = place, warehouse
        super().__init__(
            table,
            f"{place} lies outside of the warehouse {warehouse}",
            f"table {table} has files at {place}, outside of the configured warehouse {warehouse}: catalog.db "
            "and Iceberg's metadata name files by absolute paths, so in a moved or copied data directory they are still the "
            "original's, and nothing is written, expired or deleted there; run `ister lake relocate` to give the tables the "
            "paths of this directory",
        )


class UnsupportedFormatError(TableMovedError):
    """The table was upgraded to a format version that PyIceberg cannot write."""

    def __init__(self, table: str, version: int) -> None:
        self.version = version
        super().__init__(
            table,
            f"its format version is {version}",
            f"table {table} has Iceberg's format version {version}, and Ister writes version {FORMAT_VERSION_MAX} at "
            "most: it can be read and nothing is appended to it. A version cannot be lowered: rename the table, and the "
            "pipeline makes another one from log and objects if these still hold every message, or turn the topic's table "
            "off (lake=false)",
        )


class LakeUnavailableError(BusyError):
    """The catalog or the warehouse is unreachable or fails; no snapshot was committed."""

    def __init__(self, table: str, action: str, cause: str | BaseException) -> None:
        self.table, self.action, self.cause = table, action, error_text(cause)
        super().__init__(f"could not {action} table {table}: {self.cause}; nothing was committed, try again later")


class MissingRowsError(CorruptError):
    """Rows below the table's committed offset are not in it."""

    def __init__(self, table: str, start: int, stop: int, partition: int = 0) -> None:
        self.table, self.start, self.stop, self.partition = table, start, stop, partition
        super().__init__(
            f"table {table} does not have offsets {start} to {stop - 1} of partition {partition}, which it says it holds; "
            "run `ister lake repair` if the log or the objects still have them, or read with on_missing: skip"
        )


class CorruptRowsError(CorruptError):
    """A row or a data file differs from what was committed."""

    def __init__(self, table: str, file: str, reason: str) -> None:
        self.table, self.file, self.reason = table, file, reason
        super().__init__(f"table {table}, file {file}: {reason}; nothing of it is delivered")


class CommitConflictError(BusyError):
    """Every attempt lost to a concurrent commit; no snapshot was committed."""

    def __init__(self, table: str, tries: int, cause: str | BaseException) -> None:
        self.table, self.tries, self.cause = table, tries, error_text(cause)
        super().__init__(
            f"table {table} was changed by others each time, in {tries} tries ({self.cause}); nothing was committed, try again"
        )


class CommitUnknownError(UnknownOutcomeError):
    """A commit may or may not have landed, and the table cannot be read to find out."""

    def __init__(self, table: str, cause: str | BaseException) -> None:
        self.table, self.cause = table, error_text(cause)
        super().__init__(
            f"table {table} may or may not have the commit ({self.cause}); delete none of its files, and offer the same again "
            "once the catalog answers: what has landed is not committed twice"
        )


def refusal(table: str, refused: Refused) -> IsterError:
    """Return the error for a refused commit; its class says who must stop, or that the caller plans again."""
    match refused.why:
        case Why.EPOCH:
            return CommitRefusedError(table, refused.reason)
        case Why.FOREIGN:
            return TableMovedError(table, refused.reason)
        case Why.UNCLAIMED | Why.GAP:
            return CommitMisplacedError(table, refused.reason)
        case _:
            assert_never(refused.why)
