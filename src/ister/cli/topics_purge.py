"""Drop the table of a topic that is deleted: first the topic goes, then the table, so that nobody appends to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchTableError

from ister.cli.display import notice
from ister.cli.lake import looking_at
from ister.config.lake import require_shared_catalog
from ister.core.errors import BusyError
from ister.core.names import TopicName
from ister.core.tables import base_of
from ister.lake.repair import find_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.config import Config
    from ister.rpc import ister_v1_pb2 as pb


class TableNotDroppedError(BusyError):
    """The topic is deleted, and its table is still there."""

    def __init__(self, topic: str, table: str, cause: str) -> None:
        self.topic = topic
        self.table = table
        self.cause = cause
        super().__init__(
            f'{topic} is deleted, but its table {table} is not ({cause}); drop it with `ister sql "DROP TABLE {table} PURGE"`'
        )


class TopicTable:
    """The table of one topic, or of all partitions of one; found before anything is deleted, so that all can be refused."""

    def __init__(self, config: Config, topic: str, found: Sequence[pb.TopicDetail]) -> None:
        require_shared_catalog(config, "--purge")
        self._config = config
        self._topic = topic
        self.name = ""
        with looking_at(config) as catalog:
            if catalog is not None:
                table = find_table(catalog, base_of(TopicName.parse(topic)), max(one.generation for one in found))
                self.name = "" if table is None else ".".join(table.name())

    def what_is_lost(self) -> str:
        """Say what dropping it would destroy."""
        return f"So will be its table {self.name}." if self.name else "It has no table."

    def drop(self) -> None:
        """Drop it with all its files; the topic is deleted by now."""
        if not self.name:
            notice(f"ister: {self._topic} has no table")
            return
        try:
            with looking_at(self._config) as catalog:
                assert catalog is not None, "it was there"
                catalog.purge_table(self.name)
        except NoSuchTableError:
            return
        except Exception as error:
            raise TableNotDroppedError(self._topic, self.name, f"{type(error).__name__}: {error}") from error
