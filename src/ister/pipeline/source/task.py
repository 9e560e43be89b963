"""Tasks of the data source: decode splits, with every checksum verified."""

from __future__ import annotations

import os
from collections import deque
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ister.client.storage import BrokerRefusedError
from ister.config.environment import SECRETS_VARIABLE
from ister.core.errors import BusyError, MissingObjectError
from ister.lake.columns import table_rows
from ister.pipeline.source.options import configured
from ister.pipeline.source.reader import TopicPlanner
from ister.pipeline.task import Reach, decoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ister.pipeline.source.reader import SplitPartition


REPLANS_MAX = 3
"""How often a task plans again when its splits were moved meanwhile."""


class SplitGoneError(BusyError):
    """A split was deleted after planning, and could not be planned again."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place} was deleted after the read was planned ({reason}); read again")


def batches_of(partition: SplitPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's splits in the columns of a topic's table.

    A deleted file or object is noticed before its first row, so those messages can be planned again without duplicates.
    """
    reach = reach_of(partition)
    waiting = deque(partition.splits)
    stop = min(partition.stop, waiting[-1].stop)
    replans = 0
    while waiting:
        split = waiting.popleft()
        try:
            for batch in decoded(replace(split, stop=min(split.stop, stop)), reach):
                yield table_rows(batch, partition.number)
        except (FileNotFoundError, MissingObjectError) as error:
            place = split.path or split.key
            replans += 1
            if replans > REPLANS_MAX:
                cause = f"and so were {REPLANS_MAX} others that the broker named instead"
                raise SplitGoneError(place, cause) from error
            try:
                with closing(TopicPlanner.open(partition.options)) as topic:
                    waiting = deque(topic.splits(partition.found, split.start, stop))
            except (BusyError, BrokerRefusedError) as refused:
                raise SplitGoneError(place, str(refused)) from refused


def reach_of(partition: SplitPartition) -> Reach:
    """Return the access to objects, with secrets from the environment, else from the configuration if it is on this machine."""
    reach = Reach({}, *partition.store)
    config = partition.options.config
    if SECRETS_VARIABLE in os.environ or config is None or not Path(config).is_file():
        return reach.whole()
    secrets = configured(config).wal_cloud.cloud.secret_options()
    return reach._replace(options=reach.options | secrets)
