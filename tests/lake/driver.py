"""A driver in a process of its own, that does what stands on its stdin, and stops for ever at a step that it is told.

Run as `driver.py HOME OBJECTS BROKER MASTER`; HOME has the catalog and the warehouse. A line of JSON comes in, and one
goes out for it. Spark starts when told `ready`: who is killed before the first job needs none.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path

import structlog

from ister.client.storage import BrokerClient
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.core.errors import BusyError, FencedError, IsterError
from ister.core.names import TopicName
from ister.lake.catalog import LakeCatalog
from ister.lake.table import LakeTable
from ister.pipeline import job as writing
from ister.pipeline.plan import Choice
from ister.pipeline.session import open_session
from ister.pipeline.task import Reach, write_splits
from ister.pipeline.topic_writer import TopicWriter, WriterSettings

STEPS = ("register", "claim", "plan", "job", "written", "committed")
WAIT_S = 60.0


class Held:
    """A step at which the process stops: it makes a file that says so, and waits to be killed."""

    def __init__(self) -> None:
        self.step = ""
        self.path = Path()

    def at(self, step: str) -> None:
        if step == self.step:
            self.path.touch()
            threading.Event().wait()


held = Held()


class Client(BrokerClient):
    def register(self, name, **epochs):
        epoch = super().register(name, **epochs)
        held.at("register")
        return epoch


class Writer(TopicWriter):
    def _plan(self, ready):
        shares = super()._plan(ready)
        held.at("plan")
        return shares

    def _run(self, plans):
        outcomes = super()._run(plans)
        held.at("written")
        return outcomes


def hold_after(method, step):
    """Stop after a method of a table."""

    def held_after(*arguments):
        answer = method(*arguments)
        held.at(step)
        return answer

    return held_after


def holding(path):
    """Return tasks that write their files and then wait to be killed."""

    def run(job, batches):
        for outcome in write_splits(job, batches):
            Path(path).touch()
            threading.Event().wait()
            yield outcome

    return run


def failing(directory):
    """Return tasks that fail at their first attempt, when their files are written."""

    def run(job, batches):
        from pyspark import TaskContext

        outcomes = list(write_splits(job, batches))
        context = TaskContext.get()
        (Path(directory) / f"{context.taskAttemptId()}-{context.attemptNumber()}").touch()
        if context.attemptNumber() == 0:
            raise RuntimeError("the machine is lost")
        yield from outcomes

    return run


def doubled(directory):
    """Return tasks that do everything twice, as when Spark has started a second attempt, and answer once."""

    def run(job, batches):
        given = list(batches)
        for attempt in range(2):
            outcomes = list(write_splits(job, iter(given)))
            (Path(directory) / f"{threading.get_native_id()}-{attempt}-{time.monotonic_ns()}").touch()
        yield from outcomes

    return run


class NoSpark:
    """Stands where the session will be, for who is killed before the first job."""


class Driver:
    """One TopicWriter at a time."""

    def __init__(self) -> None:
        self.spark = NoSpark()
        self.lake = LakeCatalog.open(*catalog_properties(CONFIG))
        self.client: Client | None = None
        self.writer: TopicWriter | None = None

    def ready(self):
        """Start Spark; before gRPC has threads, since this forks."""
        self.spark = open_session(CONFIG, master=MASTER)
        return {}

    def start(self, topics, hold="", path="", faults=""):
        """Become the owner of topics; stop at a step, or have tasks misbehave, as told."""
        held.step, held.path = hold, Path(path)
        writing.write_splits = holding(path) if hold == "job" else write_splits
        if faults:
            writing.write_splits = {"failing": failing, "doubled": doubled}[faults](path)
        settings = WriterSettings(Reach({}, "fs", OBJECTS, {}), choice=Choice(tuple(topics)))
        self.client = self.client or Client(BROKER, "a-token-for-tests")
        self.writer = Writer(self.spark, self.client, self.lake, settings)
        self.writer.start()
        return {"epoch": self.writer.epoch}

    def tick(self):
        tick = self.writer.tick()
        return {"rows": tick.rows, "files": tick.files, "failed": tick.failed}

    def race(self, topic, path):
        """Tick until told to end and nothing waits; who is fenced takes over again."""
        epochs, rows, busy = [self.take_over(topic)], 0, 0
        while True:
            try:
                ends = Path(path).exists()
                rows += self.writer.tick().rows
                if ends and all(one.upto >= one.next for one in self.writer.topics.values()):
                    break
            except FencedError:
                self.step_aside(topic)
                epochs.append(self.take_over(topic))
            except BusyError:
                busy += 1
        return {"epochs": epochs, "rows": rows, "busy": busy}

    def take_over(self, topic):
        """Become the owner; the other one may be it again before we have looked at the table."""
        while True:
            try:
                return self.start([topic])["epoch"]
            except FencedError:
                self.step_aside(topic)

    def step_aside(self, topic):
        """Wait until the other one has committed something: two that only take over would never get anywhere."""
        name = TopicName.parse(topic)
        before, deadline = self.lake.table(name, 1).upto(0), time.monotonic() + WAIT_S
        while self.lake.table(name, 1).upto(0) == before and time.monotonic() < deadline:
            time.sleep(0.02)  # between two looks


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    LakeTable.claim = hold_after(LakeTable.claim, "claim")
    LakeTable.commit_add_files = hold_after(LakeTable.commit_add_files, "committed")
    say = partial(print, flush=True)
    driver = Driver()
    say("{}")
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = getattr(driver, given.pop("do"))(**given)
        except IsterError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        say(json.dumps(answer))


if __name__ == "__main__":
    HOME, OBJECTS, BROKER, MASTER = sys.argv[1:]
    CONFIG = load(None, Path(HOME), {}).config
    main()
