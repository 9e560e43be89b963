"""`ister serve`: run a broker, and the pipeline as its child."""

import os
import shlex
import sys
import time
from typing import Annotated

import typer

from ister._version import __version__
from ister.broker.server import Listening
from ister.cli.commands.config import load_config
from ister.cli.logs import LogFormat, show_server_events
from ister.cli.options import ADMIN, BROKER, ConfigOption, DataDirOption, OutputOption, command, command_group
from ister.cli.output import Output, fields_of, many, notice, printable, say
from ister.config import Loaded
from ister.runtime.pipeline_child import GRACE_S, PipelineChild, child_arguments
from ister.runtime.serve import serve, serve_read_only

app = command_group()


@command(app)
def _serve(
    *,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
    log_format: Annotated[
        LogFormat, typer.Option(help="How log events are written to stderr; auto is text on a terminal.")
    ] = LogFormat.AUTO,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings only.")] = False,
    pipeline: Annotated[
        bool, typer.Option("--pipeline/--no-pipeline", help="Run the pipeline to the tables beside it, too.")
    ] = True,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only", help="Only serve subscriptions, from the tables alone; needs etcd, and storage.type iceberg."
        ),
    ] = False,
) -> None:
    """Run the broker, and the pipeline to the tables.

    Until SIGTERM or Ctrl-C, which let it finish what it has begun.
    It listens on this machine only unless the configuration says otherwise.
    With -o json it writes one line as soon as it can be used, with its addresses.

    Example: ister serve --data-dir /var/lib/ister
    """
    show_server_events(log_format, everything=not quiet)
    loaded = load_config(file, data_dir)
    began = time.monotonic()

    def ready(listening: Listening) -> None:
        seconds = time.monotonic() - began
        write = _write_read_only if read_only else _write
        output.show(
            listening, lambda _: _fields(loaded, listening, seconds), lambda _: write(loaded, listening, seconds)
        )
        sys.stdout.flush()  # a program that started it waits for this

    if read_only:
        serve_read_only(loaded, ready, _warn)
        return
    arguments = child_arguments(file, data_dir, log_format.value, prom_port=loaded.config.prom_port, quiet=quiet)
    grace_s = min(GRACE_S, loaded.config.broker.drain_timeout_ms / 1000)
    serve(loaded, ready, _warn, PipelineChild(arguments, grace_s=grace_s) if pipeline else None)


def _warn(text: str) -> None:
    notice(f"ister: warning: {printable(text)}")


def _write(loaded: Loaded, listening: Listening, seconds: float) -> None:
    for topic, problem in listening.problems.items():
        notice(f"ister: warning: {topic} cannot be used: {printable(problem)}")
    data = shlex.quote(printable(str(loaded.home)))
    say(f"Ister {__version__} is ready after {seconds:.1f} s, with {many(listening.topics, 'topic')} in {data}.")
    _write_addresses(listening)
    broker = "" if listening.broker_url == BROKER else f" --broker {listening.broker_url}"
    admin = "" if listening.admin_url == ADMIN else f" --admin {listening.admin_url}"
    say("Try it from another terminal:")
    say(f"  ister produce /default/hello -m 'Hello, Danube'{broker}")
    say(f"  ister consume /default/hello --from earliest{broker}{admin}")
    say(f"  ister topics list{admin}")
    say("Ctrl-C stops it; what was acknowledged is kept.")


def _write_read_only(_: Loaded, listening: Listening, seconds: float) -> None:
    topics = many(listening.topics, "topic")
    say(f"Ister {__version__} is ready after {seconds:.1f} s, with {topics}: read-only, from the lake.")
    _write_addresses(listening)
    admin = "" if listening.admin_url == ADMIN else f" --admin {listening.admin_url}"
    say("Subscribe here; produce to the broker that owns the topics.")
    say(f"  ister topics list{admin}")
    say("Ctrl-C stops it; its subscriptions go on at another broker.")


def _write_addresses(listening: Listening) -> None:
    say()
    say(f"  clients         {listening.broker_url}")
    say(f"  administration  {listening.admin_url}")
    say(f"  metrics         {listening.metrics_url + '/metrics' if listening.metrics_url else 'off'}")
    say()


def _fields(loaded: Loaded, listening: Listening, seconds: float) -> object:
    return {
        "version": __version__,
        "pid": os.getpid(),
        "data_dir": str(loaded.home),
        **fields_of(listening, has_pipeline=""),
        "problems": dict(listening.problems),
        "seconds": round(seconds, 3),
    }
