"""Show that promises are kept: produce, kill -9, recover, replay, tail, upload, prune, and read across both tiers.

The writer is killed while it writes and uploads. Every message that it had an answer for must be there afterwards, byte
for byte, at its offset, once. More may be there: written, and killed before the answer was given.
"""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ister.cli.demo_messages import ACKNOWLEDGED, append_all, check_messages
from ister.cli.demo_reading import SILENCE_S, PayloadSum, bar, rate, read_span
from ister.cli.demo_tiers import ReadAcross, carry_and_read_across
from ister.cli.demo_topic import TOPIC, log_directory, object_files, open_topic
from ister.cli.display import bars, many, megabytes, say
from ister.cli.exits import CheckFailedError, InputError, error_of
from ister.cli.verify import Report, verify_with_bar
from ister.core.offsets import StartPosition
from ister.core.recover import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from ister.storage.wal_storage import WalStorage


def run_demo(directory: Path | None, total: int) -> None:
    """Run the demo in a directory that is kept, or in a temporary one."""
    if directory is not None:
        _refuse_used(directory)
        _say_next(directory, _run_in(directory, total))
        return
    with tempfile.TemporaryDirectory(prefix="ister-demo-") as temporary:
        _run_in(Path(temporary) / "data", total)
    say(
        f"It was all in a temporary directory and is gone. To keep it and look into it: {_ister()} demo --dir demo-data"
    )


