"""How tests/golden/v1 was made. It is never made again: files of an earlier release stay as they are, for ever (F41)."""

import asyncio
import json
import sys
from pathlib import Path

from ister.core.message import MsgID, StreamMessage
from ister.wal import Wal, WalConfig

MESSAGES = [
    StreamMessage(b"", MsgID()),
    StreamMessage(b"hello", MsgID(7, "", "http://127.0.0.1:6650"), 1, 1_700_000_000_000, "producer"),
    StreamMessage(
        b"\x00\xff",
        MsgID(2**64 - 1, "", "b"),
        2**64 - 1,
        2**64 - 1,
        "prodücer",
        "",
        {"k": "v", "": "", "ü": "€"},
        2**64 - 1,
        2**32 - 1,
        "κλειδί",
    ),
    StreamMessage(b"empty key", routing_key=""),
    StreamMessage(b"zero schema", schema_id=0, schema_version=0),
    StreamMessage(bytes(range(256)) * 4),
]


class FixedClock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def wall_us(self) -> int:
        self.now += 1000
        return self.now


async def make(directory: Path) -> None:
    wal = await Wal.with_config(WalConfig(dir=directory, sync_mode="always"), clock=FixedClock())
    for message in MESSAGES[:3]:
        await wal.append(message)
    await wal.rotate()
    for message in MESSAGES[3:]:
        await wal.append(message)
    await wal.close()
    (directory / "LOCK").unlink()
    found = [
        {
            **m._asdict(),
            "payload": m.payload.hex(),
            "msg_id": m.msg_id._replace(topic_offset=offset)._asdict(),
            "attributes": dict(m.attributes),
        }
        for offset, m in enumerate(MESSAGES)
    ]
    (directory / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
