"""When the pipeline ticks again, and when it is over: what the broker says of wakeups, and what went wrong."""

import time

import pytest
from grpc import StatusCode

from ister.client.storage import BrokerRefusedError, BrokerUnavailableError
from ister.core.errors import FencedError
from ister.pipeline.job import JobFailedError, SparkGoneError
from ister.pipeline.loop import Loop, Wakeups
from ister.pipeline.pacing import Pace
from ister.pipeline.task import Verdict
from ister.rpc import ister_v1_pb2 as pb
from parts.writer import FakeBroker, FakeLake, FakeWriter

A = "/default/a"
PACE = Pace(flush_s=300.0, least_s=5.0, rows=1000, bytes=1 << 30)


class Watched:
    """A broker that tells some wakeups, and then fails as told."""

    def __init__(self, *wakeups, error=None):
        self._wakeups = wakeups
        self._error = error

    def wakeups(self, epoch):
        yield from self._wakeups
        if self._error is not None:
            raise self._error


class Waits:
    """Stands where the event to stop is: notes how long it is waited for, and is set after so many times."""

    def __init__(self, times):
        self.left = times
        self.seconds = []

    def is_set(self):
        return self.left <= 0

    def set(self):
        self.left = 0

    def wait(self, seconds):
        self.seconds.append(seconds)
        self.left -= 1


def looped(writer, times=1, pace=PACE):
    loop = Loop(writer, Watched(error=ValueError("it is closed, and nobody listens")), pace, lambda _: None)
    loop._stop = Waits(times)
    return loop


@pytest.fixture
def writer():
    found = FakeWriter(FakeBroker(a=10), FakeLake())
    found.start()
    yield found
    found.close()


# --- wakeups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        None,
        BrokerUnavailableError("away"),
        BrokerRefusedError("a bug", StatusCode.INTERNAL),
        BrokerRefusedError("a proxy that knows no such call", StatusCode.UNIMPLEMENTED),
        BrokerRefusedError("not with this token", StatusCode.PERMISSION_DENIED),
    ],
    ids=lambda error: type(error).__name__ if not isinstance(error, BrokerRefusedError) else error.code.name,
)
def test_whoever_cannot_tell_wakeups_is_asked_again(error):
    wanted = Wakeups(Watched(error=error), 1)
    assert wanted._listen_once()
    assert wanted.fenced is None


def test_only_a_newer_owner_ends_a_pipeline():
    wanted = Wakeups(Watched(error=BrokerRefusedError("epoch 1 is not the owner's", StatusCode.FAILED_PRECONDITION)), 1)
    assert not wanted._listen_once()
    assert isinstance(wanted.fenced, FencedError)
    assert wanted.ring.is_set()


def test_a_wakeup_is_for_one_generation_of_a_topic():
    wanted = Wakeups(Watched(pb.Wakeup(topic=A, generation=1, upto=90), pb.Wakeup(topic=A, generation=2, upto=3)), 1)
    wanted._listen_once()
    assert [wanted.of(A, generation) for generation in (1, 2, 3)] == [90, 3, 0]
    assert wanted.ring.is_set()


# --- ticks that fail --------------------------------------------------------------------------------------------------


def test_a_tick_that_failed_is_tried_again_after_the_least_interval_at_the_earliest_and_later_each_time(writer):
    writer.trouble = JobFailedError("a task was lost")
    loop = looped(writer, 7)
    loop.run()
    assert loop._stop.seconds == [5.0, 5.0, 5.0, 8.0, 16.0, 30.0, 30.0]
    writer.trouble = None
    loop = looped(writer, 1, PACE._replace(least_s=0.0))
    writer.trouble = JobFailedError("again")
    loop.run()
    assert loop._stop.seconds == [1.0]


def test_without_spark_there_is_nothing_to_try_again(writer):
    writer.trouble = SparkGoneError("Java has ended")
    with pytest.raises(SparkGoneError):
        looped(writer).run()


def test_what_a_failing_topic_has_waiting_makes_no_tick_come_early(writer):
    loop, wanted = looped(writer), Wakeups(Watched(), 1)

    def waited(began):
        """Tell whether the next tick is due after the least interval."""
        wanted.ring.wait = lambda _: loop.stop()
        loop._stop.left = 1
        loop._wait(wanted, began)
        return not loop._stop.is_set()

    began = time.monotonic() - 10.0
    writer._broker.rows[A] = 5000
    writer.refresh()
    assert waited(began), "so much waits that it comes early"
    writer.verdicts[A] = Verdict.CORRUPT
    writer.tick()
    assert not waited(began)
    writer._broker.rows[A] = 50_000
    assert not waited(began), "nor after another look"
    wanted._upto[A, 1] = 50_000
    assert not waited(began), "nor when someone waits for it"
