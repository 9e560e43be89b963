"""`ister wal dump`: every field of every frame, and the truth about what stands behind the last one."""

import asyncio
import json
import os
import random
import subprocess
import sys
from base64 import b64decode
from zlib import crc32

import pytest
import structlog
from typer.testing import CliRunner

from ister.cli.app import app
from ister.core.frames.frame import HEADER_BYTES, Marker, encode_marker, encode_message
from ister.core.message import MsgID, StreamMessage
from ister.wal import Wal, WalConfig

pytestmark = pytest.mark.slow

NONCE = 4711
LIMIT_S = 60

FULL = StreamMessage(
    payload=bytes(range(256)),
    msg_id=MsgID(2**64 - 1, "", "broker.example:6650", 0),
    request_id=2**63,
    publish_time=1_700_000_000_000,
    producer_name="Müller 漢字 \x1b[31m",
    attributes={"clé": "значение", "empty": "", "": "no name", "quote": '"\\\n'},
    schema_id=0,
    schema_version=2**32 - 1,
    routing_key="ключ",
)
EMPTY_KEY = StreamMessage(b"", routing_key="")
NO_KEY = StreamMessage(b"plain")


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def dump(path, *args):
    return CliRunner().invoke(app, ["wal", "dump", str(path), *map(str, args)])


def log_name(seq=1, first=0):
    return f"wal-{seq:010}-{first:020}.log"


def opening(first=0):
    return encode_marker(Marker(NONCE, 0, first, 0), first)


def frames(messages, first=0):
    return b"".join(encode_message(m, n, 1_000_000 + n) for n, m in enumerate(messages, first))


def closed(data, stop):
    """Add the marker that attests everything before it."""
    return data + encode_marker(Marker(NONCE, len(data), stop, len(data)), stop)


def write(directory, data, seq=1, first=0):
    path = directory / log_name(seq, first)
    path.write_bytes(data)
    return path


def back(fields):
    """Rebuild a message from its JSON object."""
    return StreamMessage(
        payload=b64decode(fields["payload"]),
        msg_id=MsgID(fields["producer_id"], "", fields["broker_addr"], fields["offset"]),
        request_id=fields["request_id"],
        publish_time=fields["publish_time"],
        producer_name=fields["producer_name"],
        attributes=fields["attributes"],
        schema_id=fields["schema_id"],
        schema_version=fields["schema_version"],
        routing_key=fields["routing_key"],
        append_time_us=fields["append_time_us"],
    )


def test_json_gives_back_every_field_of_every_message(tmp_path):
    messages = [FULL, EMPTY_KEY, NO_KEY]
    path = write(tmp_path, opening() + frames(messages))
    result = dump(path, "--output", "json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    stored = [
        m._replace(msg_id=m.msg_id._replace(topic_offset=n), append_time_us=1_000_000 + n)
        for n, m in enumerate(messages)
    ]
    assert result.exit_code == 0
    assert result.stderr == ""
    assert [line["kind"] for line in lines] == ["marker", "message", "message", "message"]
    assert [back(line) for line in lines[1:]] == stored
    assert [line["routing_key"] for line in lines[1:]] == ["ключ", "", None]
    assert list(lines[1]["attributes"]) == list(FULL.attributes)


def test_json_gives_back_the_very_bytes_of_the_file(tmp_path):
    data = closed(opening() + frames([FULL, EMPTY_KEY, NO_KEY]), 3)
    lines = [json.loads(line) for line in dump(write(tmp_path, data), "-o", "json").stdout.splitlines()]
    again = b""
    for line in lines:
        assert line["byte"] == len(again)
        if line["kind"] == "marker":
            marker = Marker(line["nonce"], line["own_byte"], line["synced_offset"], line["synced_byte"])
            frame = encode_marker(marker, line["offset"])
        else:
            frame = encode_message(back(line), line["offset"], line["append_time_us"])
        assert line["length"] == len(frame)
        assert line["crc"] == int.from_bytes(frame[12:16], "little")
        again += frame
    assert again == data


def test_people_get_one_aligned_line_a_frame_that_cannot_steer_the_terminal(tmp_path):
    path = write(tmp_path, closed(opening() + frames([FULL, EMPTY_KEY, NO_KEY]), 3))
    result = dump(path)
    heading, first_marker, full, empty_key, no_key, last_marker = result.stdout.splitlines()
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert " ".join(heading.split()) == "BYTE OFFSET LENGTH CRC KIND APPENDED (UTC) PRODUCER KEY ATTRS SIZE PAYLOAD"
    assert "synced: below offset 0, byte 0" in first_marker
    assert "1970-01-01T00:00:01.000000Z" in full
    assert full.split()[1] == "0"
    assert "Müller 漢字" in full
    assert full.split()[-3:-1] == ["4", "256"]
    assert '""' in empty_key
    assert " - " in no_key
    assert no_key.endswith("plain")
    assert no_key.index("message") == heading.index("KIND")
    assert "synced: below offset 3" in last_marker


