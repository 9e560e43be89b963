"""Prometheus exposition of a broker's metrics, in the text format and OpenMetrics.

Values are read from the broker during a scrape; nothing is counted here. Global metrics use prometheus-client's
collectors. Those per topic and per subscription (families.py) are formatted by hand in one pass: ten times as fast as an
object per sample, and it yields to the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from io import StringIO
from itertools import islice
from math import isinf
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from ister._version import __version__
from ister.broker.metrics import families
from ister.broker.metrics.families import Family, Format, SubscriptionFigures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from ister.broker.process import LoopLag
    from ister.broker.registry.validation import ValidationCounters
    from ister.broker.server import Serving
    from ister.broker.topics.topic import Subscription, Topic
    from ister.core.histogram import Histogram
    from ister.storage.wal_storage import WalStorage

TOPICS_MAX = 10_000
SUBSCRIPTIONS_MAX = 10_000
"""Beyond these limits topics and subscriptions have no metrics of their own; two gauges count those left out."""
SLICE_S = 0.002
"""How long a scrape runs before it yields to the event loop."""
PIECE_BYTES = 128 * 1024
EOF = b"# EOF\n"

V = TypeVar("V")


class Page(NamedTuple):
    """The response to a scrape."""

    content_type: str
    pieces: list[bytes]


class Metrics:
    """The metrics of a broker."""

    def __init__(self, broker: Serving, lag: LoopLag) -> None:
        self._broker = broker
        self._registry = CollectorRegistry()
        self._registry.register(_GlobalCollector(broker, lag))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._lock = asyncio.Lock()

    async def page(self, accept: str = "") -> Page:
        """Return one scrape in the format that the client accepts; scrapes are serialized."""
        form = chosen_format(accept)
        async with self._lock:
            scrape = _Scrape(form)
            await scrape.add_topics(list(self._broker.topics()))
            if self._broker.schema_checks is not None:
                await scrape.add_schemas(self._broker.schema_checks)
            once = generate_latest if form is Format.TEXT else openmetrics.generate_latest
            pieces = await scrape.pieces(once(self._registry).removesuffix(EOF))
        return Page(form.value, pieces)


def chosen_format(accept: str) -> Format:
    """Return OpenMetrics if the Accept header rates it at least as high as the text format."""
    qualities = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for item in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        if kind in qualities:
            given = [parameter[2:].strip() for parameter in parameters if parameter.startswith("q=")]
            qualities[kind] = max(qualities[kind], _quality(given[0]) if given else 1.0)
    wanted, plain = qualities.values()
    return Format.OPENMETRICS if wanted > 0 and wanted >= plain else Format.TEXT


def _quality(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.\d{0,3})?", text, re.ASCII) else 0.0


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class _Table(Generic[V]):
    """The samples of several families; `add` appends one object's samples to each."""

    def __init__(self, of: Sequence[Family[V]]) -> None:
        self._families = [(family, StringIO()) for family in of]
        self._lines = [
            (lines.write, f"{family.name}{sample.suffix}{{{sample.label}", sample.read)
            for family, lines in self._families
            for sample in family.samples
        ]

    def add(self, item: V, labels: str) -> None:
        for write, name, read in self._lines:
            value = read(item)
            if value is not None:
                write(f"{name}{labels}}} {value}\n")

    def blocks(self, form: Format) -> Iterator[bytes]:
        """Yield each family that has samples."""
        for family, lines in self._families:
            text = lines.getvalue()
            if text:
                yield family.head(form).encode()
                # An unencodable subscription name must not fail the whole scrape.
                yield text.encode(errors="replace")


