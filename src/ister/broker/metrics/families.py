"""Metric families per topic and per subscription (docs/metrics.md).

Names and labels are Danube's where it has them; ours begin with `ister_`. Each value must be cheap to read (no I/O, no
lock, no loop over messages), and readable after its topic was closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.broker.topics.subscription import ReliableSubscription
    from ister.broker.topics.topic import Subscription, Topic
    from ister.cloud.reader import CloudReader
    from ister.cloud.uploader import Uploader
    from ister.storage.wal_storage import WalStorage

V = TypeVar("V")


class Format(Enum):
    """Exposition formats, by content type."""

    TEXT = CONTENT_TYPE_PLAIN_0_0_4
    OPENMETRICS = CONTENT_TYPE_LATEST


class Sample(NamedTuple, Generic[V]):
    """One sample of a family: name suffix, own label, and value; None omits the sample."""

    suffix: str
    label: str
    read: Callable[[V], float | None]


@dataclass(frozen=True, slots=True)
class Family(Generic[V]):
    """A metric family, with samples for each topic or subscription."""

    name: str
    kind: str
    text: str
    samples: tuple[Sample[V], ...]

    def head(self, form: Format) -> str:
        """Return the HELP and TYPE lines."""
        name, kind = self.name, self.kind
        if form is Format.TEXT:
            name += {"counter": "_total", "info": "_info"}.get(kind, "")
            kind = "gauge" if kind == "info" else kind
        return f"# HELP {name} {self.text}\n# TYPE {name} {kind}\n"


def _counter(name: str, text: str, read: Callable[[V], float | None]) -> Family[V]:
    return Family(name, "counter", text, (Sample("_total", "", read),))


def _gauge(name: str, text: str, read: Callable[[V], float | None]) -> Family[V]:
    return Family(name, "gauge", text, (Sample("", "", read),))


def _summary(name: str, text: str, total: Callable[[V], float], count: Callable[[V], float]) -> Family[V]:
    """Return a summary of durations without quantiles: sum and count give the mean of any interval."""
    return Family(name, "summary", text, (Sample("_sum", "", total), Sample("_count", "", count)))


class SubscriptionFigures(NamedTuple):
    """A subscription of a reliable topic, and the topic's next offset."""

    reliable: ReliableSubscription
    next_offset: int


def _connected(topic: Topic) -> int:
    return sum(subscription.connected() for subscription in topic.subscriptions.values())


def _has_problem(topic: Topic) -> int:
    return int(topic.problem is not None or (topic.log is not None and topic.log.wal.poison != ""))


TOPIC: tuple[Family[Topic], ...] = (
    _counter("danube_topic_messages_in", "Messages taken from producers.", lambda t: t.messages_in),
    _counter("danube_topic_bytes_in", "Payload bytes taken from producers.", lambda t: t.bytes_in),
    _gauge("danube_topic_active_producers", "Producers attached.", lambda t: len(t.producers)),
    _gauge("danube_topic_active_subscriptions", "Subscriptions.", lambda t: len(t.subscriptions)),
    _gauge("danube_topic_active_consumers", "Consumers with an open stream.", _connected),
    _gauge("ister_topic_problem", "1 if something keeps it from serving.", _has_problem),
)

LOG: tuple[Family[WalStorage], ...] = (
    _gauge("ister_topic_start_offset", "The oldest offset that can be read.", lambda g: g.start_offset),
    _gauge("ister_topic_next_offset", "The offset that the next message gets.", lambda g: g.next_offset),
    _gauge("ister_topic_synced_offset", "Everything below survives power loss.", lambda g: g.wal.synced_offset),
    _gauge("ister_topic_uploaded_offset", "Everything below is in objects.", lambda g: g.later_tier_offset),
    _gauge("ister_topic_table_offset", "Everything below is in the table.", lambda g: g.table_offset),
    _gauge(
        "ister_topic_table_lag_messages",
        "Messages that are not in the table yet.",
        lambda g: None if g.table_offset is None else max(0, g.next_offset - g.table_offset),
    ),
    _gauge("ister_topic_log_bytes", "Bytes of the log's files.", lambda g: g.wal.log_bytes),
    _counter("danube_wal_append", "Messages appended to the log.", lambda g: g.wal.appended),
    _counter("danube_wal_append_bytes", "Bytes of frames appended to the log.", lambda g: g.wal.appended_bytes),
    _counter("danube_wal_flush", "Syncs of the log.", lambda g: g.wal.syncs),
    _summary(
        "danube_wal_flush_latency_ms",
        "How long syncs of the log took.",
        lambda g: g.wal.sync_seconds * 1000,
        lambda g: g.wal.syncs,
    ),
    _counter("danube_wal_file_rotate", "Files of the log sealed.", lambda g: g.wal.rotations),
    _counter("danube_wal_delete", "Files of the log deleted by retention.", lambda g: g.wal.pruned_files),
)

