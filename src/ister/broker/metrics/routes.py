"""HTTP routes of a broker: metrics, liveness, readiness."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from ister.transport.http1 import JSON, TEXT, Request, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.broker.metrics.exposition import Metrics
    from ister.broker.metrics.readiness import Readiness
    from ister.broker.server import Serving
    from ister.core.errors import IsterError
    from ister.core.names import TopicName
    from ister.transport.http1 import Routes

PROBLEMS_SHOWN = 20


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
