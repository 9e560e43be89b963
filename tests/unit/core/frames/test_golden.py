"""F41: what an earlier release wrote is readable for ever, and the format does not drift by accident."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from ister.core.frames.columns import decode_batch
from ister.core.frames.frame import FrameDecoder, encode_message
from ister.core.frames.recover import Verdict
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.wal import Wal, WalConfig
from parts.recover import recover

GOLDEN = Path(__file__).parents[3] / "golden"
RELEASES = sorted(path for path in GOLDEN.iterdir() if path.is_dir() and path.name.startswith("v"))


def expected(release):
    return [
        StreamMessage(**{**row, "payload": bytes.fromhex(row["payload"]), "msg_id": MsgID(**row["msg_id"])})
        for row in json.loads((release / "expected.json").read_text())
    ]


def unstamped(messages):
    return [m._replace(append_time_us=0) for m in messages]


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_f41_every_frame_of_an_earlier_release_decodes_to_what_was_sent(release):
    frames = []
    for path in sorted(release.glob("*.log")):
        first = int(path.stem.rsplit("-", 1)[1])
        data = path.read_bytes()
        assert recover(data, first).verdict is Verdict.CLEAN
        found = [
            f.content
            for f in FrameDecoder(path.name, first_offset=first).feed(data)
            if isinstance(f.content, StreamMessage)
        ]
        assert decode_batch(data, first_offset=first)["payload"].to_pylist() == [m.payload for m in found]
        frames += found
    assert unstamped(frames) == expected(release)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_f41_a_log_of_an_earlier_release_opens_and_goes_on(release, tmp_path):
    shutil.copytree(release, tmp_path / "log")

    async def main():
        wal = await Wal.with_config(WalConfig(dir=tmp_path / "log"))
        sent = expected(release)
        assert wal.next_offset == len(sent)
        reader = wal.create_reader(StartPosition.offset(0))
        assert unstamped([await anext(reader) for _ in sent]) == sent
        assert await wal.append(StreamMessage(b"new")) == len(sent)
        await wal.close()

    asyncio.run(main())


def test_f41_this_release_still_writes_the_bytes_of_version_1():
    frame = encode_message(
        StreamMessage(b"hi", MsgID(3, "", "b"), 4, 5, "p", "", {"k": "v"}, 6, 7, "r"),
        offset=2,
        append_time_us=1_800_000_000_000_001,
    )
    assert frame.hex() == (
        "02000000000000004d000000f3164fe7"
        "0101070007000000018098281765060005000000000000000300000000000000"
        "0400000000000000060000000000000001000100010001000800000002000000"
        "7062720100010000006b766869"
    )
