"""Health of a broker: probes of its dependencies, readiness, and the HTTP routes that report them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import IsterError
from ister.ports.metadata.store import check_writable
from ister.transport.http1 import JSON, TEXT, Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ister.broker.metrics.exposition import Metrics
    from ister.broker.server import Serving
    from ister.core.names import TopicName
    from ister.ports.metadata import Metadata
    from ister.storage.factory import WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory
    from ister.transport.http1 import Routes

log = structlog.get_logger()

PROBE_INTERVAL_S = 15.0
PROBE_TIMEOUT_S = 10.0
PROBLEMS_SHOWN = 20


def probes_of(
    metadata: Metadata, factory: WalStorageFactory | LakeStorageFactory
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the probes of a broker's dependencies by name; each raises if its dependency fails."""
    root = factory.config.root_prefix.rstrip("/")
    return {"metadata": lambda: check_writable(metadata, root), "objects": factory.check_store}


class Dependencies:
    """Probes each dependency periodically; `failing` holds those that fail."""

    def __init__(self, probes: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        self.failing: set[str] = set()
        self._probes = probes
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start probing."""
        self._tasks = [asyncio.create_task(self._watch(name, probe)) for name, probe in self._probes.items()]

    async def stop(self) -> None:
        """Stop probing."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _watch(self, name: str, probe: Callable[[], Awaitable[None]]) -> None:
        while True:
            cause = await _failure(probe)
            if cause and name not in self.failing:
                self.failing.add(name)
                log.warning("dependency_failed", dependency=name, cause=cause)
            elif not cause and name in self.failing:
                self.failing.remove(name)
                log.info("dependency_recovered", dependency=name)
            await asyncio.sleep(PROBE_INTERVAL_S)


async def _failure(probe: Callable[[], Awaitable[None]]) -> str:
    """Return the error text of a probe, empty if it succeeds."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await probe()
    except TimeoutError:
        return f"no answer in {PROBE_TIMEOUT_S:g} s"
    except (IsterError, OSError) as error:
        return str(error)
    except Exception as error:  # the root of a task: the next probe may work
        log.exception("dependency_probe_failed")
        return type(error).__name__
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether clients should connect.

    `missing` lists pending start-up steps ("recovery", "ports"), `topics` counts the open topics, `problems` maps the
    others to their errors. Failing dependencies (`degraded`) and open topics whose uploads wait for an operator
    (`uploads_stopped`) do not make a broker unready.
    """

    missing: Sequence[str] = ()
    draining: bool = False
    topics: int = 0
    problems: Mapping[TopicName, IsterError] = field(default_factory=dict)
    degraded: Sequence[str] = ()
    uploads_stopped: Mapping[TopicName, IsterError] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether the broker serves.

        A few topics with problems do not make it unready: that would take the other topics away too, and a restart
        does not fix them. If no topic could be opened, the fault is the machine's.
        """
        return not self.missing and not self.draining and not (self.problems and not self.topics)


def routes(broker: Serving, metrics: Metrics) -> Routes:
    """Return the handlers by path."""

    async def scrape(request: Request) -> Response:
        page = await metrics.page(request.headers.get("accept", ""))
        return Response(HTTPStatus.OK, page.content_type, page.pieces)

    async def health(_: Request) -> Response:
        return Response(HTTPStatus.OK, TEXT, [b"ok\n"])  # an answer proves that the event loop runs

    async def ready(_: Request) -> Response:
        return readiness_response(broker.readiness())

    return {"/metrics": scrape, "/healthz": health, "/readyz": ready}


def readiness_response(state: Readiness) -> Response:
    """Return the readiness report.

    A problem is reported by its class only: its text may name files, and is in the log (`topic_not_opened`).
    """
    word = "draining" if state.draining else "ready" if state.ready else "starting" if state.missing else "broken"
    body = {
        "status": word,
        "missing": list(state.missing),
        "topics": state.topics,
        "topics_with_problems": len(state.problems),
        "problems": _problems(state.problems),
        "degraded": list(state.degraded),
        "uploads_stopped": _problems(state.uploads_stopped),
    }
    status = HTTPStatus.OK if state.ready else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(status, JSON, [json.dumps(body).encode() + b"\n"])


def _problems(found: Mapping[TopicName, IsterError]) -> list[dict[str, str]]:
    return [
        {"topic": str(topic), "problem": type(error).__name__}
        for topic, error in sorted(found.items())[:PROBLEMS_SHOWN]
    ]
