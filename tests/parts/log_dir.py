"""Logs to verify: whole, crashed, damaged."""

import asyncio
import json

from typer.testing import CliRunner

from ister.cli.app import app
from ister.core.frames.frame import Marker, encode_marker, encode_message
from ister.core.message import StreamMessage
from ister.wal import Wal, WalConfig
from ister.wal.directory import FileNames

NAMES = FileNames.of("wal.log")


MESSAGE = StreamMessage(b"x" * 100)


def verify(directory, *args):
    return CliRunner().invoke(app, ["wal", "verify", str(directory), *map(str, args)])


def as_json(directory, *args):
    result = verify(directory, "--output", "json", *args)
    return result, json.loads(result.stdout)


def make_log(directory, files=4, messages=10, file_name="wal.log"):
    """Make a closed log of so many files."""

    async def make():
        wal = await Wal.with_config(WalConfig(dir=directory, file_name=file_name))
        for left in range(files - 1, -1, -1):
            await wal.append_batch([MESSAGE] * messages)
            if left:
                await wal.rotate()
        await wal.close()

    asyncio.run(make())
    return sorted(directory.glob("*-*.log"))


def reopen(directory):
    async def opening():
        wal = await Wal.with_config(WalConfig(dir=directory))
        await wal.close()

    asyncio.run(opening())


def crashed_log(directory, *, torn):
    """Make a log that was killed: 3 messages attested, 2 more whole, and perhaps a torn one."""
    data = encode_marker(Marker(7, 0, 0, 0), 0)
    data += b"".join(encode_message(MESSAGE, n, n) for n in range(3))
    data += encode_marker(Marker(7, len(data), 3, len(data)), 3)
    data += b"".join(encode_message(MESSAGE, n, n) for n in range(3, 5)) + torn
    path = directory / NAMES.name(1, 0)
    path.write_bytes(data)
    return path, len(data) - len(torn)


def listing(directory):
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.iterdir()}


def flip(path, byte):
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