def test_whole_payloads_are_shown_when_asked_for(tmp_path):
    payload = b"".join(b"%015d\n" % n for n in range(40))
    result = dump(write(tmp_path, frames([StreamMessage(payload)])), "--payload")
    shown = b"".join(
        bytes.fromhex(line[14:61]) for line in result.stdout.splitlines() if line.startswith("    000") and "|" in line
    )
    assert shown == payload


def test_from_and_limit_choose_what_is_shown(tmp_path):
    path = write(tmp_path, opening() + frames([NO_KEY] * 100))
    lines = [json.loads(x) for x in dump(path, "-o", "json", "--from", 40, "--limit", 5).stdout.splitlines()]
    assert [line["offset"] for line in lines] == [40, 41, 42, 43, 44]


def test_an_offset_behind_the_end_is_said_not_to_be_there(tmp_path):
    result = dump(write(tmp_path, frames([NO_KEY] * 3)), "--from", 7)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no frame at or behind offset 7; its messages end before 3" in result.stderr


def test_the_first_offset_comes_from_the_name(tmp_path):
    path = write(tmp_path, frames([NO_KEY] * 3, first=10), first=10)
    assert dump(path).exit_code == 0
    wrong = dump(write(tmp_path, closed(frames([NO_KEY] * 3, first=10), 13), seq=5, first=9))
    assert wrong.exit_code == 1
    assert "at byte 0, where offset 9 should be" in wrong.stderr


def test_a_copy_under_another_name_can_be_read_too(tmp_path):
    path = tmp_path / "copy.bin"
    path.write_bytes(opening(10) + frames([NO_KEY] * 3, first=10))
    result = dump(path, "-o", "json")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4
    path.write_bytes(closed(opening(10) + frames([NO_KEY] * 3, first=10), 13).replace(b"plain", b"plaim", 1))
    damaged = dump(path, "-o", "json")
    assert damaged.exit_code == 1
    assert f"at byte {len(opening())}, where offset 10 should be" in damaged.stderr


def test_frames_larger_than_a_read_and_many_small_ones_are_all_shown(tmp_path):
    big = StreamMessage(random.Random(1).randbytes(3 * 1024 * 1024 + 17))
    messages = [*[NO_KEY] * 5000, big, *[NO_KEY] * 5000, big]
    path = write(tmp_path, frames(messages))
    lines = [json.loads(line) for line in dump(path, "-o", "json").stdout.splitlines()]
    assert [line["offset"] for line in lines] == list(range(10_002))
    assert b64decode(lines[5000]["payload"]) == big.payload


def test_every_flipped_byte_before_the_last_marker_is_named_and_what_came_before_is_shown(tmp_path):
    before = opening() + frames([NO_KEY] * 2)
    data = closed(before + frames([NO_KEY], first=2), 3)
    victim = range(len(before), len(data) - len(opening()))
    for byte in victim:
        path = write(tmp_path, data[:byte] + bytes([data[byte] ^ 0x40]) + data[byte + 1 :])
        result = dump(path, "-o", "json")
        assert result.exit_code == 1, f"byte {byte}"
        assert len(result.stdout.splitlines()) == 3
        assert f"{path.name} is corrupt at byte {len(before)}, where offset 2 should be" in result.stderr


def test_a_frame_of_a_newer_release_is_not_called_damage(tmp_path):
    body = bytes([9, 3]) + b"from the future"
    head = (1).to_bytes(8, "little") + len(body).to_bytes(4, "little")
    path = write(tmp_path, frames([NO_KEY]) + head + crc32(head + body).to_bytes(4, "little") + body)
    result = dump(path)
    assert result.exit_code == 1
    assert "kind 9, version 3" in result.stderr
    assert "use the release that wrote it" in result.stderr


@pytest.mark.parametrize("missing", [1, HEADER_BYTES, 50])
def test_a_torn_tail_is_explained_and_is_no_failure(tmp_path, missing):
    whole = opening() + frames([NO_KEY] * 3)
    path = write(tmp_path, (whole + frames([NO_KEY], first=3))[:-missing])
    result = dump(path, "-o", "json")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4
    assert f"torn tail: {path.stat().st_size - len(whole)} bytes from byte {len(whole)} on" in result.stderr
    assert "where offset 3 should be" in result.stderr
    assert "normal after a crash" in result.stderr


def test_a_tail_that_was_superseded_is_neither_shown_nor_called_damage(tmp_path):
    kept = closed(opening() + frames([NO_KEY] * 3), 3)
    path = write(tmp_path, kept + frames([StreamMessage(b"superseded")] * 2, first=3) + b"torn")
    follower = write(tmp_path, frames([NO_KEY] * 4, first=3), seq=2, first=3)
    result = dump(path, "-o", "json")
    assert result.exit_code == 0
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()][-2:] == ["message", "marker"]
    rest = path.stat().st_size - len(kept)
    assert f"{rest} bytes behind byte {len(kept)} were superseded by {follower.name}" in result.stderr


