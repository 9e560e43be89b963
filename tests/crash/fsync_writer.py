"""Append one message at a time at level fsync, printing each acknowledged offset; ends at the first error (F8, F17)."""

import asyncio
import sys
from pathlib import Path

import structlog

from ister.core.errors import IsterError
from ister.core.message import StreamMessage
from ister.wal import Wal, WalConfig


async def main(directory: Path, count: int) -> int:
    try:
        wal = await Wal.with_config(WalConfig(dir=directory, sync_mode="always"))
    except IsterError as error:
        print(f"refused {type(error).__name__}: {error}", flush=True)
        return 4
    print(f"open {wal.next_offset}", flush=True)
    for _ in range(count):
        try:
            offset = await wal.append(StreamMessage(b"message %d" % wal.next_offset))
        except IsterError as error:
            print(f"failed {type(error).__name__}", flush=True)
            try:
                await wal.append(StreamMessage(b"after the failure"))
            except IsterError as second:
                print(f"then {type(second).__name__}", flush=True)
            return 3
        print(f"acked {offset}", flush=True)
    if count == 0:
        sys.stdin.readline()
    await wal.close()
    return 0


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.exit(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]))))
