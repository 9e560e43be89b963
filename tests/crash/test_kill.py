"""Real processes on real files: killed, restarted, and fighting over one directory."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from ister.core.message import StreamMessage
from ister.wal import Wal, WalConfig

HERE = Path(__file__).parent
DEADLINE_S = 600


def script(name, *arguments, **settings):
    return subprocess.Popen(
        [sys.executable, str(HERE / name), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_f6_kill_nine_loses_nothing_that_was_acknowledged(tmp_path, count, tell, seed):
    kills = count(100, 500) // 2
    loop = script("kill_loop.py", tmp_path, kills, seed)
    out, err = loop.communicate(timeout=DEADLINE_S)
    assert loop.returncode == 0, err
    result = json.loads(out)
    assert result["kills"] == kills
    assert result["recovered"] >= result["acknowledged"] > kills
    tell(
        "F6",
        f"{kills} kills, {result['acknowledged']} acknowledged, {result['recovered']} recovered, 0 lost; slowest open {result['slowest_open_s']} s",
    )


def test_f6_a_log_with_a_512_mib_active_file_serves_within_five_seconds_of_a_kill(tmp_path, tell):
    config = WalConfig(dir=tmp_path, topic="/default/big", max_bytes=1 << 30, sync_mode="periodic")
    batch = pa.record_batch({"payload": [bytes(1000)] * 10_000})

    async def fill():
        wal = await Wal.with_config(config)
        while sum(s.path.stat().st_size for s in wal.segments()) < 512 * 1024 * 1024:
            await wal.append_arrow(batch)
        await wal.sync()
        for _ in range(5):
            await wal.append_arrow(batch)
        stop = wal.next_offset
        wal._disk._lock.release()
        wal._timers.disarm()
        return stop

    stop = asyncio.run(fill())

    async def reopen():
        began = time.monotonic()
        wal = await Wal.with_config(config)
        spent = time.monotonic() - began
        assert wal.next_offset == stop
        assert await wal.append(StreamMessage(b"next")) == stop
        await wal.close()
        return spent

    spent = asyncio.run(reopen())
    assert spent < 5
    tell("F6", f"a 512 MiB active file with an unsynced tail of 52 MiB opened in {spent:.2f} s")


def test_f17_the_second_of_two_processes_is_refused_by_name(tmp_path, count, tell):
    trials = count(3, 50)
    for trial in range(trials):
        owner = script("fsync_writer.py", tmp_path, 0)
        assert owner.stdout.readline().startswith("open")
        second = script("fsync_writer.py", tmp_path, 5)
        out, err = second.communicate(timeout=DEADLINE_S)
        assert second.returncode == 4, err
        assert f"refused LockedError: directory {tmp_path} is owned by process {owner.pid}" in out
        assert "acked" not in out
        owner.stdin.close()
        owner.stdin = None
        assert owner.wait(DEADLINE_S) == 0, owner.stderr.read()
        owner.stdout.close()
        owner.stderr.close()
        third = script("fsync_writer.py", tmp_path, 2)
        out, err = third.communicate(timeout=DEADLINE_S)
        assert third.returncode == 0, err
        assert out.split("\n")[:3] == [f"open {2 * trial}", f"acked {2 * trial}", f"acked {2 * trial + 1}"]
    tell("F17", f"{trials} second openers, all refused")