def _run_in(directory: Path, total: int) -> Report:
    with bar("producing", total // 2) as advance:
        produced = _produce_and_kill(directory, total // 2, advance)
    say(
        f"Produce  a process appended messages and got an answer for {produced.acknowledged:,} of them "
        f"({rate(produced.acknowledged, produced.seconds)}); then kill -9, while it was writing."
    )
    read = asyncio.run(_recover_and_go_on(directory, total, produced.acknowledged))
    report = verify_with_bar(log_directory(directory), "wal.log")
    _check_report(report, range(read.from_objects, read.total))
    files = report.present
    say(
        f"Verify   the log has {many(len(files), 'file')}, {megabytes(sum(file.size for file in files))}: "
        f"every byte checked, offsets [{read.from_objects}, {read.total}) without a hole."
    )
    say()
    say("Every acknowledged message survived kill -9: none lost, none repeated, none changed.")
    say(
        f"One reader got all {read.total:,} in order: {read.from_objects:,} from objects, {read.from_log:,} from the log, "
        f"{read.live} live."
    )
    return report


def _refuse_used(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise InputError(str(directory), "is not empty, and the demo needs a directory of its own; give a new one")


def _ister() -> str:
    """Return what to type for this program: its name, or its path when the shell would not find it."""
    beside = Path(sys.executable).parent / "ister"
    if shutil.which("ister") is not None or not beside.exists():
        return "ister"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def _say_next(directory: Path, report: Report) -> None:
    fullest = max(report.present, key=lambda file: file.messages)
    log, place = log_directory(directory), shlex.quote(str(directory))
    say(f"It is all in {directory}: log, {many(len(object_files(directory)), 'object')} and metadata. Try next:")
    say(f"  {_ister()} tiers {TOPIC} --data-dir {place}")
    say(f"  {_ister()} objects verify {TOPIC} --data-dir {place}")
    say(f"  {_ister()} wal verify {shlex.quote(str(log))}")
    say(f"  {_ister()} wal dump {shlex.quote(str(log / fullest.name))} --limit 20")


# --- produce, and kill ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Produced:
    acknowledged: int
    seconds: float


def _produce_and_kill(directory: Path, enough: int, advance: Callable[[int], None]) -> _Produced:
    """Start a writer, and kill it as soon as it has had an answer for enough messages."""
    command = [sys.executable, "-m", "ister.cli.demo_writer", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:  # noqa: S603  # our own module
        try:
            acknowledged = 0
            began = ended = time.monotonic()
            for offsets in _answers(writer):
                if acknowledged == 0:
                    began = time.monotonic()
                if offsets.start != acknowledged:
                    raise CheckFailedError(f"the answer for offset {offsets.start} came when {acknowledged} was due")
                acknowledged = offsets.stop
                advance(len(offsets))
                ended = time.monotonic()
                if acknowledged >= enough:
                    writer.kill()  # the answers that are still in the pipe were given before, and count
        finally:
            writer.kill()
    if acknowledged < enough:
        raise error_of(
            writer.returncode,
            f"the writer ended by itself with exit code {writer.returncode} after {many(acknowledged, 'message')}; "
            "its own message says why",
        )
    return _Produced(acknowledged, ended - began)


def _answers(writer: subprocess.Popen[bytes]) -> Iterator[range]:
    """Yield the offsets of each answer that the writer reports, until it is dead and the pipe is empty."""
    assert writer.stdout is not None, "it was started with a pipe"
    pipe = writer.stdout.fileno()
    held = b""
    while True:
        if not select.select([pipe], [], [], SILENCE_S)[0]:
            raise CheckFailedError(f"the writer has appended nothing for {SILENCE_S} seconds")
        data = os.read(pipe, 65536)
        if not data:
            return
        held += data
        whole = len(held) - len(held) % ACKNOWLEDGED.size
        for start, stop in ACKNOWLEDGED.iter_unpack(held[:whole]):
            yield range(start, stop)
        held = held[whole:]


# --- recover, and go on -----------------------------------------------------------------------------------------------


async def _recover_and_go_on(directory: Path, total: int, acknowledged: int) -> ReadAcross:
    """Open the topic again, check what it kept, use it, and leave what is old to objects."""
    began = time.monotonic()
    async with open_topic(directory) as topic:
        seconds = time.monotonic() - began
        storage = topic.storage
        recovered, uploaded = storage.next_offset, topic.uploader.uploaded.value
        if recovered < acknowledged:
            raise CheckFailedError(f"{many(acknowledged - recovered, 'acknowledged message')} did not survive")
        more = recovered - acknowledged
        say(
            f"Recover  the log opened again in {seconds:.2f} s and has {recovered:,} messages: every one with an answer"
            + (f", and {more:,} that were written just before the kill." if more else ".")
        )
        with bar("checking", recovered) as advance:
            await read_span(
                await storage.create_reader(StartPosition.offset(0)), range(recovered), check_messages, advance
            )
        say(f"Check    each has its own bytes at its own offset; {uploaded:,} were in objects before the kill.")
        few = max(1, total // 10)
        await _go_on(storage, range(recovered, max(total - few, recovered + few)))
        return await carry_and_read_across(topic, directory, few)


async def _go_on(storage: WalStorage, rest: range) -> None:
    """Append the rest, while one reader replays everything and another receives what is new."""
    everything = range(rest.stop)
    replayed, received = PayloadSum(), PayloadSum()
    seconds: dict[str, float] = {}
    began = time.monotonic()
    with bars() as progress:

        async def timed(what: str, work: Coroutine[None, None, None]) -> None:
            await work
            seconds[what] = time.monotonic() - began

        def advancing(what: str, count: int) -> Callable[[int], None]:
            task = progress.add_task(what, total=count)
            return lambda step: progress.advance(task, step)

        tail = await storage.create_reader(StartPosition.latest())
        replay = await storage.create_reader(StartPosition.offset(0))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(timed("append", append_all(storage, len(rest), advancing("appending", len(rest)))))
                group.create_task(timed("tail", read_span(tail, rest, received.add, advancing("tailing", len(rest)))))
                group.create_task(
                    timed(
                        "replay", read_span(replay, everything, replayed.add, advancing("replaying", len(everything)))
                    )
                )
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
    received.insist(rest, "the tail reader")
    replayed.insist(everything, "the replay")
    say(f"Append   a second writer added {len(rest):,} messages ({rate(len(rest), seconds['append'])}).")
    say("Tail     at the same time, a reader that waited at the end received each of them as it came.")
    say(
        f"Replay   at the same time, a reader from offset 0 read all {len(everything):,} "
        f"({rate(len(everything), seconds['replay'])}); checksum {replayed.text}, as it should be."
    )


# --- verify, and tell -------------------------------------------------------------------------------------------------


def _check_report(report: Report, span: range) -> None:
    if report.problems:
        raise report.problems[0]
    if report.verdict is not Verdict.CLEAN or (report.present[0].first, report.present[-1].stop) != (
        span.start,
        span.stop,
    ):
        raise CheckFailedError(
            f"the log was closed in order, and its files do not hold exactly [{span.start}, {span.stop})"
        )