class _Scrape:
    """One scrape, which yields to the event loop after each time slice."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._topics = _Table(families.TOPIC)
        self._logs = _Table(families.LOG)
        self._uploads = _Table(families.UPLOADS)
        self._reads = _Table(families.READS)
        self._subscriptions = _Table(families.SUBSCRIPTION)
        self._reliable = _Table(families.RELIABLE)
        self._kinds = _Table((families.KIND,))
        self._checked = _Table((families.CHECKED,))
        self._wrong = _Table((families.WRONG,))
        self._topics_left_out = self._subscriptions_left_out = self._subscriptions_shown = 0
        self._loop = asyncio.get_running_loop()
        self._pause_at = self._loop.time() + SLICE_S

    async def add_topics(self, topics: Sequence[Topic]) -> None:
        """Add the samples of every topic; a topic with few subscriptions is read within one time slice."""
        shown = topics[:TOPICS_MAX]
        self._topics_left_out = len(topics) - len(shown)
        for topic in shown:
            labels = f'topic="{_escaped(topic.text)}"'
            log = topic.log
            subscriptions = list(topic.subscriptions.values())
            self._topics.add(topic, labels)
            if log is not None:
                self._add_log(log, labels)
            left = SUBSCRIPTIONS_MAX - self._subscriptions_shown
            for subscription in subscriptions[:left]:
                self._add_subscription(subscription, log, labels)
                await self._yield_if_due()
            self._subscriptions_shown += min(left, len(subscriptions))
            self._subscriptions_left_out += max(0, len(subscriptions) - left)
            await self._yield_if_due()

    async def add_schemas(self, counters: ValidationCounters) -> None:
        """Add the counters of schema validation."""
        for table, label, counts in (
            (self._checked, "policy", counters.checked),
            (self._wrong, "reason", counters.failed),
        ):
            for (topic, value), count in islice(list(counts.items()), TOPICS_MAX):
                table.add(count, f'topic="{_escaped(topic)}",{label}="{_escaped(value)}"')
                await self._yield_if_due()

    def _add_log(self, log: WalStorage, labels: str) -> None:
        self._logs.add(log, labels)
        objects = log.objects
        if objects is not None:
            self._reads.add(objects.reader, labels)
            if objects.uploader is not None:
                self._uploads.add(objects.uploader, labels)

    def _add_subscription(self, subscription: Subscription, log: WalStorage | None, labels: str) -> None:
        labels = f'{labels},subscription="{_escaped(subscription.name)}"'
        self._subscriptions.add(subscription, labels)
        self._kinds.add(1, f'{labels},type="{subscription.record.kind.name.lower()}"')
        if subscription.reliable is not None and log is not None:
            self._reliable.add(SubscriptionFigures(subscription.reliable, log.next_offset), labels)

    async def _yield_if_due(self) -> None:
        if self._loop.time() >= self._pause_at:
            await asyncio.sleep(0)
            self._pause_at = self._loop.time() + SLICE_S

    async def pieces(self, first: bytes) -> list[bytes]:
        """Return the page in pieces for sending; large blocks are not copied."""
        pieces, small, size = list[bytes](), [first], len(first)
        for block in self._blocks():
            small.append(block)
            size += len(block)
            if size >= PIECE_BYTES:
                pieces += [b"".join(small[:-1]), block]
                small, size = [], 0
            await self._yield_if_due()
        return [*pieces, b"".join(small)]

    def _blocks(self) -> Iterator[bytes]:
        for table in (
            self._topics, self._logs, self._uploads, self._reads, self._subscriptions, self._reliable, self._kinds,
            self._checked, self._wrong,
        ):  # fmt: skip
            yield from table.blocks(self._form)
        for what, count in (("topics", self._topics_left_out), ("subscriptions", self._subscriptions_left_out)):
            name = f"ister_metrics_{what}_left_out"
            yield f"# HELP {name} Those that are not told one by one.\n# TYPE {name} gauge\n{name} {count}\n".encode()
        if self._form is Format.OPENMETRICS:
            yield EOF


class _GlobalCollector(Collector):
    """Metrics without labels per topic."""

    def __init__(self, broker: Serving, lag: LoopLag) -> None:
        self._broker = broker
        self._lag = lag

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        broker, lag = self._broker, self._lag
        state = broker.readiness()
        about = {"version": __version__, "cluster_name": broker.cluster_name}
        yield InfoMetricFamily("ister_broker", "Which Ister this is.", about)
        yield GaugeMetricFamily("ister_broker_ready", "1 if clients should come here.", int(state.ready))
        yield GaugeMetricFamily("ister_broker_draining", "1 if it is about to stop.", int(state.draining))
        yield GaugeMetricFamily("danube_broker_topics_owned", "Topics open.", state.topics)
        yield GaugeMetricFamily("ister_broker_topics_with_problems", "Topics not open.", len(state.problems))
        rpcs = CounterMetricFamily(
            "danube_broker_rpc", "RPCs that ended.", labels=("service", "method", "result", "code")
        )
        for labels, count in _rpc_lines(broker):
            rpcs.add_metric(labels, count)
        yield rpcs
        yield _histogram("ister_event_loop_lag_seconds", "How late the event loop's timers were.", lag.seconds)
        yield GaugeMetricFamily(
            "ister_event_loop_lag_max_seconds", "The largest lag of the last half minute or more.", lag.max_seconds()
        )
        yield GaugeMetricFamily(
            "ister_event_loop_tasks", "Tasks: calls, streams, background work.", len(asyncio.all_tasks())
        )
        if broker.sync_seconds is not None:
            yield _histogram("ister_wal_sync_seconds", "How long syncs of all logs took.", broker.sync_seconds)
        reads = broker.table_reads
        if reads is not None:
            yield CounterMetricFamily("ister_table_reader_snapshots", "Snapshots looked at.", reads.snapshots)
            yield CounterMetricFamily("ister_table_reader_files", "Data files opened for reading.", reads.files)
            yield CounterMetricFamily("ister_table_reader_rows", "Rows read back, each checked.", reads.rows)
            yield CounterMetricFamily("ister_table_reader_replans", "Reads planned anew, files gone.", reads.replans)
            yield CounterMetricFamily("ister_table_reader_skipped", "Offsets missing and skipped.", reads.skipped)
        if broker.send_ms is not None:
            yield _histogram(
                "danube_producer_send_latency_ms", "How long a sample of SendMessage calls took.", broker.send_ms
            )


def _histogram(name: str, text: str, values: Histogram) -> Metric:
    buckets = [("+Inf" if isinf(bound) else str(bound), count) for bound, count in values.cumulative()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=values.total)


def _rpc_lines(broker: Serving) -> Iterator[tuple[tuple[str, str, str, str], int]]:
    lines: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
    for (path, code), count in list(broker.rpcs.items()):
        service, _, method = path.removeprefix("/").rpartition("/")
        # A consumer that disconnects cancels its stream: no error.
        result = "ok" if code in {"OK", "CANCELLED"} else "error"
        lines[service_label(service), _snake(method), result, code] += count
    yield from lines.items()


def service_label(service: str) -> str:
    """Return the label that Danube gives a service: `danube.ProducerService` is `producer`."""
    package, _, name = service.rpartition(".")
    label = _snake(name.removesuffix("Service"))
    return f"ister_{label}" if package.startswith("ister") else label


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