@pytest.mark.parametrize("tail", [b"\0" * 100, b"garbage of any kind", frames([NO_KEY], first=77)])
def test_whatever_stands_in_a_superseded_tail_is_not_judged(tmp_path, tail):
    kept = opening() + frames([NO_KEY] * 3)
    path = write(tmp_path, kept + tail)
    write(tmp_path, b"", seq=2, first=3)
    result = dump(path)
    assert result.exit_code == 0
    assert f"{len(tail)} bytes behind byte {len(kept)} were superseded" in result.stderr


def test_a_sealed_file_that_ends_with_its_markers_has_no_superseded_tail(tmp_path):
    path = write(tmp_path, closed(closed(opening() + frames([NO_KEY] * 3), 3), 3))
    write(tmp_path, b"", seq=2, first=3)
    result = dump(path)
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_sealed_file_that_ends_too_early_is_corrupt(tmp_path):
    kept = opening() + frames([NO_KEY] * 3)
    path = write(tmp_path, kept)
    write(tmp_path, b"", seq=2, first=5)
    result = dump(path)
    assert result.exit_code == 1
    assert f"at byte {len(kept)}, where offset 3 should be: the file ends too early" in result.stderr


def test_a_torn_file_before_a_later_one_is_corrupt_even_if_one_is_missing_between(tmp_path):
    path = write(tmp_path, frames([NO_KEY] * 3)[:-1])
    write(tmp_path, b"", seq=3, first=5)
    assert dump(path).exit_code == 1


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x01\x00H\x00H\x00\x00\xff\xdb" + b"\x00" * 300,
        b"\x00" * 4096,
        b"#!/bin/sh\necho hello\n",
        b"x",
        b"\x00" * 8 + (50).to_bytes(4, "little") + b"\x00" * 10,
        random.Random(2).randbytes(100_000),
    ],
    ids=["jpeg", "zeros", "script", "one byte", "a length that is never reached", "random"],
)
def test_what_is_no_log_file_is_refused_with_a_sentence(tmp_path, content):
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    result = dump(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (f"ister: {path} is not a log file: no frame starts at its first byte; check the path.\n")


def test_empty_missing_and_strange_files_are_refused_with_a_sentence(tmp_path):
    (tmp_path / "empty.txt").touch()
    os.mkfifo(tmp_path / log_name(8))
    for path, sentence in (
        (tmp_path / "empty.txt", "is empty and is not named like a log file"),
        (tmp_path / "nothing.log", "does not exist"),
        (tmp_path, "is a directory, not a file"),
        (tmp_path / log_name(8), "is not a regular file"),
        (tmp_path / "empty.txt" / "x", "is not a directory"),
        (tmp_path / ("x" * 300), "cannot be used (File name too long)"),
    ):
        result = dump(path)
        assert result.exit_code == 2
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1


def test_an_empty_log_file_has_no_frames_and_that_is_fine(tmp_path):
    result = dump(write(tmp_path, b""))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has no frames yet" in result.stderr


def test_a_log_in_use_can_be_dumped_and_nothing_is_changed(tmp_path):
    async def use():
        wal = await Wal.with_config(WalConfig(dir=tmp_path, max_bytes=4096))
        try:
            for _ in range(40):
                await wal.append_batch([NO_KEY] * 5)
            await wal.sync()
            before = listing(tmp_path)
            shown = []
            for path in sorted(tmp_path.glob("wal-*.log")):
                result = dump(path, "-o", "json")
                assert (result.exit_code, result.stderr) == (0, "")
                shown += [json.loads(line) for line in result.stdout.splitlines()]
            assert listing(tmp_path) == before
            assert [x["offset"] for x in shown if x["kind"] == "message"] == list(range(200))
            assert len(before) > 3
            assert list(await wal.append_batch([NO_KEY])) == [200]
        finally:
            await wal.close()

    asyncio.run(use())


def listing(directory):
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.iterdir()}


def test_a_reader_that_goes_away_is_no_failure_and_leaves_no_traceback(tmp_path):
    path = write(tmp_path, frames([NO_KEY] * 20_000))
    command = [sys.executable, "-c", "from ister.cli import main; main()", "wal", "dump", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().split()[0] == "BYTE"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(LIMIT_S) == 141


def test_a_terminal_without_unicode_gets_escapes(tmp_path):
    path = write(tmp_path, frames([FULL]))
    command = [sys.executable, "-c", "from ister.cli import main; main()", "wal", "dump", str(path)]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=env, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"M\xfcller" in done.stdout
