"""The demo: a broker, official clients, kill -9 in the middle, a lost log, a table, and a loss of all but the table.

The clients handle no errors of their own. Every acknowledged message must reach every subscription, byte for byte, at one
offset, in order, through all of it.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from ister.cli.demo.broker import DemoBroker
from ister.cli.demo.clients import TOPIC, Consumers, connected, produce, until
from ister.cli.demo.history import SHOPS, History, Subscription, check_replay
from ister.cli.demo.lake import write_and_count
from ister.cli.exit_codes import CheckFailedError
from ister.cli.output import bars, many, megabytes, say, tables
from ister.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress


def run_demo(directory: Path | None, total: int) -> None:
    """Run the demo in a given directory, or in a temporary one."""
    if directory is not None:
        _refuse_used(directory)
        asyncio.run(_run_in(directory, total))
        _say_next(directory)
        return
    with tempfile.TemporaryDirectory(prefix="ister-demo-") as temporary:
        asyncio.run(_run_in(Path(temporary), total))
    say("It was all in a temporary directory and is gone. Try next:")
    say(f"  {_ister()} serve                       # a broker of your own, in ./danube-data")
    say(f"  {_ister()} produce /default/hello -m 'Hello, Danube'")
    say(f"  {_ister()} consume /default/hello --from earliest")
    say(f"  {_ister()} sql 'SELECT count(*) FROM default.hello'")  # noqa: S608  # shown, not run
    say(f"  {_ister()} demo --dir demo-data        # the same again, kept to look into")


def _refuse_used(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise InputError(str(directory), "is not empty, and the demo needs a directory of its own; give a new one")


def _ister() -> str:
    """Return the command to type: `ister`, or its path if it is not on the PATH."""
    beside = Path(sys.executable).parent / "ister"
    if shutil.which("ister") is not None or not beside.exists():
        return "ister"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def _say_next(directory: Path) -> None:
    place = f"--config {shlex.quote(str(directory / 'ister.yml'))} --data-dir {shlex.quote(str(directory / 'data'))}"
    say(f"It is all in {directory}: table, log, metadata, and what the broker said. Try next:")
    say(f"  {_ister()} tiers {TOPIC} {place}")
    say(f"  {_ister()} read {TOPIC} --to 20 {place}")
    say(f"  {_ister()} sql 'SELECT count(*) FROM {TOPIC.strip('/').replace('/', '.')}' {place}")  # noqa: S608  # shown, not run
    say(f"  {_ister()} serve {place}")


# --- the demo ---------------------------------------------------------------------------------------------------------


async def _run_in(directory: Path, total: int) -> None:
    history = History(
        subscriptions=[
            Subscription("billing", "Exclusive", 1),
            Subscription("packing", "Shared", 3),
            Subscription("loyalty", "KeyShared", 2),
        ]
    )
    with DemoBroker(directory) as broker:
        await asyncio.to_thread(broker.start)
        say(f"Serve    a broker listens on {broker.url}, ready after {broker.start_seconds:.1f} s.")
        await _produce_and_kill(broker, history, total)
        stored = history.check()
        _show(history, stored)
        await _lose_the_log(broker, stored)
        await _write_to_the_table(broker, stored)
        await _lose_all_but_the_table(broker, stored)
        await asyncio.to_thread(broker.stop)
    say()
    say(
        "Every acknowledged message survived kill -9, a lost log and a lost object store: none lost, none changed, none twice."
    )


async def _produce_and_kill(broker: DemoBroker, history: History, total: int) -> None:
    """Produce and consume, and kill the broker after half of the messages."""
    began = time.monotonic()
    with bars() as progress:
        async with connected(broker.url) as client:
            readings: list[Consumers] = []
            try:
                async with asyncio.TaskGroup() as group:
                    for shop, count, advance in _shares(progress, total):
                        group.create_task(produce(client, shop, count, history, advance))
                    await until(lambda: history.answers > 0, lambda: history.answers, "producing")
                    for subscription in history.subscriptions:
                        reading = Consumers(client, subscription, _bar(progress, subscription.name, total))
                        readings.append(reading)
                        await reading.start()
                    await until(lambda: history.answers >= total // 2, lambda: history.answers, "producing")
                    await _kill(broker, history)
                await until(
                    history.is_complete, lambda: sum(len(s.received) for s in history.subscriptions), "consuming"
                )
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from failures
            finally:
                for reading in readings:
                    await reading.stop()
    seconds = time.monotonic() - began
    say(
        f"Go on    the clients went on by themselves, without a line of their code changing: {history.answers:,} messages "
        f"have an answer, {seconds:.1f} s in all."
    )


def _shares(progress: Progress, total: int) -> list[tuple[str, int, Callable[[int], None]]]:
    """Distribute the messages to the shops."""
    share, rest = divmod(total, len(SHOPS))
    advance = _bar(progress, "producing", total)
    return [(shop, share + (number < rest), advance) for number, shop in enumerate(SHOPS)]


def _bar(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    task = progress.add_task(what, total=total)
    return lambda step: progress.advance(task, step)


async def _kill(broker: DemoBroker, history: History) -> None:
    answers = history.answers
    await asyncio.to_thread(broker.kill)
    history.kills += 1
    say(
        f"Produce  {len(SHOPS)} producers had an answer for {answers:,} messages, while "
        f"{sum(s.consumers for s in history.subscriptions)} consumers in {len(history.subscriptions)} subscriptions took them."
    )
    say("Kill     then kill -9, in the middle of it.")
    await asyncio.to_thread(broker.start)
    say(f"Restart  the broker is back at the same address after {broker.start_seconds:.1f} s.")


def _show(history: History, stored: list[bytes]) -> None:
    table = Table("subscription", "type", "consumers", "messages", "came again", "missing", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for each in history.subscriptions:
        missing = len(stored) - len(each.stored())
        table.add_row(
            each.name, each.kind, f"{each.consumers}", f"{len(each.stored()):,}", f"{each.repeated:,}", f"{missing:,}"
        )
    say()
    tables().print(table)
    say()
    twice = len(stored) - len(set(stored))
    say(
        f"Check    {many(len(stored), 'message')} at offsets [0, {len(stored)}), every byte as it was sent, in order"
        + (f"; {twice} of them sent twice, because the kill swallowed the answer." if twice else ".")
    )


async def _lose_the_log(broker: DemoBroker, stored: list[bytes]) -> None:
    """Stop the broker, delete its log, and read everything again from objects."""
    seconds = await asyncio.to_thread(broker.stop)
    objects = sorted((broker.data / "objects").rglob("*.dnb"))
    say(
        f"Stop     SIGTERM: drained in {seconds:.1f} s; {many(len(objects), 'object')}, "
        f"{megabytes(sum(path.stat().st_size for path in objects))}, hold everything."
    )
    await asyncio.to_thread(shutil.rmtree, broker.data / "wal")
    say("Lose     now its whole log is deleted, as if the disk had died.")
    await asyncio.to_thread(broker.start)
    seconds = await _replay(broker, stored, "replay")
    if not objects:
        raise CheckFailedError("there is no object, and the messages came from somewhere else")
    say(
        f"Replay   a new subscription read all {len(stored):,} again from objects in {seconds:.1f} s: "
        "the same bytes at the same offsets."
    )


async def _replay(broker: DemoBroker, stored: list[bytes], name: str) -> float:
    """Read everything with a new subscription and check it; return the seconds it took."""
    replay = Subscription(name, "Exclusive", 1)
    began = time.monotonic()
    with bars() as progress:
        async with connected(broker.url) as client:
            reading = Consumers(client, replay, _bar(progress, "reading again", len(stored)))
            await reading.start()
            try:
                await until(
                    lambda: len(replay.received) >= len(stored), lambda: len(replay.received), "reading it again"
                )
            finally:
                await reading.stop()
    check_replay(stored, replay)
    return time.monotonic() - began


async def _lose_all_but_the_table(broker: DemoBroker, stored: list[bytes]) -> None:
    """Delete log and objects, and read everything again from the table."""
    await asyncio.to_thread(broker.stop)
    for part in ("wal", "objects"):
        await asyncio.to_thread(shutil.rmtree, broker.data / part)
    say("Lose     now the log and every object are deleted; the table is all that is left.")
    await asyncio.to_thread(broker.start)
    seconds = await _replay(broker, stored, "replay-table")
    say(
        f"Replay   another subscription read all {len(stored):,} again from the table in {seconds:.1f} s: "
        "the same bytes at the same offsets."
    )


async def _write_to_the_table(broker: DemoBroker, stored: list[bytes]) -> None:
    """Write the topic to its table with Spark, and count the messages in SQL."""
    say("Spark    starts now, and carries the topic to an Iceberg table; the first time it fetches its jars.")
    answer = await asyncio.to_thread(write_and_count, broker, TOPIC)
    if not answer.count == answer.distinct == answer.upto == len(stored):
        raise CheckFailedError(f"{len(stored)} messages are stored, and the table says {answer}")
    say(
        f"Commit   {many(answer.rows, 'row')} in {many(answer.files, 'file')}, in {many(answer.commits, 'atomic commit')}, {answer.written_s:.1f} s "
        f"(Spark itself took {answer.started_s:.1f} s to start)."
    )
    say(
        f"SQL      SELECT count(*), count(DISTINCT topic_offset) FROM {answer.table}: {answer.count:,} and {answer.distinct:,}, "  # noqa: S608  # shown
        f"as many as have an answer; {answer.queried_s:.1f} s."
    )
