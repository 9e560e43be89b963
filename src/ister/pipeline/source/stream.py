"""Streaming reads of the Spark data source: the offsets of each trigger, all of which a restart can compute again.

Spark passes no start to `latestOffset`, so `maxOffsetsPerTrigger` needs the query's position: the end that Spark planned last.
After a restart Spark plans its last batch first, even if that was committed, which restores the position. This is not
documented; tests/lake/test_source_stream.py pins it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceStreamReader

from ister.core.errors import CorruptError
from ister.pipeline.source.offsets import Mark, advance, check_same, from_json, to_json
from ister.pipeline.source.options import Edge
from ister.pipeline.source.reader import TopicPlanner, read_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from ister.pipeline.source.offsets import Marks, MarksJson
    from ister.pipeline.source.options import ReadOptions
    from ister.pipeline.source.reader import Found


class TopicStreamReader(DataSourceStreamReader):
    """The reader of `spark.readStream`; the instance that plans and those that read are never the same."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._topic: TopicPlanner | None = None
        self._first: Marks | None = None
        self._planned: Marks | None = None

    def initialOffset(self) -> MarksJson:  # type: ignore[override]  # noqa: N802  # a dict; Spark's name
        """Return the start of a query without a checkpoint.

        Spark calls this again when the first batch failed and is repeated. Its end, which is planned by then, has the
        start. In checkpoints of older releases it does not: there a batch with `latest` was empty, and began where it ended.
        """
        planned = self._planned
        if planned is not None and all(mark.begin is not None for mark in planned.values()):
            return to_json({n: mark._replace(offset=cast("int", mark.begin)) for n, mark in planned.items()})
        if planned is not None and self._options.start is Edge.LATEST:
            return to_json(planned)
        return to_json(self._begin(self._fetch()[0]))

    def latestOffset(self) -> MarksJson:  # type: ignore[override]  # noqa: N802  # a dict; Spark's name
        """Return the end of the next trigger; Spark calls this before `initialOffset` of a new query."""
        found, now = self._fetch()
        at = self._begin(found) if self._planned is None else self._planned
        check_same(self._options.topic, at, now)
        at = {n: at[n] if n in at else Mark(one.generation, one.oldest, one.oldest) for n, one in found.items()}
        start = {n: mark.offset for n, mark in at.items()}
        stop = {n: one.stop for n, one in found.items()}
        ends = advance(start, stop, self._options.offsets_per_trigger_max)
        return to_json({n: mark._replace(offset=ends[n]) for n, mark in at.items()})

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Plan one trigger: each offset of [start, end) once. A new partition is read from its begin."""
        begin, stop = from_json(cast("MarksJson", start)), from_json(cast("MarksJson", end))
        self._planned = stop
        if begin == stop:
            return []
        found, now = self._fetch()
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
        assert self._topic is not None, "_fetch opened it"
        return self._topic.partitions_of(found, begin, {n: mark.offset for n, mark in stop.items()})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode the input of one task; runs in the task."""
        return read_split(partition)

    def stop(self) -> None:
        """Close the connection."""
        if self._topic is not None:
            self._topic.close()

    def _begin(self, found: dict[int, Found]) -> Marks:
        """Return the start of a new query, determined once, since `latest` moves."""
        if self._first is None:
            assert self._topic is not None, "_fetch opened it"
            self._first = self._topic.first(found)
        return self._first

    def _fetch(self) -> tuple[dict[int, Found], Marks]:
        if self._topic is None:
            self._topic = TopicPlanner.open(self._options)
        found = self._topic.partitions()
        return found, {n: Mark(one.generation, one.stop) for n, one in found.items()}
