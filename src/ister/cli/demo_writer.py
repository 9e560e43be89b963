"""The process that the demo kills: append without end, upload meanwhile, and report every answer on stdout.

Run as `python -m ister.cli.demo_writer DIR`. It ends when it is killed, or when nobody reads its reports any more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from ister.cli.demo_messages import ACKNOWLEDGED, BATCH, SINGLES, append_batch, append_singles
from ister.cli.demo_topic import open_topic
from ister.cli.display import notice
from ister.cli.exits import exit_code, explain
from ister.cli.logs import show_warnings
from ister.core.errors import IsterError


async def _write_without_end(directory: Path) -> None:
    async with open_topic(directory) as topic:
        while True:
            _report(await append_batch(topic.storage, BATCH))
            _report(await append_singles(topic.storage, SINGLES))


def _report(offsets: range) -> None:
    os.write(sys.stdout.fileno(), ACKNOWLEDGED.pack(offsets.start, offsets.stop))


def _main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    show_warnings()
    try:
        asyncio.run(_write_without_end(Path(sys.argv[1])))
    except BrokenPipeError:
        return 0  # the parent is gone
    except (IsterError, OSError) as error:
        notice(f"ister: {explain(error)}")
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
