"""A clock that only moves when it is told, for tables whose hour is over in minutes.

Our commits ask it (`LakeCatalog(now_ms=...)`), and so does maintenance (`Upkeep(now_ms=...)`). Iceberg's procedures run in Java, whose
clock nobody can inject: what it has stamped is stamped again, by this clock, before the next commit. So the virtual hour
must lie in the past: Java refuses to go on from a snapshot of the future.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyiceberg.serializers import ToOutputFile

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class VirtualClock:
    """Milliseconds since 1970, as far as it was set."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def stamp_again(catalog: Catalog, name: str, clock: VirtualClock) -> None:
    """Have nothing in a table's metadata be younger than the clock says; nobody else commits meanwhile."""

    def not_younger(entries):
        return [one.model_copy(update={"timestamp_ms": min(one.timestamp_ms, clock.ms)}) for one in entries]

    table = catalog.load_table(name)
    old = table.metadata
    metadata = old.model_copy(
        update={
            "last_updated_ms": min(old.last_updated_ms, clock.ms),
            "snapshots": not_younger(old.snapshots),
            "snapshot_log": not_younger(old.snapshot_log),
            "metadata_log": not_younger(old.metadata_log),
        }
    )
    version = int(table.metadata_location.rpartition("/")[2].partition("-")[0]) + 1
    location = f"{table.location()}/metadata/{version:05d}-{uuid.uuid4()}.metadata.json"
    ToOutputFile.table_metadata(metadata, table.io.new_output(location))
    catalog.drop_table(name)  # the row alone: its files stay
    catalog.register_table(name, location)
