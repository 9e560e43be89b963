"""The directory of all logs: who owns it, which topics have a log there, and how one is taken away.

One lock serves all topics, so that a thousand of them cost no descriptor each. Whoever opens the log of one topic by itself
is refused all the same: he looks whether a directory above is owned.
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

    from ister.ports.files import Files, Lock

log = structlog.get_logger()


class LogRoot:
    """`<root>/<namespace>/<topic>/<generation>`, one log in each."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self._files = files
        self._owning: asyncio.Future[Lock] | None = None

    async def own(self) -> Lock:
        """Own it until `disown`; LockedError names another owner."""
        if self._owning is None:
            self._owning = asyncio.get_running_loop().run_in_executor(None, self._lock)
        owning = self._owning
        try:
            return await asyncio.shield(owning)  # who gives up does not keep the others from it
        except (IsterError, OSError):
            if self._owning is owning:
                self._owning = None  # the next one asks again
            raise

    async def disown(self) -> None:
        """Let the next owner in."""
        owning, self._owning = self._owning, None
        if owning is not None:
            with suppress(IsterError, OSError):
                (await owning).release()

    def directory(self, topic: TopicName, generation: int) -> Path:
        """Return where a topic's log is."""
        return self.path.joinpath(*topic.path_parts(), str(generation))

    async def topics(self) -> dict[TopicName, list[int]]:
        """Return the topics that have a directory, with their generations."""
        return await asyncio.get_running_loop().run_in_executor(None, self._topics)

    async def generations(self, topic: TopicName) -> list[int]:
        """Return the generations that a topic has directories of."""
        return await asyncio.get_running_loop().run_in_executor(None, self._generations, *topic.path_parts())

    async def refuse_opened(self, topic: TopicName) -> None:
        """Raise LockedError when someone has a topic's log open by itself."""
        await asyncio.get_running_loop().run_in_executor(None, self._refuse_opened, topic, await self.own())

    async def remove(self, topic: TopicName, generation: int) -> None:
        """Remove a log; LockedError when someone has it open by itself. Can be done again and again."""
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
