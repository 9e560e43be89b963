"""Readiness of a broker: whether it serves clients, and what is missing or degraded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.core.errors import IsterError
    from ister.core.names import TopicName


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
