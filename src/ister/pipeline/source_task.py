"""What a task of the data source does: decode its splits, with every checksum looked at."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from ister.core.errors import BusyError, MissingObjectError
from ister.lake.schema import table_rows
from ister.pipeline.client import BrokerRefusedError
from ister.pipeline.plan import source_of
from ister.pipeline.source_options import configured
from ister.pipeline.source_reader import planner
from ister.pipeline.task import SECRETS_VARIABLE, Reach, decoded
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ister.pipeline.source_reader import SplitPartition
    from ister.pipeline.task import Source


LOOKS = 3
"""How often the broker is asked again where messages lie, when they were moved under a task."""


class SplitGoneError(BusyError):
    """What was planned is not there any more, and the broker could not say where it is now."""

    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        self.reason = reason
        super().__init__(f"{place} was deleted after the read was planned ({reason}); read again")


def batches_of(partition: SplitPartition) -> Iterator[pa.RecordBatch]:
    """Give the rows of a task's splits in the columns of a topic's table.

    A file or an object that was deleted meanwhile is noticed before its first row is given, so the broker can be asked
    where those messages are now, and nothing comes twice.
    """
    reach = reach_of(partition)
    waiting = deque(source_of(pb.Split.FromString(split)) for split in partition.splits)
    stop = min(partition.stop, waiting[-1].stop)
    looks = 0
    while waiting:
        source = waiting.popleft()
        try:
            for batch in decoded(source._replace(stop=min(source.stop, stop)), reach):
                yield table_rows(batch, partition.number)
        except (FileNotFoundError, MissingObjectError) as error:
            place = source.path or source.key
            looks += 1
            if looks > LOOKS:
                raise SplitGoneError(place, f"and so were {LOOKS} others that the broker named instead") from error
            waiting = deque(sources_now(partition, source.start, stop, place))


def sources_now(partition: SplitPartition, start: int, stop: int, gone: str) -> Iterator[Source]:
    """Ask the broker where the rest of a task's messages lies now."""
    try:
        with planner(partition.options) as topic:
            yield from map(source_of, topic.splits(partition.found, start, stop))
    except (BusyError, BrokerRefusedError) as error:
        raise SplitGoneError(gone, str(error)) from error


def reach_of(partition: SplitPartition) -> Reach:
    """Return how to reach objects, with the secrets of this machine's environment, else of the configuration if it is here."""
    reach = Reach({}, *partition.store)
    config = partition.options.config
    if SECRETS_VARIABLE in os.environ or config is None or not Path(config).is_file():
        return reach.whole()
    secrets = configured(config).wal_cloud.cloud.secret_options()
    return reach._replace(options=reach.options | secrets)
