"""Read a topic as a stream: which offsets each trigger takes. All of it can be found out again after a restart.

Spark gives `latestOffset` no start, so `maxOffsetsPerTrigger` needs to know how far the query is: the end that Spark last
planned. On a restart Spark plans its last batch first, even if that was committed, and so we learn it again before we are
asked for more. This is not documented; tests/lake/test_source_stream.py pins it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceStreamReader

from ister.core.errors import CorruptError
from ister.pipeline.source_offsets import Mark, advance, check_same, from_json, to_json
from ister.pipeline.source_options import Edge
from ister.pipeline.source_reader import TopicPlanner, read_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from ister.pipeline.source_offsets import Marks, MarksJson
    from ister.pipeline.source_options import ReadOptions
    from ister.pipeline.source_reader import Found


class TopicStreamReader(DataSourceStreamReader):
    """What `spark.readStream` asks; the instance that plans and those that read are never the same."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._topic: TopicPlanner | None = None
        self._first: Marks | None = None
        self._planned: Marks | None = None

    def initialOffset(self) -> MarksJson:  # type: ignore[override]  # noqa: N802  # a dict; Spark's name
        """Return where a query without a checkpoint begins.

        Spark asks again when the first batch failed and is repeated. Its end, which is planned by then, says where it began,
        whatever has come or was deleted since. In checkpoints of older releases it does not: there a batch with `latest` was
        empty, and began where it ended.
        """
        planned = self._planned
        if planned is not None and all(mark.begin is not None for mark in planned.values()):
            return to_json({n: mark._replace(offset=cast("int", mark.begin)) for n, mark in planned.items()})
        if planned is not None and self._options.start is Edge.LATEST:
            return to_json(planned)
        return to_json(self._begin(self._ask()[0]))

    def latestOffset(self) -> MarksJson:  # type: ignore[override]  # noqa: N802  # a dict; Spark's name
        """Return where the next trigger ends; Spark asks this before it asks where a new query begins."""
        found, now = self._ask()
        at = self._begin(found) if self._planned is None else self._planned
        check_same(self._options.topic, at, now)
        at = {n: at[n] if n in at else Mark(one.generation, one.oldest, one.oldest) for n, one in found.items()}
        start = {n: mark.offset for n, mark in at.items()}
        stop = {n: one.stop for n, one in found.items()}
        ends = advance(start, stop, self._options.offsets_per_trigger_max)
        return to_json({n: mark._replace(offset=ends[n]) for n, mark in at.items()})

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Plan one trigger: each offset of [start, end) once. A partition that is new is read from its begin."""
        begin, stop = from_json(cast("MarksJson", start)), from_json(cast("MarksJson", end))
        self._planned = stop
        if begin == stop:
            return []
        found, now = self._ask()
        check_same(self._options.topic, stop, now)
        check_same(self._options.topic, begin, now)
        found = {n: found[n] for n in stop}
        for number, mark in stop.items():
            if number not in begin:
                first = found[number].oldest if mark.begin is None else mark.begin
                begin[number] = mark._replace(offset=first)
        for number, mark in stop.items():
            if mark.offset < begin[number].offset:
                raise CorruptError(f"{self._options.topic}: Spark asks for offsets from {begin} to {stop}, backwards")
        assert self._topic is not None, "it was asked"
        return self._topic.partitions_of(found, begin, {n: mark.offset for n, mark in stop.items()})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode what one task is given; runs in the task."""
        return read_split(partition)

    def stop(self) -> None:
        """End the connection."""
        if self._topic is not None:
            self._topic.close()

    def _begin(self, found: dict[int, Found]) -> Marks:
        """Return where a new query begins: decided once, since `latest` moves."""
        if self._first is None:
            assert self._topic is not None, "it was asked"
            self._first = self._topic.first(found)
        return self._first

    def _ask(self) -> tuple[dict[int, Found], Marks]:
        if self._topic is None:
            self._topic = TopicPlanner.open(self._options)
        found = self._topic.partitions()
        return found, {n: Mark(one.generation, one.stop) for n, one in found.items()}
