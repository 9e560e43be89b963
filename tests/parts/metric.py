"""A broker made of plain numbers, for what reads them: metrics and probes."""

from dataclasses import dataclass, field

from ister.broker.metrics.exposition import Metrics
from ister.broker.metrics.health import Readiness, routes
from ister.broker.process import LoopLag
from ister.core.dispatch.dispatch import SubscriptionType
from ister.core.errors import IsterError
from ister.core.histogram import Histogram
from ister.transport.http1 import HttpLimits, HttpServer


@dataclass
class FakeWal:
    synced_offset: int = 90
    log_bytes: int = 4096
    appended: int = 60
    appended_bytes: int = 6000
    syncs: int = 7
    sync_seconds: float = 0.25
    rotations: int = 2
    pruned_files: int = 1
    poison: str = ""


@dataclass
class FakeUploader:
    objects_put: int = 3
    bytes_put: int = 3000
    put_seconds: float = 1.5
    failed_cycles: int = 4
    stopped: bool = False


@dataclass
class FakeReader:
    objects_read: int = 5
    bytes_read: int = 5000


@dataclass
class FakeObjects:
    uploader: FakeUploader | None = field(default_factory=FakeUploader)
    reader: FakeReader = field(default_factory=FakeReader)


@dataclass
class FakeLog:
    start_offset: int = 10
    next_offset: int = 100
    later_tier_offset: int | None = 80
    table_offset: int | None = 75
    wal: FakeWal = field(default_factory=FakeWal)
    objects: FakeObjects | None = field(default_factory=FakeObjects)


@dataclass
class FakeDispatch:
    unacked: int = 4
    waiting: int = 6
    skipped: int = 3
    redelivered: int = 8
    blocked: bool = False


@dataclass
class FakeRecord:
    kind: SubscriptionType = SubscriptionType.KEY_SHARED


@dataclass
class FakeSubscription:
    name: str = "s"
    record: FakeRecord = field(default_factory=FakeRecord)
    delivered: int = 70
    delivered_bytes: int = 700
    dropped: int = 2
    cursor: int = 55
    acked: int = 50
    nacked: int = 9
    dead_lettered: int = 1
    problem: IsterError | None = None
    dispatch: FakeDispatch = field(default_factory=FakeDispatch)
    streams: int = 2

    @property
    def reliable(self):
        return self

    def connected(self):
        return self.streams


@dataclass
class FakeVolatile:
    name: str = "v"
    record: FakeRecord = field(default_factory=FakeRecord)
    delivered: int = 11
    delivered_bytes: int = 110
    dropped: int = 12
    reliable: None = None

    def connected(self):
        return 1


@dataclass
class FakeTopic:
    text: str = "/default/t"
    messages_in: int = 60
    bytes_in: int = 600
    producers: dict[int, str] = field(default_factory=lambda: {1: "p", 2: "q", 3: "r"})
    subscriptions: dict[str, FakeSubscription | FakeVolatile] = field(default_factory=dict)
    problem: IsterError | None = None
    log: FakeLog | None = field(default_factory=FakeLog)


@dataclass
class FakeChecks:
    checked: dict[tuple[str, str], int] = field(default_factory=lambda: {("/default/t", "warn"): 9})
    failed: dict[tuple[str, str], int] = field(default_factory=lambda: {("/default/t", "payload_invalid"): 2})


@dataclass
class FakeReads:
    snapshots: int = 31
    files: int = 32
    rows: int = 33
    replans: int = 34
    skipped: int = 35


@dataclass
class FakeBroker:
    cluster_name = "a cluster"
    hosted: list[FakeTopic] = field(default_factory=list)
    rpcs: dict[tuple[str, str], int] = field(default_factory=dict)
    sync_seconds: Histogram | None = None
    send_ms: Histogram | None = None
    schema_checks: FakeChecks | None = None
    table_reads: FakeReads | None = None
    state: Readiness = field(default_factory=Readiness)

    def topics(self):
        return self.hosted

    def readiness(self):
        return self.state


def topic_with(*subscriptions, **settings):
    return FakeTopic(subscriptions={sub.name: sub for sub in subscriptions}, **settings)


def many_topics(count=1000, subscribed=100, each=10):
    """Return topics of which some have subscriptions."""
    return [
        FakeTopic(
            text=f"/default/topic-{number:04}",
            subscriptions={f"s{i}": FakeSubscription(f"s{i}") for i in range(each)} if number < subscribed else {},
        )
        for number in range(count)
    ]


def metrics_of(broker, lag=None):
    return Metrics(broker, lag or LoopLag())


async def serving(broker, **limits):
    """Serve a broker's probes and metrics on a free port."""
    server = HttpServer(routes(broker, metrics_of(broker)), HttpLimits(**limits))
    await server.start("127.0.0.1", 0)
    return server
