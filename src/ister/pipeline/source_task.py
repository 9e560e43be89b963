"""What a task of the data source does: decode one split, with every checksum looked at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ister.config import load
from ister.core.errors import BusyError
from ister.lake.schema import table_rows
from ister.pipeline.plan import source_of
from ister.pipeline.task import SECRETS_VARIABLE, Reach, decoded
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ister.pipeline.source_reader import SplitPartition


class SplitGoneError(BusyError):
    """A file was deleted between the plan and the task."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} was deleted after the read was planned, because its messages are in objects now; read again"
        )


def batches_of(partition: SplitPartition) -> Iterator[pa.RecordBatch]:
    """Give the rows of a split in the columns of a topic's table."""
    source = source_of(pb.Split.FromString(partition.split))
    source = source._replace(stop=min(source.stop, partition.stop))
    try:
        for batch in decoded(source, reach_of(partition)):
            yield table_rows(batch, partition.number)
    except FileNotFoundError:
        raise SplitGoneError(source.path or source.key) from None


def reach_of(partition: SplitPartition) -> Reach:
    """Return how to reach objects, with the secrets of this machine's environment, else of the configuration if it is here."""
    reach = Reach({}, *partition.store)
    if SECRETS_VARIABLE in os.environ or partition.config is None or not Path(partition.config).is_file():
        return reach.whole()
    secrets = load(Path(partition.config)).config.wal_cloud.cloud.secret_options()
    return reach._replace(options=reach.options | secrets)
