"""A virtual clock, so that an hour of commits takes minutes.

Our commits use it (`LakeCatalog(now_ms=...)`), and so does maintenance (`Upkeep(now_ms=...)`). The clock of Iceberg's Java
procedures cannot be injected: their timestamps are replaced by this clock's before the next commit. So the virtual hour
must be in the past: Java refuses to commit after a snapshot of the future.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyiceberg.serializers import ToOutputFile

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class VirtualClock:
    """Milliseconds since 1970, set by its user."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def stamp_again(catalog: Catalog, name: str, clock: VirtualClock) -> None:
    """Lower the timestamps in a table's metadata to this clock; no other commit may run."""

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
    catalog.drop_table(name)  # removes the catalog row only; the files stay
    catalog.register_table(name, location)
