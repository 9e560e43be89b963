"""What metrics and probes ask of a broker: plain numbers that it keeps anyway, read when someone scrapes.

Nothing here is asked per message. Every attribute must be cheap (no I/O, no lock, no loop over messages), and must
still be readable after its topic was closed: a scrape goes on between two turns of the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Sized
    from enum import Enum

    from ister.core.errors import IsterError
    from ister.core.histogram import Histogram
    from ister.core.names import TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether clients should come here.

    `missing` has what is still to come ("recovery: 12 of 1000 topics", "port 6650"), `topics` how many are open, and
    `problems` what keeps the others from it. `degraded` names what the broker depends on and that does not work, and
    `uploads_stopped` has the open topics whose uploads wait for a person: neither makes it unready.
    """

    missing: Sequence[str] = ()
    draining: bool = False
    topics: int = 0
    problems: Mapping[TopicName, IsterError] = field(default_factory=dict)
    degraded: Sequence[str] = ()
    uploads_stopped: Mapping[TopicName, IsterError] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether it serves.

        Some topics with problems do not make it unready: that would take the others away too, and a restart does not
        mend them. When no topic at all could be opened, something is wrong with the machine.
        """
        return not self.missing and not self.draining and not (self.problems and not self.topics)


# --- a topic's log and objects; counters count from when it was opened ------------------------------------------------


class WalCounters(Protocol):
    """A log (`Wal`)."""

    @property
    def synced_offset(self) -> int:
        """Everything below survives power loss."""
        ...

    @property
    def poison(self) -> str:
        """Why it takes nothing more, empty while it does."""
        ...

    @property
    def log_bytes(self) -> int:
        """Bytes of all its files."""
        ...

    @property
    def appended(self) -> int:
        """Messages appended."""
        ...

    @property
    def appended_bytes(self) -> int:
        """Bytes of their frames."""
        ...

    @property
    def syncs(self) -> int:
        """Syncs that succeeded."""
        ...

    @property
    def sync_seconds(self) -> float:
        """How long these took together."""
        ...

    @property
    def rotations(self) -> int:
        """Files sealed."""
        ...

    @property
    def pruned_files(self) -> int:
        """Files that retention deleted."""
        ...


class UploadCounters(Protocol):
    """What carries the log to objects (`Uploader`)."""

    @property
    def objects_put(self) -> int:
        """Objects completed."""
        ...

    @property
    def bytes_put(self) -> int:
        """Their bytes."""
        ...

    @property
    def put_seconds(self) -> float:
        """How long putting and describing them took together."""
        ...

    @property
    def failed_cycles(self) -> int:
        """Cycles that failed, all of them: one that succeeds does not reset it."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether it has given up until the topic is opened again."""
        ...


class ReadCounters(Protocol):
    """What reads objects back (`CloudReader`)."""

    @property
    def objects_read(self) -> int:
        """Objects opened."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes fetched."""
        ...


class ObjectsView(Protocol):
    """The objects behind a log (`ObjectTier`)."""

    @property
    def uploader(self) -> UploadCounters | None:
        """Who puts them; None when uploads are off."""
        ...

    @property
    def reader(self) -> ReadCounters:
        """Who reads them."""
        ...


class TableCounters(Protocol):
    """What was read back from tables (`lake.topic_table.Seen`)."""

    @property
    def snapshots(self) -> int:
        """Snapshots looked at."""
        ...

    @property
    def files(self) -> int:
        """Data files opened."""
        ...

    @property
    def rows(self) -> int:
        """Rows given out."""
        ...

    @property
    def replans(self) -> int:
        """Reads that were planned anew because files had gone."""
        ...

    @property
    def skipped(self) -> int:
        """Offsets that were missing and were skipped."""
        ...


class LogView(Protocol):
    """The storage of a reliable topic (`WalStorage`)."""

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read, from whichever tier."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        ...

    @property
    def later_tier_offset(self) -> int | None:
        """Everything below is in objects; None where nothing is uploaded."""
        ...

    @property
    def table_offset(self) -> int | None:
        """Everything below is in the table; None where that is not read back."""
        ...

    @property
    def wal(self) -> WalCounters:
        """The log itself."""
        ...

    @property
    def objects(self) -> ObjectsView | None:
        """The objects behind it."""
        ...


# --- topics and subscriptions; counters count from the broker's start -------------------------------------------------


