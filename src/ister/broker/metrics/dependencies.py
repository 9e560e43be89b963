"""Probes of what a broker depends on, metadata and the object store, for readiness reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import IsterError
from ister.ports.metadata.store import check_writable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ister.ports.metadata import Metadata
    from ister.storage.factory import WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory

log = structlog.get_logger()

PROBE_INTERVAL_S = 15.0
PROBE_TIMEOUT_S = 10.0


def probes_of(
    metadata: Metadata, factory: WalStorageFactory | LakeStorageFactory
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the probes of a broker's dependencies by name; each raises if its dependency fails."""
    root = factory.config.root_prefix.rstrip("/")
    return {"metadata": lambda: check_writable(metadata, root), "objects": factory.check_store}


class Dependencies:
    """Probes each dependency periodically; `failing` holds those that fail."""

    def __init__(self, probes: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        self.failing: set[str] = set()
        self._probes = probes
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start probing."""
        self._tasks = [asyncio.create_task(self._watch(name, probe)) for name, probe in self._probes.items()]

    async def stop(self) -> None:
        """Stop probing."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _watch(self, name: str, probe: Callable[[], Awaitable[None]]) -> None:
        while True:
            cause = await _failure(probe)
            if cause and name not in self.failing:
                self.failing.add(name)
                log.warning("dependency_failed", dependency=name, cause=cause)
            elif not cause and name in self.failing:
                self.failing.remove(name)
                log.info("dependency_recovered", dependency=name)
            await asyncio.sleep(PROBE_INTERVAL_S)


async def _failure(probe: Callable[[], Awaitable[None]]) -> str:
    """Return the error text of a probe, empty if it succeeds."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await probe()
    except TimeoutError:
        return f"no answer in {PROBE_TIMEOUT_S:g} s"
    except (IsterError, OSError) as error:
        return str(error)
    except Exception as error:  # the root of a task: the next probe may work
        log.exception("dependency_probe_failed")
        return type(error).__name__
    return ""
