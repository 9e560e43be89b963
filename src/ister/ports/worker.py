"""A thread that waits for the disk, so that the event loop need not.

Two pipes and a callback instead of an executor and a future: the thread sleeps in a read of one pipe, the loop in its
poll of the other. A round trip costs 95 µs where `run_in_executor` costs 230 (docs/performance.md), and a sync of a
fast disk takes 250.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], Any]
    Then = Callable[[Any, BaseException | None], None]


log = structlog.get_logger()


class Worker(Protocol):
    """Does one thing after the other, away from the event loop."""

    def run(self, work: Work, then: Then) -> None:
        """Do the work, then call back on the loop with what it returned, or None and what it raised."""
        ...

    def close(self) -> None:
        """Let the thread end once it has done what it was given; nothing is called back any more."""
        ...


class ThreadWorker:
    """A real thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[tuple[Work, Then]] = deque()
        self._answers: deque[tuple[Then, Any, BaseException | None]] = deque()
        self._name = name
        self._asked, self._ask = os.pipe2(os.O_CLOEXEC)
        try:
            self._told, self._tell = os.pipe2(os.O_CLOEXEC)
        except BaseException:
            self._close(self._asked, self._ask)
            raise
        try:
            self._loop.add_reader(self._told, self._answer)
            Thread(target=self._work, name=name, daemon=True).start()
        except BaseException as error:
            self._loop.remove_reader(self._told)
            self._close(self._asked, self._ask, self._told, self._tell)
            if isinstance(error, RuntimeError):
                raise OSError(errno.EAGAIN, f"no thread could be started: {error}") from error
            raise

    def run(self, work: Work, then: Then) -> None:
        """Do the work, then call back on the loop with what it returned, or None and what it raised."""
        self._jobs.append((work, then))
        os.write(self._ask, b"\0")

    def close(self) -> None:
        """Let the thread end once it has done what it was given; nothing is called back any more."""
        self._loop.remove_reader(self._told)
        self._close(self._ask, self._told)
        self._ask = self._told = -1  # their numbers may soon be other files'

    @staticmethod
    def _close(*fds: int) -> None:
        for fd in fds:
            os.close(fd)

    def _work(self) -> None:
        while os.read(self._asked, 1):
            work, then = self._jobs.popleft()
            try:
                self._answers.append((then, work(), None))
            except BaseException as error:  # noqa: BLE001  # whatever it is, it belongs to whoever is called back
                self._answers.append((then, None, error))
            try:
                os.write(self._tell, b"\0")
            except BrokenPipeError:
                break  # closed meanwhile
        os.close(self._asked)
        os.close(self._tell)

    def _answer(self) -> None:
        for _ in os.read(self._told, 4096):
            then, result, error = self._answers.popleft()
            try:
                then(result, error)
            except Exception:
                # Whoever else this thread works for waits for the answers that follow.
                log.exception("callback_failed", caller=self._name)


class SharedWorkers:
    """A few threads for many logs: each log's work is still done in order, by one of them."""

    def __init__(self, name: str, threads: int) -> None:
        assert threads > 0, "someone must do the work"
        self._name = name
        self._workers: list[ThreadWorker | None] = [None] * threads
        self._users = [0] * threads

    def worker(self) -> Worker:
        """Return a share of the thread that has the fewest users."""
        slot = self._users.index(min(self._users))
        worker = self._workers[slot]
        if worker is None:
            worker = self._workers[slot] = ThreadWorker(f"{self._name}-{slot}")
        self._users[slot] += 1
        return _Share(self, slot, worker)

    def let_go(self, slot: int) -> None:
        """Take one user away; the thread of the last one ends."""
        self._users[slot] -= 1
        worker = self._workers[slot]
        if not self._users[slot] and worker is not None:
            self._workers[slot] = None
            worker.close()


class _Share:
    """One log's share of a thread."""

    def __init__(self, workers: SharedWorkers, slot: int, worker: ThreadWorker) -> None:
        self._workers = workers
        self._slot = slot
        self._worker = worker
        self._closed = False

    def run(self, work: Work, then: Then) -> None:
        """Do the work, then call back on the loop with what it returned, or None and what it raised."""
        self._worker.run(work, partial(self._answer, then))

    def close(self) -> None:
        """Give the share back; nothing is called back any more."""
        self._closed = True
        self._workers.let_go(self._slot)

    def _answer(self, then: Then, result: Any, error: BaseException | None) -> None:
        if not self._closed:
            then(result, error)