class DispatchView(Protocol):
    """What decides about deliveries (`Dispatch`)."""

    @property
    def unacked(self) -> int:
        """Messages delivered and not acknowledged."""
        ...

    @property
    def waiting(self) -> int:
        """Messages taken from the log and with no consumer, those due again, blocked or dead included."""
        ...

    @property
    def skipped(self) -> int:
        """Messages that no registered consumer's filters take."""
        ...

    @property
    def redelivered(self) -> int:
        """Deliveries that were not the first of their message."""
        ...

    @property
    def blocked(self) -> bool:
        """Whether a poisoned message holds something up."""
        ...


class ReliableView(Protocol):
    """What only a subscription of a reliable topic has (`ReliableSubscription`)."""

    @property
    def cursor(self) -> int:
        """Everything below is acknowledged or skipped."""
        ...

    @property
    def acked(self) -> int:
        """Messages that consumers acknowledged."""
        ...

    @property
    def nacked(self) -> int:
        """Messages that consumers refused."""
        ...

    @property
    def dead_lettered(self) -> int:
        """Messages stored in the dead-letter topic."""
        ...

    @property
    def problem(self) -> IsterError | None:
        """Why messages could not be read the last time."""
        ...

    @property
    def dispatch(self) -> DispatchView:
        """What decides."""
        ...


class SubscriptionSettings(Protocol):
    """What is known of a subscription (`SubscriptionRecord`)."""

    @property
    def kind(self) -> Enum:
        """Its type."""
        ...


class SubscriptionView(Protocol):
    """A subscription."""

    @property
    def name(self) -> str:
        """Its name, as the client gave it."""
        ...

    @property
    def record(self) -> SubscriptionSettings:
        """What is known of it."""
        ...

    @property
    def delivered(self) -> int:
        """Deliveries, repeated ones included."""
        ...

    @property
    def delivered_bytes(self) -> int:
        """Bytes of their payloads."""
        ...

    @property
    def dropped(self) -> int:
        """Messages that nobody gets: given up by poison policy, or nobody could take them and nothing stores them."""
        ...

    @property
    def reliable(self) -> ReliableView | None:
        """Itself, if its topic is reliable."""
        ...

    def connected(self) -> int:
        """Return how many consumers have a stream."""
        ...


class TopicView(Protocol):
    """A topic."""

    @property
    def text(self) -> str:
        """`/namespace/topic`."""
        ...

    @property
    def messages_in(self) -> int:
        """Messages taken from producers."""
        ...

    @property
    def bytes_in(self) -> int:
        """Bytes of their payloads."""
        ...

    @property
    def producers(self) -> Sized:
        """Producers attached."""
        ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionView]:
        """Its subscriptions by name."""
        ...

    @property
    def problem(self) -> IsterError | None:
        """What keeps it from serving, if anything does."""
        ...

    @property
    def log(self) -> LogView | None:
        """Its storage; None if it is not reliable or could not be opened."""
        ...


class SchemaCounters(Protocol):
    """What was checked against schemas (`ValidationCounters`)."""

    @property
    def checked(self) -> Mapping[tuple[str, str], int]:
        """Messages checked, by topic and policy."""
        ...

    @property
    def failed(self) -> Mapping[tuple[str, str], int]:
        """Messages found wrong, refused or not, by topic and reason."""
        ...


class BrokerView(Protocol):
    """A broker, starting, serving or draining."""

    @property
    def cluster_name(self) -> str:
        """What the configuration calls its cluster."""
        ...

    @property
    def rpcs(self) -> Mapping[tuple[str, str], int]:
        """How many RPCs ended with each code: `("/danube.ProducerService/SendMessage", "OK")` and so on.

        A plain dict that the transport's binding bumps once per RPC. Methods are those that exist, never a text that
        a client sent, or a client could fill the memory.
        """
        ...

    @property
    def sync_seconds(self) -> Histogram | None:
        """How long syncs of all logs took, in seconds; None if nobody counts."""
        ...

    @property
    def send_ms(self) -> Histogram | None:
        """How long SendMessage took, in milliseconds, of a sample of calls; None if nobody counts."""
        ...

    @property
    def schema_checks(self) -> SchemaCounters | None:
        """What was checked against schemas; None if nobody counts."""
        ...

    @property
    def table_reads(self) -> TableCounters | None:
        """What was read back from tables; None where they are not read."""
        ...

    def topics(self) -> Iterable[TopicView]:
        """Return every topic, those with a problem too."""
        ...

    def readiness(self) -> Readiness:
        """Tell whether clients should come here."""
        ...
