"""Fill a small disk, see appends refused and reads go on, free space, see appends resume; again and again (F10).

fill_disk.py DIRECTORY CYCLES, with DIRECTORY on a file system of a few MiB.
"""

import asyncio
import errno
import json
import sys
from pathlib import Path

import structlog

from ister.core.errors import DiskFullError
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.wal import Wal, WalConfig


async def main(directory: Path, cycles: int) -> None:
    config = WalConfig(dir=directory / "log", max_bytes=200_000, cache_capacity=10)
    ballast = directory / "ballast"
    wal = await Wal.with_config(config)
    refused = acked = 0
    for cycle in range(cycles):
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    continue
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        room = (cycle % 8) * 4096 + cycle * 13
        with ballast.open("r+b") as file:
            file.truncate(max(0, ballast.stat().st_size - room))
        while True:
            try:
                offset = await wal.append(StreamMessage(b"%d" % acked + bytes(500 + cycle)))
            except DiskFullError:
                refused += 1
                break
            assert offset == acked
            acked += 1
        reader = wal.create_reader(StartPosition.offset(wal.start_offset))
        for expected in range(wal.start_offset, acked):
            message = await anext(reader)
            assert message.offset == expected
            assert message.payload.startswith(b"%d\0" % expected)
        ballast.unlink()
        await wal.prune(acked - 500)
        assert await wal.append(StreamMessage(b"%d\0" % acked)) == acked
        acked += 1
    await wal.close()
    wal = await Wal.with_config(config)
    assert wal.next_offset == acked
    await wal.close()
    print(json.dumps({"cycles": cycles, "refused": refused, "acknowledged": acked}))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
