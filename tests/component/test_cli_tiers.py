"""`ister tiers`: what log and objects hold, drawn and as JSON, at rest, damaged, and beside a broker at work.

Also what the tests of the other tools of the cloud tier share: a data directory with topics in it, made by real parts.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from ister.cli.commands.tiers import bar
from ister.core.tiers.selection import OffsetRange
from parts.data_dir import NAME, TOPIC, broker, fill, flip, log_files, make, messages, metadata_of, object_files, run


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


def tiers(data, *args):
    return run("tiers", TOPIC, "--data-dir", data, *args)


def as_json(data):
    result = tiers(data, "--output", "json")
    return result, json.loads(result.stdout)


def test_each_tier_is_told_with_its_range_and_what_waits(tmp_path):
    data = make(tmp_path / "data")
    result, report = as_json(data)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (report["topic"], report["generation"], report["start"], report["stop"]) == (TOPIC, 1, 0, 40)
    objects, log = report["objects"], report["log"]
    assert (objects["spans"], objects["objects"]) == ([[0, 30]], 3)
    assert objects["bytes"] == sum(path.stat().st_size for path in object_files(data))
    assert (log["state"], log["start"], log["stop"], log["synced_offset"], log["torn_bytes"]) == ("ok", 10, 40, 40, 0)
    assert [(file["file"], file["bytes"]) for file in log["files"]] == [
        (path.name, path.stat().st_size) for path in log_files(data)
    ]
    assert [(file["start"], file["stop"]) for file in log["files"]] == [(10, 20), (20, 30), (30, 40)]
    assert report["lag"]["messages"] == 10
    # The checkpoint of the upload stands at the end of the third file, so the last one waits whole.
    assert report["lag"]["bytes"] == log_files(data)[-1].stat().st_size
    assert report["lag"]["time_us"] >= 0
    assert report["problems"] == []


def test_people_get_two_bars_over_the_same_offsets(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    result = tiers(make(tmp_path / "data"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == f"{TOPIC}, generation 1"
    (objects,) = [line for line in lines if line.startswith("  objects ")]
    (log,) = [line for line in lines if line.startswith("  log ")]
    assert objects.split()[1] == "█" * 45 + "·" * 15
    assert log.split()[1] == "·" * 15 + "█" * 45
    assert "[0, 30)  3 objects" in objects
    assert "[10, 40)  3 files" in log
    assert "  In both tiers: 20 messages, [10, 30)." in lines
    assert any(line.startswith("  Uploaded below offset 30: 10 messages (") for line in lines)


@pytest.mark.parametrize(
    ("spans", "drawn"),
    [
        ([], "····"),
        ([OffsetRange(0, 40)], "████"),
        ([OffsetRange(0, 15)], "█▌··"),
        ([OffsetRange(25, 40)], "··▐█"),
        ([OffsetRange(0, 10), OffsetRange(30, 40)], "█··█"),
        ([OffsetRange(12, 13)], "·▌··"),
    ],
)
def test_a_bar_shows_what_is_held_wholly_and_in_part(monkeypatch, spans, drawn):
    monkeypatch.setattr("ister.cli.commands.tiers._draws", lambda: True)
    assert bar(spans, OffsetRange(0, 40), 4) == drawn


def test_a_terminal_without_blocks_gets_plain_characters(monkeypatch):
    monkeypatch.setattr("ister.cli.commands.tiers._draws", lambda: False)
    assert bar([OffsetRange(0, 15)], OffsetRange(0, 40), 4) == "#+.."


def test_an_empty_topic_has_empty_bars(tmp_path):
    data = make(tmp_path / "data", files=0, pruned=0)
    result = tiers(data)
    assert result.exit_code == 0
    assert "nothing waits" in result.stdout
    assert bar([], OffsetRange(0, 0), 4).strip("·.") == ""


def test_a_topic_that_was_never_uploaded_waits_whole(tmp_path):
    _, report = as_json(make(tmp_path / "data", uploaded=0, pruned=0))
    assert report["objects"] == {"spans": [], "objects": 0, "bytes": 0, "append_time_us": None}
    assert (report["lag"]["messages"], report["lag"]["bytes"]) == (40, report["log"]["bytes"])


def test_without_the_upload_checkpoint_the_waiting_bytes_are_not_known(tmp_path):
    data = make(tmp_path / "data")
    (data / "wal/default/orders/1/upload.json").unlink()
    result, report = as_json(data)
    assert (result.exit_code, report["lag"]["messages"], report["lag"]["bytes"]) == (0, 10, None)
    assert "10 messages wait" in tiers(data).stdout


def test_objects_alone_are_told_when_the_log_is_gone(tmp_path):
    data = make(tmp_path / "data")
    shutil.rmtree(data / "wal")
    result, report = as_json(data)
    assert (result.exit_code, report["log"]["state"], report["stop"]) == (0, "missing", 30)
    assert "There is no log." in tiers(data).stdout


def test_a_log_that_is_behind_its_objects_is_said_to_be(tmp_path):
    data = make(tmp_path / "data", pruned=0)
    for path in log_files(data)[1:]:
        path.unlink()
    result, report = as_json(data)
    assert (result.exit_code, report["log"]["state"], report["log"]["stop"], report["stop"]) == (0, "behind", 10, 30)
    assert "The log ends at offset 10, before its objects do." in tiers(data).stdout


def test_a_hole_between_objects_and_log_is_damage(tmp_path):
    data = make(tmp_path / "data", uploaded=1, pruned=1)
    log_files(data)[0].unlink()
    result, report = as_json(data)
    assert result.exit_code == 1
    assert "offsets [10, 20) are missing" in report["problems"][0]
    assert "offsets [10, 20) are missing" in result.stderr


def test_a_hole_in_the_descriptions_is_damage(tmp_path):
    data = make(tmp_path / "data")

    async def drop(metadata, catalog):
        await catalog.remove(await catalog.find(10))

    metadata_of(data, drop)
    result, report = as_json(data)
    assert result.exit_code == 1
    assert report["objects"]["spans"] == [[0, 10], [20, 30]]
    assert "offsets [10, 20) are missing: no object describes them" in result.stderr


def test_a_damaged_log_is_named_and_the_objects_are_still_told(tmp_path):
    data = make(tmp_path / "data")
    flip(log_files(data)[-1], 100)
    result, report = as_json(data)
    assert result.exit_code == 1
    assert report["log"]["state"] == "damaged"
    assert report["objects"]["spans"] == [[0, 30]]
    assert f"{log_files(data)[-1]} is corrupt at byte" in result.stderr
    assert "damaged" in tiers(data).stdout


def test_a_log_that_breaks_off_in_a_frame_is_no_damage(tmp_path):
    data = make(tmp_path / "data")
    with log_files(data)[-1].open("ab") as file:
        file.write(b"\x28\0\0\0\0\0\0\0\xff")
    result, report = as_json(data)
    assert (result.exit_code, report["log"]["stop"], report["log"]["torn_bytes"]) == (0, 40, 9)
    assert "9 bytes of an unfinished frame" in tiers(data).stdout


def test_a_topic_that_metadata_forgot_is_found_on_disk(tmp_path):
    data = make(tmp_path / "data")

    async def forget(metadata, catalog):
        await catalog.clear()
        await metadata.delete("/danube-data/storage/topics/default/orders")

    metadata_of(data, forget)
    _, report = as_json(data)
    assert (report["generation"], report["log"]["start"], report["objects"]["objects"]) == (1, 10, 0)


def test_the_tools_are_right_beside_a_broker_that_appends_rotates_uploads_and_prunes(tmp_path):
    data = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, __file__, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    ) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            seen = []
            while len(seen) < 4 or (seen[-1]["stop"] == seen[0]["stop"] and child.poll() is None):
                result, report = as_json(data)
                assert result.exit_code == 0, result.stderr
                seen.append(report)
                got = run("read", TOPIC, "--data-dir", data, "--output", "json")
                assert got.exit_code == 0, got.stderr
                lines = [json.loads(line) for line in got.stdout.splitlines()]
                assert [line["offset"] for line in lines] == list(range(len(lines)))
                assert len(lines) >= report["stop"]
                verified = run("objects", "verify", TOPIC, "--data-dir", data)
                assert verified.exit_code == 0, verified.stderr
                assert run("topics", "--data-dir", data).exit_code == 0
                locked = run("objects", "rebuild", "--data-dir", data)
                assert (locked.exit_code, "is in use by process" in locked.stderr) == (4, True)
        finally:
            child.stdin.close()
        assert child.wait(30) == 0
    assert all(before["stop"] <= after["stop"] for before, after in pairwise(seen))
    assert seen[-1]["log"]["start"] > 0
    assert seen[-1]["objects"]["objects"] > 1


def work_until_told(data):
    """Be a broker that never rests."""

    async def work():
        loop = asyncio.get_running_loop()
        enough = loop.run_in_executor(None, sys.stdin.read)
        async with broker(data) as factory:
            await fill(factory, files=3, uploaded=2, pruned=1)
            storage = await factory.for_topic(TOPIC)
            print("ready", flush=True)
            while not enough.done():
                start = storage.next_offset
                await storage.append_messages(messages(start, start + 20))
                await storage.wal.rotate()
                await storage.append_messages(messages(start + 20, start + 25))
                await factory.uploader(NAME).drain()
                await factory.deleter(NAME).tick()

    asyncio.run(work())


if __name__ == "__main__":
    import logging

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    work_until_told(sys.argv[1])
