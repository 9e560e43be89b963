"""HTTP routes of a broker (metrics, liveness, readiness), and what readiness means."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from ister.transport.http1 import JSON, TEXT, Request, Response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.broker.metrics.exposition import Metrics
    from ister.broker.server import Serving
    from ister.core.errors import IsterError
    from ister.core.names import TopicName
    from ister.transport.http1 import Routes

PROBLEMS_SHOWN = 20


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
