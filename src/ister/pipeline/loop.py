"""The pipeline's main loop: a micro-batch whenever one is due, never two at once, until it is stopped."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import structlog

from ister.client.storage import BrokerRefusedError, BrokerUnavailableError
from ister.core.errors import BusyError, FencedError
from ister.core.retry import backoff_s
from ister.pipeline.job import SparkGoneError
from ister.pipeline.pacing import seconds_left
from ister.pipeline.task import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ister.client.storage import BrokerClient
    from ister.pipeline.pacing import Pace
    from ister.pipeline.topic_writer import MicroBatch, TopicProgress, TopicWriter
    from ister.rpc import ister_v1_pb2 as pb

log = structlog.get_logger()

BACK_OFF_MAX_S = 30.0
RETRY_S = 1.0
REPLANS_MAX = 3


class Wakeups:
    """Offsets that producers wait for, received by a thread; the broker sees by its stream that there is an owner."""

    def __init__(self, broker: BrokerClient, epoch: int) -> None:
        self.ring = threading.Event()
        self.fenced: FencedError | None = None
        self._broker = broker
        self._epoch = epoch
        self._upto: dict[tuple[str, int], int] = {}
        self._arrived: SimpleQueue[pb.Wakeup] = SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="ister-wakeups", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def of(self, topic: str, generation: int) -> int:
        """Return the offset below which a producer waits for a topic to be in its table."""
        return self._upto.get((topic, generation), 0)

    def arrived(self) -> Iterator[pb.Wakeup]:
        """Return the wakeups since the last call."""
        while not self._arrived.empty():
            yield self._arrived.get()

    def _listen(self) -> None:
        """Receive until the channel is closed; reconnect to an unavailable broker after a second."""
        while self._listen_once():
            time.sleep(RETRY_S)

    def _listen_once(self) -> bool:
        """Receive one stream of wakeups; return True if another is to be opened."""
        try:
            for wakeup in self._broker.wakeups(self._epoch):
                self._upto[wakeup.topic, wakeup.generation] = wakeup.upto
                self._arrived.put(wakeup)
                self.ring.set()
        except BrokerRefusedError as error:
            if error.is_precondition:
                self.fenced = FencedError(f"another pipeline is the owner now: {error}")
                self.ring.set()
                return False
            # A bug of the broker, or of a proxy: it may be temporary.
            log.warning("wakeups_refused", cause=str(error))
        except BrokerUnavailableError as error:
            log.info("wakeups_wait", cause=str(error))
        except ValueError:  # the channel was closed: the process is ending
            return False
        return True


def drain(writer: TopicWriter, report: Callable[[MicroBatch], None]) -> list[TopicProgress]:
    """Run micro-batches until the tables have what the logs had at the start; return the topics that are behind.

    A topic that is created again meanwhile is another one. It ends after REPLANS_MAX micro-batches without progress.
    """
    writer.refresh()
    goals = {(name, one.place): one.next for name, one in writer.topics.items()}
    idle = 0
    while True:
        before = {name: one.upto for name, one in writer.topics.items()}
        report(writer.tick())
        behind = [one for one in writer.topics.values() if one.upto < goals.get((one.name, one.place), 0)]
        waits = [one for one in behind if not one.error or one.error.startswith(Verdict.GONE)]
        has_moved = any(one.upto > before.get(one.name, 0) for one in behind)
        idle = 0 if has_moved else idle + 1
        if not waits or idle > REPLANS_MAX:
            return behind


class Loop:
    """Runs micro-batches as the pace says."""

    def __init__(
        self, writer: TopicWriter, broker: BrokerClient, pace: Pace, report: Callable[[MicroBatch], None]
    ) -> None:
        self._writer = writer
        self._broker = broker
        self._pace = pace
        self._report = report
        self._stop = threading.Event()
        self._wakeups: Wakeups | None = None

    def stop(self) -> None:
        """Stop after the current micro-batch."""
        self._stop.set()
        if self._wakeups is not None:
            self._wakeups.ring.set()

    def run(self) -> None:
        """Run micro-batches until stopped; raise FencedError once another pipeline is the owner."""
        self._wakeups = wakeups = Wakeups(self._broker, self._writer.epoch)
        wakeups.start()
        tries = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._report(self._writer.tick())
                tries = 0
                self._wait(wakeups, began)
            except SparkGoneError:
                raise
            except BusyError as error:
                tries += 1
                wait_s = max(self._pace.least_s, backoff_s(tries, BACK_OFF_MAX_S))
                log.warning("tick_failed", cause=str(error), tries=tries, again_in_s=wait_s)
                self._stop.wait(wait_s)
            if wakeups.fenced is not None:
                raise wakeups.fenced

    def _wait(self, wakeups: Wakeups, began: float) -> None:
        """Return when the next micro-batch is due; refresh the topics meanwhile, since a backlog makes it due early."""
        while not self._stop.is_set() and wakeups.fenced is None:
            wakeups.ring.clear()
            waiting = [
                one.waiting._replace(wanted=wakeups.of(one.name, one.place.generation) > one.upto)
                for one in self._writer.topics.values()
                if not one.error
            ]
            left_s = seconds_left(self._pace, waiting, time.monotonic() - began)
            if left_s <= 0:
                return
            wakeups.ring.wait(min(left_s, self._pace.least_s))
            for wakeup in wakeups.arrived():
                self._writer.recheck(wakeup.topic, wakeup.generation, wakeup.upto)
            self._writer.refresh()
