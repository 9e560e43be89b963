"""Show that the log keeps its promise: produce, kill -9, recover, replay, tail, and check every message.

The writer is killed while it writes. Every message that it had an answer for must be there afterwards, byte for byte,
at its offset, once. More may be there: written, and killed before the answer was given.
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
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ister.cli.demo_messages import (
    ACKNOWLEDGED,
    BATCH,
    SINGLES,
    append_batch,
    append_singles,
    check_messages,
    demo_config,
    demo_message,
)
from ister.cli.display import bars, many, megabytes, say
from ister.cli.exits import CheckFailedError, InputError, error_of
from ister.cli.verify import Report, verify_with_bar
from ister.core.offsets import StartPosition
from ister.core.recover import Verdict
from ister.wal import Wal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from ister.core.message import StreamMessage
    from ister.wal import WalReader

SILENCE_S = 60
"""How long a step may go without a sign of life before the demo says that it hangs."""


def run_demo(directory: Path | None, total: int) -> None:
    """Run the demo in a directory that is kept, or in a temporary one."""
    if directory is not None:
        _refuse_used(directory)
        _say_next(directory, _run_in(directory, total))
        return
    with tempfile.TemporaryDirectory(prefix="ister-demo-") as temporary:
        _run_in(Path(temporary) / "log", total)
    say(
        f"The log was in a temporary directory and is gone. To keep one and look into it: {_ister()} demo --dir demo-log"
    )


def _run_in(directory: Path, total: int) -> Report:
    with _bar("producing", total // 2) as advance:
        produced = _produce_and_kill(directory, total // 2, advance)
    say(
        f"Produce  a process appended messages and got an answer for {produced.acknowledged:,} of them "
        f"({_rate(produced.acknowledged, produced.seconds)}); then kill -9, while it was writing."
    )
    stored = asyncio.run(_recover_and_go_on(directory, total, produced.acknowledged))
    report = verify_with_bar(directory, "wal.log")
    _check_report(report, stored)
    files = report.present
    say(
        f"Verify   {many(len(files), 'file')}, {megabytes(sum(file.size for file in files))}: "
        f"every byte checked, offsets [0, {stored}) without a hole."
    )
    say()
    say("Every acknowledged message survived kill -9: none lost, none repeated, none changed.")
    return report


def _refuse_used(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise InputError(str(directory), "is not empty, and the demo needs a log of its own; give a new directory")


def _ister() -> str:
    """Return what to type for this program: its name, or its path when the shell would not find it."""
    beside = Path(sys.executable).parent / "ister"
    if shutil.which("ister") is not None or not beside.exists():
        return "ister"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def _say_next(directory: Path, report: Report) -> None:
    fullest = max(report.present, key=lambda file: file.messages)
    say(f"The log is in {directory}. Try next:")
    say(f"  {_ister()} wal verify {shlex.quote(str(directory))}")
    say(f"  {_ister()} wal dump {shlex.quote(str(directory / fullest.name))} --limit 20")


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


async def _recover_and_go_on(directory: Path, total: int, acknowledged: int) -> int:
    """Open the log again, check what it kept, and use it; returns how many messages it holds in the end."""
    began = time.monotonic()
    wal = await Wal.with_config(demo_config(directory))
    seconds = time.monotonic() - began
    recovered = wal.next_offset
    try:
        if recovered < acknowledged:
            raise CheckFailedError(f"{many(acknowledged - recovered, 'acknowledged message')} did not survive")
        more = recovered - acknowledged
        say(
            f"Recover  the log opened again in {seconds:.2f} s and has {recovered:,} messages: every one with an answer"
            + (f", and {more:,} that were written just before the kill." if more else ".")
        )
        with _bar("checking", recovered) as advance:
            await _read_span(wal.create_reader(StartPosition.offset(0)), range(recovered), check_messages, advance)
        say("Check    each of them has its own bytes at its own offset.")
        await _go_on(wal, range(recovered, max(total, recovered + total // 10)))
        return wal.next_offset
    finally:
        await wal.close()


async def _go_on(wal: Wal, rest: range) -> None:
    """Append the rest, while one reader replays everything and another receives what is new."""
    everything = range(rest.stop)
    replayed, received = _Sum(), _Sum()
    seconds: dict[str, float] = {}
    began = time.monotonic()
    with bars() as progress:

        async def timed(what: str, work: Coroutine[None, None, None]) -> None:
            await work
            seconds[what] = time.monotonic() - began

        def advancing(what: str, count: int) -> Callable[[int], None]:
            task = progress.add_task(what, total=count)
            return lambda step: progress.advance(task, step)

        tail = wal.create_reader(StartPosition.latest())
        replay = wal.create_reader(StartPosition.offset(0))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(timed("append", _append(wal, rest, advancing("appending", len(rest)))))
                group.create_task(timed("tail", _read_span(tail, rest, received.add, advancing("tailing", len(rest)))))
                group.create_task(
                    timed(
                        "replay", _read_span(replay, everything, replayed.add, advancing("replaying", len(everything)))
                    )
                )
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
    received.insist(rest, "the tail reader")
    replayed.insist(everything, "the replay")
    say(f"Append   a second writer added {len(rest):,} messages ({_rate(len(rest), seconds['append'])}).")
    say("Tail     at the same time, a reader that waited at the end received each of them as it came.")
    say(
        f"Replay   at the same time, a reader from offset 0 read all {len(everything):,} "
        f"({_rate(len(everything), seconds['replay'])}); checksum {replayed.text}, as it should be."
    )


async def _append(wal: Wal, rest: range, advance: Callable[[int], None]) -> None:
    left = len(rest)
    while left:
        offsets = await append_batch(wal, min(left, BATCH))
        left -= len(offsets)
        advance(len(offsets))
        if left:
            offsets = await append_singles(wal, min(left, SINGLES))
            left -= len(offsets)
            advance(len(offsets))
        await asyncio.sleep(0)  # a batch is written without waiting for anything; the readers want a turn


async def _read_span(
    reader: WalReader, span: range, take: Callable[[list[StreamMessage], int], None], advance: Callable[[int], None]
) -> None:
    """Read exactly these offsets, handing on what was read and where it should start."""
    at = span.start
    while at < span.stop:
        try:
            async with asyncio.timeout(SILENCE_S):
                messages = await reader.read()
        except TimeoutError:
            raise CheckFailedError(f"no message came for {SILENCE_S} seconds, where offset {at} was due") from None
        take(messages, at)
        at += len(messages)
        advance(len(messages))
    if at != span.stop:
        raise CheckFailedError(f"{many(at - span.stop, 'message')} came that nobody had stored")


class _Sum:
    """A checksum over the payloads of messages whose offsets have no hole."""

    def __init__(self) -> None:
        self._sum = blake2b(digest_size=8)

    @property
    def text(self) -> str:
        """The checksum so far."""
        return self._sum.hexdigest()

    def add(self, messages: Sequence[StreamMessage], start: int) -> None:
        """Take the messages that should have the offsets from `start` on."""
        if [message.offset for message in messages] != [*range(start, start + len(messages))]:
            raise CheckFailedError(f"the offsets behind {start} have a hole or are repeated")
        self._sum.update(b"".join([message.payload for message in messages]))

    def insist(self, span: range, who: str) -> None:
        """Compare with the checksum of what was stored."""
        stored = blake2b(digest_size=8)
        for number in span:
            stored.update(demo_message(number).payload)
        if stored.hexdigest() != self.text:
            raise CheckFailedError(f"{who} read other payloads than those that were stored")


# --- verify, and tell -------------------------------------------------------------------------------------------------


def _check_report(report: Report, stored: int) -> None:
    if report.problems:
        raise report.problems[0]
    if report.verdict is not Verdict.CLEAN or (report.present[0].first, report.present[-1].stop) != (0, stored):
        raise CheckFailedError(f"the log was closed in order, and its files do not hold exactly [0, {stored})")


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    with bars() as progress:
        task = progress.add_task(what, total=total)
        yield lambda step: progress.advance(task, step)


def _rate(count: int, seconds: float) -> str:
    return f"{round(count / max(seconds, 1e-6), -3):,.0f} a second"
