"""A real kernel saying no: EIO from fdatasync by strace, ENOSPC from a small tmpfs."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from ister.core.offsets import StartPosition
from ister.wal import Wal, WalConfig

HERE = Path(__file__).parent
DEADLINE_S = 120
OPS = 200

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


def strace_works():
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(
        ["strace", "-f", "-e", "inject=fdatasync:error=EIO:when=1", "true"], capture_output=True, check=False
    )
    return "" if probe.returncode == 0 else f"strace may not trace here: {probe.stderr.decode()[-200:]}"


def tmpfs_works(directory):
    command = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=1m tmpfs {directory} && true"]
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    probe = subprocess.run(command, capture_output=True, check=False)
    return "" if probe.returncode == 0 else f"a tmpfs may not be mounted here: {probe.stderr.decode()[-200:]}"


def test_f8_no_acknowledgement_after_the_kernel_failed_a_sync(tmp_path, count, tell):
    reason = strace_works()
    if reason:
        pytest.skip(f"F8 NOT TRIED on a real kernel: {reason}")
    places = range(1, OPS + 1, count(40, 1))
    for n in places:  # strace counts for each of two threads: one of them comes to n
        directory = tmp_path / str(n)
        trace = tmp_path / f"{n}.trace"
        command = [
            "strace",
            "-f",
            "-o",
            str(trace),
            "-e",
            "trace=fdatasync",
            "-e",
            f"inject=fdatasync:error=EIO:when={n}+",
        ]
        ran = subprocess.run(
            [*command, sys.executable, str(HERE / "fsync_writer.py"), str(directory), str(2 * OPS)],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        lines = ran.stdout.split("\n")
        acked = [int(line.split()[1]) for line in lines if line.startswith("acked")]
        assert ran.returncode == 3, ran.stderr
        answers = [line for line in trace.read_text().split("\n") if " = " in line]
        good = [line for line in answers if line.endswith("= 0")]
        assert len(answers) == len(good) + 1, f"the sync was tried again: {answers[-3:]}"
        assert "INJECTED" in answers[-1]
        assert acked == list(range(len(good))), "each append takes one sync; none is acknowledged by the failed one"
        assert lines[len(good) + 1 : -1] == ["failed SyncFailedError", "then PoisonedError"]

        async def reopen(directory=directory):
            wal = await Wal.with_config(WalConfig(dir=directory))
            reader = wal.create_reader(StartPosition.offset(0))
            found = [(await anext(reader)).payload for _ in range(wal.next_offset)]
            await wal.close()
            return found

        found = asyncio.run(reopen())
        assert found[: len(acked)] == [b"message %d" % k for k in acked]
        assert len(found) in {len(acked), len(acked) + 1}
    tell("F8", f"real kernel: EIO at {len(places)} of {OPS} syncs")


def test_f10_a_full_disk_refuses_keeps_reading_and_resumes(tmp_path, count, tell):
    reason = tmpfs_works(tmp_path)
    if reason:
        pytest.skip(f"F10 NOT TRIED on a real file system: {reason}")
    cycles = count(100, 100)
    inner = f'mount -t tmpfs -o size=2m tmpfs "{tmp_path}" && exec "{sys.executable}" "{HERE / "fill_disk.py"}" "{tmp_path}" {cycles}'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inner], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["refused"] >= cycles
    tell(
        "F10",
        f"tmpfs: {result['cycles']} fill and free cycles, {result['refused']} refused, {result['acknowledged']} acknowledged",
    )