UPLOADS: tuple[Family[Uploader], ...] = (
    Family(
        "danube_cloud_upload_objects",
        "counter",
        "Objects completed (ok), and upload cycles that failed (error).",
        (
            Sample("_total", 'result="ok",', lambda u: u.objects_put),
            Sample("_total", 'result="error",', lambda u: u.failed_cycles),
        ),
    ),
    _counter("danube_cloud_upload_bytes", "Bytes of objects completed.", lambda u: u.bytes_put),
    _summary(
        "danube_cloud_upload_latency_ms",
        "How long it took to put and describe an object.",
        lambda u: u.put_seconds * 1000,
        lambda u: u.objects_put,
    ),
    _gauge("ister_topic_upload_stopped", "1 if uploads wait for a person.", lambda u: int(u.stopped)),
)

READS: tuple[Family[CloudReader], ...] = (
    _counter("danube_durable_history_segments_read", "Objects opened for reading.", lambda r: r.objects_read),
    _counter("danube_durable_history_read_bytes", "Bytes read from objects.", lambda r: r.bytes_read),
)

SUBSCRIPTION: tuple[Family[Subscription], ...] = (
    _counter("danube_consumer_messages_out", "Deliveries, repeated ones included.", lambda s: s.delivered),
    _counter("danube_consumer_bytes_out", "Payload bytes delivered.", lambda s: s.delivered_bytes),
    _counter("ister_subscription_dropped", "Messages that nobody gets.", lambda s: s.dropped),
    _gauge("danube_subscription_active_consumers", "Consumers with an open stream.", lambda s: s.connected()),
)

RELIABLE: tuple[Family[SubscriptionFigures], ...] = (
    _gauge(
        "danube_subscription_lag_messages",
        "Messages from the cursor to the topic's end.",
        lambda f: max(0, f.next_offset - f.reliable.cursor),
    ),
    _gauge("ister_subscription_cursor", "Everything below is acknowledged or skipped.", lambda f: f.reliable.cursor),
    _gauge("ister_subscription_unacked", "Delivered, not acknowledged.", lambda f: f.reliable.dispatch.unacked),
    _gauge("ister_subscription_waiting", "Read, with no consumer now.", lambda f: f.reliable.dispatch.waiting),
    _gauge(
        "danube_subscription_terminal_blocked",
        "1 if a poisoned message holds it up.",
        lambda f: int(f.reliable.dispatch.blocked),
    ),
    _gauge(
        "ister_subscription_problem", "1 if messages cannot be read.", lambda f: int(f.reliable.problem is not None)
    ),
    _counter("ister_subscription_skipped", "Messages no filter takes.", lambda f: f.reliable.dispatch.skipped),
    _counter("ister_subscription_acked", "Messages acknowledged.", lambda f: f.reliable.acked),
    _counter("danube_subscription_nack", "Messages refused by consumers.", lambda f: f.reliable.nacked),
    _counter("danube_subscription_redelivery", "Repeated deliveries.", lambda f: f.reliable.dispatch.redelivered),
    _counter("danube_subscription_dlq", "Messages stored as dead letters.", lambda f: f.reliable.dead_lettered),
)

# Their last labels are added when samples are written.

CHECKED: Family[int] = _counter("danube_schema_validation", "Messages checked against their topic's schema.", int)
WRONG: Family[int] = _counter(
    "danube_schema_validation_failures", "Messages that do not follow it, refused or not.", int
)
KIND: Family[int] = Family("ister_subscription", "info", "A subscription's type.", (Sample("_info", "", int),))
