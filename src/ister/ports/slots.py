"""How many logs keep their file open at a time, and which of them lets go when it is idle, or another needs the place."""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

log = structlog.get_logger()

IDLE_S = 30.0
LEAST, MOST = 16, 8192


class Holder(Protocol):
    """Someone who holds a file open."""

    def rest(self) -> None:
        """Let go of the file as soon as that is safe, and give the slot back then."""
        ...


class _Opener:
    """Someone who is about to open a file, and lets go by himself."""

    def rest(self) -> None:
        """Go on: it does not take long."""


class Slots:
    """A bound on open files: whoever wants one more waits until another lets go.

    Who has not used his file for `idle_s` is asked to let go, and so is the one who has not used his for the longest time
    when somebody waits.
    """

    def __init__(self, limit: int, idle_s: float = IDLE_S) -> None:
        assert limit > 0, "someone must be able to write"
        self._limit = limit
        self._idle_s = idle_s
        self._held: OrderedDict[Holder, float] = OrderedDict()
        self._asked: set[Holder] = set()
        self._waiting: deque[tuple[Holder, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        """How many slots are taken."""
        return len(self._held)

    def take(self, holder: Holder, then: Callable[[], None]) -> None:
        """Call `then` once there is a slot for this holder: now, or when another gives one back."""
        if len(self._held) < self._limit and not self._waiting:
            self.hold(holder)
            then()
        else:
            self._waiting.append((holder, then))
            self._press()

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[None]:
        """Hold a slot while a log is opened; waits for one, so that many openings at once open few files."""
        opener = _Opener()
        admitted = asyncio.Event()
        self.take(opener, admitted.set)
        try:
            await admitted.wait()
            yield
        finally:
            self._waiting = deque(waiting for waiting in self._waiting if waiting[0] is not opener)
            self.give_back(opener)

    def hold(self, holder: Holder) -> None:
        """Count a file that is open already, whatever the limit says; others let go for it."""
        self._held[holder] = asyncio.get_running_loop().time()
        self._press()
        self._arm()

    def used(self, holder: Holder, now: float) -> None:
        """Note that a holder has used its file."""
        if holder in self._held:
            self._held[holder] = now
            self._held.move_to_end(holder)

    def give_back(self, holder: Holder) -> None:
        """Say that a holder's file is closed; does nothing when it holds none."""
        if self._held.pop(holder, None) is None:
            return
        self._asked.discard(holder)
        while self._waiting and len(self._held) < self._limit:
            following, then = self._waiting.popleft()
            self.hold(following)
            try:
                then()
            except Exception:
                log.exception("callback_failed", caller="slots")  # the others who wait go on
                self._held.pop(following, None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _press(self) -> None:
        """Ask as many to let go as there are too many."""
        wanted = len(self._held) + len(self._waiting) - self._limit
        if len(self._asked) < wanted:
            for holder in [held for held in self._held if held not in self._asked][: wanted - len(self._asked)]:
                self._ask(holder)

    def _ask(self, holder: Holder) -> None:
        self._asked.add(holder)
        try:
            holder.rest()
        except Exception:
            log.exception("callback_failed", caller="slots")  # whoever wants a slot asks the next holder

    def _arm(self) -> None:
        oldest = next((used for holder, used in self._held.items() if holder not in self._asked), None)
        if self._timer is None and oldest is not None:
            self._timer = asyncio.get_running_loop().call_at(oldest + self._idle_s, self._ask_idle, oldest)

    def _ask_idle(self, since: float) -> None:
        self._timer = None
        for holder, used in list(self._held.items()):
            if used > since:
                break
            if holder not in self._asked:
                self._ask(holder)
        self._arm()


def slots_of_process() -> Slots:
    """Return as many as a process can spare: a quarter of its descriptors, for connections need most of them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Slots(MOST if soft == resource.RLIM_INFINITY else max(LEAST, min(MOST, soft // 4)))
