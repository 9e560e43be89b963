"""Open a log's directory from the event loop, and let go of what a cancelled opening has opened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.core.warm import warm
from ister.wal.directory import FileNames, OpenedLog, Resume, open_directory

if TYPE_CHECKING:
    from pathlib import Path

    from ister.ports.files import Files, Lock
    from ister.wal.config import WalConfig


async def get_ready() -> None:
    """Compile what reads and writes frames, once a process."""
    if not warm.cache_info().currsize:
        await asyncio.get_running_loop().run_in_executor(None, warm)


async def open_log(
    files: Files, directory: Path, config: WalConfig, nonce: int, resume: Resume | None, within: Lock | None
) -> OpenedLog:
    """Own a directory, recover what is there, and bring an unsynced tail to safety, in a thread."""
    names = FileNames.of(config.file_name)
    opening = asyncio.get_running_loop().run_in_executor(
        None, open_directory, files, directory, names, nonce, config.name, resume, within
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread goes on; whatever it opens must be let go again, or nobody can ever open this log.
        opening.add_done_callback(_abandon)
        raise


def _abandon(opening: asyncio.Future[OpenedLog]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
