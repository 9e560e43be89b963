"""Worker threads for disk operations.

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
    """Runs operations in order, off the event loop."""

    def run(self, work: Work, then: Then) -> None:
        """Run `work`, then call `then` on the loop with its result, or None and its exception."""

    def close(self) -> None:
        """Let the thread end after its queue; call nothing back any more."""


class ThreadWorker:
    """A dedicated thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[Work, Then]] = deque()
        self._results: deque[tuple[Then, Any, BaseException | None]] = deque()
        self._name = name
        self._work_read, self._work_write = os.pipe2(os.O_CLOEXEC)
        try:
            self._done_read, self._done_write = os.pipe2(os.O_CLOEXEC)
        except BaseException:
            self._close(self._work_read, self._work_write)
            raise
        try:
            self._loop.add_reader(self._done_read, self._call_back)
            Thread(target=self._work, name=name, daemon=True).start()
        except BaseException as error:
            self._loop.remove_reader(self._done_read)
            self._close(self._work_read, self._work_write, self._done_read, self._done_write)
            if isinstance(error, RuntimeError):
                raise OSError(errno.EAGAIN, f"no thread could be started: {error}") from error
            raise

    def run(self, work: Work, then: Then) -> None:
        """Run `work`, then call `then` on the loop with its result, or None and its exception."""
        self._queue.append((work, then))
        os.write(self._work_write, b"\0")

    def close(self) -> None:
        """Let the thread end after its queue; call nothing back any more."""
        self._loop.remove_reader(self._done_read)
        self._close(self._work_write, self._done_read)
        self._work_write = self._done_read = -1  # their numbers may soon be reused

    @staticmethod
    def _close(*fds: int) -> None:
        for fd in fds:
            os.close(fd)

    def _work(self) -> None:
        while os.read(self._work_read, 1):
            work, then = self._queue.popleft()
            try:
                self._results.append((then, work(), None))
            except BaseException as error:  # noqa: BLE001  # the callback gets it
                self._results.append((then, None, error))
            try:
                os.write(self._done_write, b"\0")
            except BrokenPipeError:
                break  # closed
        os.close(self._work_read)
        os.close(self._done_write)

    def _call_back(self) -> None:
        for _ in os.read(self._done_read, 4096):
            then, result, error = self._results.popleft()
            try:
                then(result, error)
            except Exception:
                # Other logs that share this thread wait for the results that follow.
                log.exception("callback_failed", caller=self._name)


class SharedWorkers:
    """A few threads for many logs: the operations of a log run in order, on one of them."""

    def __init__(self, name: str, threads: int) -> None:
        assert threads > 0, "at least one thread is needed"
        self._name = name
        self._workers: list[ThreadWorker | None] = [None] * threads
        self._users = [0] * threads

    def worker(self) -> Worker:
        """Return a handle of the thread that has the fewest users."""
        slot = self._users.index(min(self._users))
        worker = self._workers[slot]
        if worker is None:
            worker = self._workers[slot] = ThreadWorker(f"{self._name}-{slot}")
        self._users[slot] += 1
        return _Handle(self, slot, worker)

    def release(self, slot: int) -> None:
        """Remove one user; the thread of the last one ends."""
        self._users[slot] -= 1
        worker = self._workers[slot]
        if not self._users[slot] and worker is not None:
            self._workers[slot] = None
            worker.close()


class _Handle:
    """One log's handle of a shared thread."""

    def __init__(self, workers: SharedWorkers, slot: int, worker: ThreadWorker) -> None:
        self._workers = workers
        self._slot = slot
        self._worker = worker
        self._closed = False

    def run(self, work: Work, then: Then) -> None:
        """Run `work`, then call `then` on the loop with its result, or None and its exception."""
        self._worker.run(work, partial(self._call_back, then))

    def close(self) -> None:
        """Release the thread; call nothing back any more."""
        self._closed = True
        self._workers.release(self._slot)

    def _call_back(self, then: Then, result: Any, error: BaseException | None) -> None:
        if not self._closed:
            then(result, error)
