"""Which topics have a table, and what of them a tick carries there."""

from __future__ import annotations

import fnmatch
import json
from typing import TYPE_CHECKING, NamedTuple

from ister.core.names import TopicName, partition_of
from ister.core.splits import SPLIT_BYTES
from ister.core.ticks import deal, runs
from ister.pipeline.task import Source, Work
from ister.rpc import ister_v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ister.pipeline.typed import Typed

WORK_BYTES = 64 << 10
"""What a work costs beyond its bytes, in bytes: opening files takes time, too."""


class Place(NamedTuple):
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
        """Tell whether a topic is meant; a pattern may be its name, or have * and ? in it."""
        if self.only and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.only):
            return False
        return not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)


def place_of(topic: pb.Topic) -> Place:
    """Return where a topic's rows go; a partition shares the table of its base."""
    name = TopicName.parse(topic.name)
    found = partition_of(name) if topic.HasField("partition") else None
    return Place(name, topic.generation, 0) if found is None else Place(found[0], topic.generation, found[1])


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


def works_of(
    topic: str,
    partition: int,
    location: str,
    splits: Sequence[pb.Split],
    target_bytes: int,
    cores: int,
    typed: Typed | None,
) -> list[Work]:
    """Share out a topic's splits, in order; each work becomes a file, or a file a day."""
    sources = [source_of(split) for split in splits]
    sizes = [source.stop_byte - source.start_byte for source in sources]
    return [
        Work(topic, partition, location, tuple(sources[run.start : run.stop]), target_bytes, typed)
        for run in runs(sizes, target_bytes, cores)
    ]


def tasks_of(works: Sequence[Work], cores: int) -> list[list[tuple[int, Work]]]:
    """Deal works to tasks, with their numbers: a few for each core, so that one slow work does not hold up the rest."""
    sizes = {index: WORK_BYTES + bytes_of(work) for index, work in enumerate(works)}
    large = sum(size > SPLIT_BYTES for size in sizes.values())
    return [[(index, works[index]) for index in sorted(task)] for task in deal(sizes, max(cores, large))]


def bytes_of(work: Work) -> int:
    """Return how much of the log a work is."""
    return sum(source.stop_byte - source.start_byte for source in work.sources)


def source_of(split: pb.Split) -> Source:
    """Return what a task needs to know of a split."""
    if split.WhichOneof("place") == "log":
        return Source(split.start_offset, split.stop_offset, split.start_byte, split.stop_byte, path=split.log.path)
    return Source(
        split.start_offset,
        split.stop_offset,
        split.start_byte,
        split.stop_byte,
        key=split.object.key,
        etag=split.object.etag,
    )
