"""What the tests of TopicWriter share: a broker, tables and jobs that are only said to be there, and a clock that is set."""

from types import SimpleNamespace

from ister.client.storage import BrokerRefusedError
from ister.core.names import TopicName
from ister.core.table.commit import TableProgress
from ister.core.table.names import table_of
from ister.core.tiers.splits import Split
from ister.lake.parquet import Written
from ister.pipeline.job import JobFailedError
from ister.pipeline.task import Reach, Verdict, WriteResult
from ister.pipeline.topic_writer import TopicWriter, WriterSettings
from ister.rpc import ister_v1_pb2 as pb

ROW_BYTES = 1024
SPLIT_ROWS = 16 << 10
"""So a split has 16 MiB."""


class FakeBroker:
    """Has topics of so many messages, and one owner."""

    def __init__(self, **rows):
        self.rows = {f"/default/{name}": count for name, count in rows.items()}
        self.generations = dict.fromkeys(self.rows, 1)
        self.epoch = 0
        self.reports = {}
        self.asked = []

    def register(self, name, *, owner_epoch=0, least_epoch=0):
        if owner_epoch and owner_epoch != self.epoch:
            raise BrokerRefusedError("another one is the owner")
        self.epoch = max(self.epoch + 1, least_epoch)
        return self.epoch

    def topics(self):
        return [
            pb.Topic(
                name=name,
                generation=self.generations[name],
                dispatch=pb.DISPATCH_RELIABLE,
                policies='{"lake": true}',
                offsets=pb.Offsets(start=0, next=rows, synced=rows, log_start=0),
            )
            for name, rows in sorted(self.rows.items())
        ]

    def sync(self, topic, generation):
        return self.rows[topic]

    def splits(self, topic, generation, start, *, split_bytes, splits_max):
        self.asked.append(topic)
        splits = []
        while start < self.rows[topic] and len(splits) < splits_max:
            stop = min(self.rows[topic], start + SPLIT_ROWS)
            splits.append(Split(start, stop, start * ROW_BYTES, stop * ROW_BYTES, path=f"{topic}.log"))
            start = stop
        return splits

    def report(self, topic, generation, epoch, upto):
        self.reports[topic] = upto


class FakeTable:
    """Holds what it was given; `trouble` is raised by its next commit."""

    def __init__(self, topic, generation, epoch=0):
        self.identifier = table_of(topic)
        self.location = f"file:///nowhere/{topic}"
        self.schema = SimpleNamespace(schema_id=0)
        self.held = TableProgress(str(topic), generation, epoch, {})
        self.files = []
        self.conflicts = self.unknowns = 0
        self.trouble = None

    def check(self):
        """It is as it was left."""

    def claim(self, epoch):
        self.held = self.held._replace(epoch=epoch)

    def upto(self, partition):
        return self.held.upto.get(partition, 0)

    def commit_add_files(self, files, spans):
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        self.files += files
        self.held = self.held._replace(upto={partition: stop for partition, (_, stop) in spans.items()})


class FakeLake:
    def __init__(self):
        self.tables = {}

    def table(self, topic, generation):
        return self.tables.setdefault((topic, generation), FakeTable(topic, generation))

    def of(self, name, generation=1):
        return self.table(TopicName.parse(f"/default/{name}"), generation)


class FakeWriter(TopicWriter):
    """Says of file plans what `verdicts` has for their topics, else that they are written; `jobs` are those that it ran.

    A job with messages of one of `killers` fails.
    """

    def __init__(self, broker, lake, **settings):
        self.clock = SimpleNamespace(s=1000.0)
        super().__init__(
            None, broker, lake, WriterSettings(Reach({}, "memory", "none", {}), **settings), now=lambda: self.clock.s
        )
        self.verdicts = {}
        self.jobs = []
        self.trouble = None
        self.killers = set()
        self.can_run = True
        self.misfits = {}

    def _can_run(self):
        return self.can_run

    def _run(self, plans):
        self.jobs.append(plans)
        if self.trouble is not None:
            raise self.trouble
        if self.killers & {plan.topic for plan in plans}:
            raise JobFailedError("a worker was killed for its memory")
        return [
            (self.verdicts[plan.topic], "it was told so")
            if plan.topic in self.verdicts
            else (Verdict.WRITTEN, written(plan, self.misfits.get(plan.topic, [])).to_json())
            for plan in plans
        ]


def written(plan, misfits=()):
    start, stop = plan.splits[0].start, plan.splits[-1].stop
    nothing = {}
    file = Written(
        f"file:///nowhere/{plan.topic}/{start}",
        10,
        stop - start,
        0,
        0,
        start,
        stop - 1,
        [],
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
    )
    return WriteResult([file], [], list(misfits))
