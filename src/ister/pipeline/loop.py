"""Run a TopicWriter: a tick whenever one is due, never two at once, until it is told to stop."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import grpc
import structlog

from ister.core.errors import BusyError, FencedError
from ister.core.retry import backoff_s
from ister.core.ticks import seconds_left
from ister.pipeline.client import BrokerRefusedError, BrokerUnavailableError
from ister.pipeline.job import SparkGoneError
from ister.pipeline.task import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ister.core.ticks import Pace
    from ister.pipeline.client import BrokerClient
    from ister.pipeline.progress import TopicProgress
    from ister.pipeline.writer import Tick, TopicWriter
    from ister.rpc import ister_v1_pb2 as pb

log = structlog.get_logger()

BACK_OFF_MAX_S = 30.0
RETRY_S = 1.0
REPLANS_MAX = 3


class Wanted:
    """What producers wait for; a thread listens to the broker and rings. The broker sees by it that an owner is there."""

    def __init__(self, broker: BrokerClient, epoch: int) -> None:
        self.ring = threading.Event()
        self.fenced: FencedError | None = None
        self._broker = broker
        self._epoch = epoch
        self._upto: dict[tuple[str, int], int] = {}
        self._arrived: SimpleQueue[pb.Wakeup] = SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="ister-wakeups", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def of(self, topic: str, generation: int) -> int:
        """Return below which offset someone wants a topic to be in its table."""
        return self._upto.get((topic, generation), 0)

    def arrived(self) -> Iterator[pb.Wakeup]:
        """Return the wakeups that came since the last call."""
        while not self._arrived.empty():
            yield self._arrived.get()

    def _listen(self) -> None:
        """Listen until the channel is closed; a broker that went away is asked again after a second."""
        while self._listen_once():
            time.sleep(RETRY_S)

    def _listen_once(self) -> bool:
        """Listen as long as the broker tells something; returns whether to ask again."""
        try:
            for wakeup in self._broker.wakeups(self._epoch):
                self._upto[wakeup.topic, wakeup.generation] = wakeup.upto
                self._arrived.put(wakeup)
                self.ring.set()
        except BrokerRefusedError as error:
            if error.code is grpc.StatusCode.FAILED_PRECONDITION:
                self.fenced = FencedError(f"another pipeline is the owner now: {error}")
                self.ring.set()
                return False
            log.warning(
                "wakeups_refused", cause=str(error)
            )  # a bug of the broker's, or a proxy between us: it may pass
        except BrokerUnavailableError as error:
            log.info("wakeups_wait", cause=str(error))
        except ValueError:  # the channel was closed: we are about to end
            return False
        return True


def drain(writer: TopicWriter, told: Callable[[Tick], None]) -> list[TopicProgress]:
    """Tick until the tables have everything that the logs had when we came; returns topics that did not come along.

    A topic that is made again meanwhile is another one. What moves nothing, three times in a row, will not.
    """
    writer.look()
    goals = {(name, one.place): one.next for name, one in writer.topics.items()}
    idle = 0
    while True:
        before = {name: one.upto for name, one in writer.topics.items()}
        told(writer.tick())
        behind = [one for one in writer.topics.values() if one.upto < goals.get((one.name, one.place), 0)]
        waits = [one for one in behind if not one.error or one.error.startswith(Verdict.GONE)]
        has_moved = any(one.upto > before.get(one.name, 0) for one in behind)
        idle = 0 if has_moved else idle + 1
        if not waits or idle > REPLANS_MAX:
            return behind


class Loop:
    """Ticks as the pace says."""

    def __init__(self, writer: TopicWriter, broker: BrokerClient, pace: Pace, told: Callable[[Tick], None]) -> None:
        self._writer = writer
        self._broker = broker
        self._pace = pace
        self._told = told
        self._stop = threading.Event()
        self._wanted: Wanted | None = None

    def stop(self) -> None:
        """End after the tick that is under way."""
        self._stop.set()
        if self._wanted is not None:
            self._wanted.ring.set()

    def run(self) -> None:
        """Tick until stopped, or until another pipeline is the owner: then FencedError."""
        self._wanted = wanted = Wanted(self._broker, self._writer.epoch)
        wanted.start()
        tries = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._told(self._writer.tick())
                tries = 0
                self._wait(wanted, began)
            except SparkGoneError:
                raise
            except BusyError as error:
                tries += 1
                wait_s = max(self._pace.least_s, backoff_s(tries, BACK_OFF_MAX_S))
                log.warning("tick_failed", cause=str(error), tries=tries, again_in_s=wait_s)
                self._stop.wait(wait_s)
            if wanted.fenced is not None:
                raise wanted.fenced

    def _wait(self, wanted: Wanted, began: float) -> None:
        """Return when the next tick is due; looks once in a while whether so much has come that it is due early."""
        while not self._stop.is_set() and wanted.fenced is None:
            wanted.ring.clear()
            waiting = [
                one.waiting._replace(wanted=wanted.of(one.name, one.place.generation) > one.upto)
                for one in self._writer.topics.values()
                if not one.error
            ]
            left_s = seconds_left(self._pace, waiting, time.monotonic() - began)
            if left_s <= 0:
                return
            wanted.ring.wait(min(left_s, self._pace.least_s))
            for wakeup in wanted.arrived():
                self._writer.recheck(wakeup.topic, wakeup.generation, wakeup.upto)
            self._writer.look()
