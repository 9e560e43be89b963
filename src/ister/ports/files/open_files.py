"""An LRU bound on open log files: idle logs close theirs, others wait for a descriptor."""

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
    """A log that has a file open."""

    def close_active(self) -> None:
        """Close the file as soon as that is safe, and call `release` then."""


class _Opener:
    """A log that is being opened."""

    def close_active(self) -> None:
        """Do nothing: opening does not take long."""


class OpenFiles:
    """A bound on open files: a log that needs one more waits until another closes its own.

    A log that has not used its file for `idle_s` has to close it, and so has the least recently used one while others wait.
    """

    def __init__(self, limit: int, idle_s: float = IDLE_S) -> None:
        assert limit > 0, "at least one log must be able to write"
        self._limit = limit
        self._idle_s = idle_s
        self._held: OrderedDict[Holder, float] = OrderedDict()
        self._closing: set[Holder] = set()
        self._waiting: deque[tuple[Holder, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        """The number of open files."""
        return len(self._held)

    def acquire(self, holder: Holder, then: Callable[[], None]) -> None:
        """Call `then` once the holder may open its file: now, or when another has closed one."""
        if len(self._held) < self._limit and not self._waiting:
            self.hold(holder)
            then()
        else:
            self._waiting.append((holder, then))
            self._close_surplus()

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[None]:
        """Count as an open file while a log is opened; wait for that, so that many concurrent openings open few files."""
        opener = _Opener()
        admitted = asyncio.Event()
        self.acquire(opener, admitted.set)
        try:
            await admitted.wait()
            yield
        finally:
            self._waiting = deque(waiting for waiting in self._waiting if waiting[0] is not opener)
            self.release(opener)

    def hold(self, holder: Holder) -> None:
        """Count a file that is open already, even above the limit; others close theirs for it."""
        self._held[holder] = asyncio.get_running_loop().time()
        self._close_surplus()
        self._arm()

    def touch(self, holder: Holder, now: float) -> None:
        """Make a holder the most recently used one."""
        if holder in self._held:
            self._held[holder] = now
            self._held.move_to_end(holder)

    def release(self, holder: Holder) -> None:
        """Count a holder's file as closed; do nothing if it has none."""
        if self._held.pop(holder, None) is None:
            return
        self._closing.discard(holder)
        while self._waiting and len(self._held) < self._limit:
            following, then = self._waiting.popleft()
            self.hold(following)
            try:
                then()
            except Exception:
                log.exception("callback_failed", caller="open_files")  # the other waiters continue
                self._held.pop(following, None)
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_surplus(self) -> None:
        """Make as many close their files as there are too many."""
        wanted = len(self._held) + len(self._waiting) - self._limit
        if len(self._closing) < wanted:
            for holder in [held for held in self._held if held not in self._closing][: wanted - len(self._closing)]:
                self._close(holder)

    def _close(self, holder: Holder) -> None:
        self._closing.add(holder)
        try:
            holder.close_active()
        except Exception:
            log.exception("callback_failed", caller="open_files")  # the next request closes another file

    def _arm(self) -> None:
        oldest = next((used for holder, used in self._held.items() if holder not in self._closing), None)
        if self._timer is None and oldest is not None:
            self._timer = asyncio.get_running_loop().call_at(oldest + self._idle_s, self._close_idle, oldest)

    def _close_idle(self, since: float) -> None:
        self._timer = None
        for holder, used in list(self._held.items()):
            if used > since:
                break
            if holder not in self._closing:
                self._close(holder)
        self._arm()


def open_files_of_process() -> OpenFiles:
    """Return a bound for this process: a quarter of its descriptors, because connections need most of them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(MOST if soft == resource.RLIM_INFINITY else max(LEAST, min(MOST, soft // 4)))
