"""The root directory of all logs: its lock, listing of topics, and removal of a log.

One lock serves all topics, so that a topic costs no descriptor. A process that opens the log of a single topic is refused
all the same, because it checks the locks of the directories above.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import InvalidNameError, IsterError
from ister.core.names import TopicName

if TYPE_CHECKING:
    from pathlib import Path

    from ister.ports.files.files import Files, Lock

log = structlog.get_logger()


class LogRoot:
    """`<root>/<namespace>/<topic>/<generation>`, one log in each."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self._files = files
        self._owning: asyncio.Future[Lock] | None = None

    async def own(self) -> Lock:
        """Lock it until `disown`; LockedError names another owner."""
        if self._owning is None:
            self._owning = asyncio.get_running_loop().run_in_executor(None, self._lock)
        owning = self._owning
        try:
            return await asyncio.shield(owning)  # a cancelled caller does not cancel the others
        except (IsterError, OSError):
            if self._owning is owning:
                self._owning = None  # the next call tries again
            raise

    async def disown(self) -> None:
        """Release the lock."""
        owning, self._owning = self._owning, None
        if owning is not None:
            with suppress(IsterError, OSError):
                (await owning).release()

    def directory(self, topic: TopicName, generation: int) -> Path:
        """Return the directory of a topic's log."""
        return self.path.joinpath(*topic.path_parts(), str(generation))

    async def topics(self) -> dict[TopicName, list[int]]:
        """Return the topics that have a directory, with their generations."""
        return await asyncio.get_running_loop().run_in_executor(None, self._topics)

    async def generations(self, topic: TopicName) -> list[int]:
        """Return the generations of a topic that have a directory."""
        return await asyncio.get_running_loop().run_in_executor(None, self._generations, *topic.path_parts())

    async def refuse_opened(self, topic: TopicName) -> None:
        """Raise LockedError if another process has a topic's log open."""
        await asyncio.get_running_loop().run_in_executor(None, self._refuse_opened, topic, await self.own())

    async def remove(self, topic: TopicName, generation: int) -> None:
        """Remove a log; LockedError if another process has it open. Idempotent."""
        directory = self.directory(topic, generation)
        await asyncio.get_running_loop().run_in_executor(None, self._remove, directory, await self.own())

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _lock(self) -> Lock:
        self._files.make_directory(self.path)
        return self._files.lock(self.path)

    def _topics(self) -> dict[TopicName, list[int]]:
        found: dict[TopicName, list[int]] = {}
        for namespace in self._names(self.path):
            for topic in self._names(self.path / namespace):
                generations = self._generations(namespace, topic)
                if not generations:
                    continue
                try:
                    found[TopicName(namespace, topic)] = generations
                except InvalidNameError:
                    log.warning("directory_ignored", directory=str(self.path / namespace / topic))
        return found

    def _generations(self, namespace: str, topic: str) -> list[int]:
        return sorted(int(name) for name in self._names(self.path / namespace / topic) if name.isdecimal())

    def _names(self, directory: Path) -> list[str]:
        try:
            return self._files.names(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _refuse_opened(self, topic: TopicName, owned: Lock) -> None:
        for generation in self._generations(*topic.path_parts()):
            self._files.lock(self.directory(topic, generation), owned).release()

    def _remove(self, directory: Path, owned: Lock) -> None:
        try:
            names = self._files.names(directory)
        except FileNotFoundError:
            return
        self._files.lock(directory, owned).release()
        for name in names:
            self._files.remove(directory / name)
        self._files.remove_directory(directory)
        self._files.sync_directory(directory.parent)
