"""Plan of a micro-batch: which topics have a table, and which files and tasks their splits become."""

from __future__ import annotations

import fnmatch
import json
from typing import TYPE_CHECKING, NamedTuple

from ister.core.names import TopicName, partition_of
from ister.core.tiers.splits import SPLIT_BYTES
from ister.pipeline.pacing import deal, runs
from ister.pipeline.task import FilePlan
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ister.core.tiers.splits import Split

FILE_BYTES = 64 << 10
"""What a file costs beyond its bytes, in bytes: opening files takes time, too."""


class TablePartition(NamedTuple):
    """Where a topic's rows go: a table, and the partition number there."""

    base: TopicName
    generation: int
    partition: int

    @property
    def table(self) -> tuple[TopicName, int]:
        """Return which table it is; partitions of one base share it."""
        return (self.base, self.generation)


class Choice(NamedTuple):
    """Which topics a pipeline takes: those that match one of `only`, if there are any, and none of `exclude`."""

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        """Return True if a topic is chosen; a pattern may be its name, or have * and ? in it."""
        if self.only and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.only):
            return False
        return not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)


def place_of(topic: pb.Topic) -> TablePartition:
    """Return where a topic's rows go; a partition shares the table of its base."""
    name = TopicName.parse(topic.name)
    base, partition = (partition_of(name) if topic.HasField("partition") else None) or (name, 0)
    return TablePartition(base, topic.generation, partition)


def chosen(topics: Iterable[pb.Topic], choice: Choice) -> list[pb.Topic]:
    """Return those topics that have a table: stored, open, and not opted out by their policies or by us."""
    return [
        topic
        for topic in topics
        if topic.dispatch == pb.DISPATCH_RELIABLE
        and topic.generation
        and topic.HasField("offsets")
        and json.loads(topic.policies)["lake"]
        and choice.takes(topic.name)
    ]


def plan_files(topic: str, splits: Sequence[Split], target_bytes: int, cores: int) -> list[FilePlan]:
    """Group a topic's splits, in order, by the files that they become."""
    grouped = runs([split.bytes for split in splits], target_bytes, cores)
    return [FilePlan(topic, tuple(splits[run.start : run.stop])) for run in grouped]


def plan_tasks(plans: Sequence[FilePlan], cores: int) -> list[list[tuple[int, FilePlan]]]:
    """Assign numbered file plans to tasks: a few for each core, so that a slow one does not delay the rest."""
    sizes = {index: FILE_BYTES + plan.bytes for index, plan in enumerate(plans)}
    large = sum(size > SPLIT_BYTES for size in sizes.values())
    return [[(index, plans[index]) for index in sorted(task)] for task in deal(sizes, max(cores, large))]
