"""Run a TopicWriter: a tick whenever one is due, never two at once, until it is told to stop."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import BusyError, FencedError
from ister.core.ticks import seconds_left
from ister.pipeline.client import BrokerRefusedError, BrokerUnavailableError
from ister.pipeline.task import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.core.ticks import Pace
    from ister.pipeline.client import BrokerClient
    from ister.pipeline.writer import Tick, TopicWriter

log = structlog.get_logger()

BACKOFF_S = (1.0, 30.0)
GONE_MAX = 3


class Wanted:
    """What producers wait for; a thread listens to the broker and rings."""

    def __init__(self, broker: BrokerClient, epoch: int) -> None:
        self.ring = threading.Event()
        self.fenced: FencedError | None = None
        self._broker = broker
        self._epoch = epoch
        self._upto: dict[str, int] = {}
        self._thread = threading.Thread(target=self._listen, name="ister-wakeups", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def of(self, topic: str) -> int:
        """Return below which offset someone wants a topic to be in its table."""
        return self._upto.get(topic, 0)

    def _listen(self) -> None:
        """Listen until the channel is closed; a broker that went away is asked again at the next tick's pace."""
        while True:
            try:
                for wakeup in self._broker.wakeups(self._epoch):
                    self._upto[wakeup.topic] = wakeup.upto
                    self.ring.set()
            except BrokerRefusedError as error:
                self.fenced = FencedError(f"another pipeline is the owner now: {error}")
                self.ring.set()
                return
            except BrokerUnavailableError as error:
                log.info("wakeups_wait", cause=str(error))
            except ValueError:  # the channel was closed: we are about to end
                return
            time.sleep(BACKOFF_S[0])


def drain(writer: TopicWriter, told: Callable[[Tick], None]) -> None:
    """Tick until the tables have everything that the logs had when we came."""
    writer.look()
    goals = {name: progress.next for name, progress in writer.topics.items()}
    gone = 0
    while True:
        told(writer.tick())
        behind = [one for one in writer.topics.values() if one.upto < goals.get(one.name, 0)]
        if not all(one.error for one in behind):
            gone = 0
        elif any(one.error.startswith(Verdict.GONE) for one in behind) and gone < GONE_MAX:
            gone += 1  # what was planned was pruned meanwhile: plan again
        else:
            return


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
            except BusyError as error:
                tries += 1
                log.warning("tick_failed", cause=str(error), tries=tries)
                self._stop.wait(min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** min(tries - 1, 10)))
            if wanted.fenced is not None:
                raise wanted.fenced

    def _wait(self, wanted: Wanted, began: float) -> None:
        """Return when the next tick is due; looks once in a while whether so much has come that it is due early."""
        while not self._stop.is_set() and wanted.fenced is None:
            wanted.ring.clear()
            waiting = [
                one.waiting._replace(wanted=wanted.of(one.name) > one.upto)
                for one in self._writer.topics.values()
                if not one.error
            ]
            left_s = seconds_left(self._pace, waiting, time.monotonic() - began)
            if left_s <= 0:
                return
            wanted.ring.wait(min(left_s, self._pace.least_s))
            self._writer.look()
