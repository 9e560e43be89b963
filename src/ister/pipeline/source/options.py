"""Options of the Spark data source and their validation. Names follow Spark's Kafka source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ister.config import load
from ister.config.problems import nearest
from ister.config.validators import listener, reachable_host
from ister.core.errors import ClientError, InvalidNameError
from ister.core.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.config import Config

BROKER = "http://127.0.0.1:6650"
OFFSET_MAX = 2**63 - 1


class Use(StrEnum):
    """The Spark API that an option is passed to."""

    READ = "spark.read"
    READ_STREAM = "spark.readStream"
    WRITE = "df.write"
    WRITE_STREAM = "df.writeStream"


READING = frozenset({Use.READ, Use.READ_STREAM})
EVERYWHERE = frozenset(Use)
USES = {
    "topic": EVERYWHERE,
    "broker": EVERYWHERE,
    "config": EVERYWHERE,
    "dataDir": READING,
    "startingOffsets": READING,
    "endingOffsets": frozenset({Use.READ}),
    "maxOffsetsPerTrigger": frozenset({Use.READ_STREAM}),
    "failOnDataLoss": READING,
    "checkpointLocation": frozenset({Use.WRITE_STREAM}),  # Spark's own, which it shows to the sink as well
}
"""Every option, and where it is valid."""
BY_LOWER = {name.lower(): name for name in USES}
"""Spark passes the names of options in lower case."""
KAFKA_WORDS = {
    "subscribe": "use topic",
    "subscribepattern": "use topic; one query reads one topic",
    "assign": "use topic, with the name of one partition",
    "kafka.bootstrap.servers": "use broker",
    "minpartitions": "a task reads about 16 MiB",
    "includeheaders": "the column attributes is always there",
}
"""Options of Spark's Kafka source that have another name here, or none."""


class Edge(StrEnum):
    """An end of a topic, resolved when the read is planned."""

    EARLIEST = "earliest"
    LATEST = "latest"


class InvalidOptionError(ClientError):
    """An option of the data source that cannot be used."""

    def __init__(self, option: str, reason: str) -> None:
        self.option, self.reason = option, reason
        super().__init__(f"option {option} {reason}")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read of offsets [start, stop) in every partition."""

    topic: str
    broker: str
    config: str | None
    data_dir: str | None
    start: int | Edge
    stop: int | Edge = Edge.LATEST
    offsets_per_trigger_max: int | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write."""

    topic: str
    broker: str


def read_options(given: Mapping[str, str], use: Use) -> ReadOptions:
    """Validate the options of a reader."""
    options = _named(given, use)
    default = Edge.EARLIEST if use is Use.READ else Edge.LATEST
    start = _position(options, "startingOffsets", default, Edge.EARLIEST, Edge.LATEST)
    stop = _position(options, "endingOffsets", Edge.LATEST, Edge.LATEST)
    if use is Use.READ and start is Edge.LATEST:
        raise InvalidOptionError("startingOffsets", "is latest, behind which spark.read finds nothing; use earliest")
    if isinstance(start, int) and isinstance(stop, int) and start > stop:
        raise InvalidOptionError("startingOffsets", f"is {start}, which is behind endingOffsets, {stop}")
    if options.get("failOnDataLoss", "true").lower() != "true":
        cause = "can only be true: a read that passes over lost messages is not made"
        raise InvalidOptionError("failOnDataLoss", cause)
    most = options.get("maxOffsetsPerTrigger")
    config = options.get("config")
    return ReadOptions(
        _topic(options),
        _broker(options),
        None if config is None else str(Path(config).absolute()),
        options.get("dataDir"),
        start,
        stop,
        None if most is None else _number("maxOffsetsPerTrigger", most, 1),
    )


def write_options(given: Mapping[str, str], use: Use) -> WriteOptions:
    """Validate the options of a writer."""
    options = _named(given, use)
    return WriteOptions(_topic(options), _broker(options))


def target_of(broker: str) -> str:
    """Return host and port of a broker's URL, as a gRPC target."""
    return broker.partition("://")[2]


def _named(given: Mapping[str, str], use: Use) -> dict[str, str]:
    """Return options by their canonical names; raise for those that are not valid here."""
    found = {}
    for word, value in given.items():
        name = BY_LOWER.get(word.lower())
        if name is None and word.lower() in KAFKA_WORDS:
            raise InvalidOptionError(word, f"is of Spark's Kafka source; {KAFKA_WORDS[word.lower()]}")
        if name is None:
            close = nearest(word, BY_LOWER)
            names = [name for name, uses in USES.items() if use in uses]
            hint = f"did you mean {BY_LOWER[close]}?" if close else f"there are {', '.join(names)}"
            raise InvalidOptionError(word, f"is not known; {hint}")
        if use not in USES[name]:
            raise InvalidOptionError(name, f"is for {' and '.join(sorted(USES[name]))}, not for {use}; leave it out")
        found[name] = value
    return found


def _topic(options: Mapping[str, str]) -> str:
    text = options.get("topic")
    if text is None:
        raise InvalidOptionError("topic", "is missing; write it like /default/orders")
    try:
        return str(TopicName.parse(text))
    except InvalidNameError as error:
        raise InvalidOptionError("topic", f"is wrong: {error}") from None


def configured(path: str | None, data_dir: str | None = None) -> Config:
    """Read the broker's configuration; the embedded defaults without a file."""
    try:
        return load(None if path is None else Path(path), None if data_dir is None else Path(data_dir)).config
    except OSError as error:
        raise InvalidOptionError("config", f"is {path}, which cannot be read: {error.strerror}") from None


def _url_in(path: str) -> str:
    """Return the URL for clients from a broker's configuration."""
    config = configured(path)
    if (url := config.advertised_listeners.broker_url) is not None:
        return url
    if not config.broker_port:
        raise InvalidOptionError("broker", f"is missing, and {path} leaves the port to chance (broker_port: 0)")
    return f"http://{reachable_host(config.broker_host)}:{config.broker_port}"


def _broker(options: Mapping[str, str]) -> str:
    text = options.get("broker")
    if text is None:
        text = _url_in(options["config"]) if "config" in options else BROKER
    try:
        found = listener(text)
    except ValueError as error:
        raise InvalidOptionError("broker", f"is {text}; it {error}") from None
    if not found.startswith("http://"):
        raise InvalidOptionError("broker", f"is {text}, which asks for TLS; that comes in a later release: use http://")
    return found


def _position(options: Mapping[str, str], name: str, default: Edge, *edges: Edge) -> int | Edge:
    text = options.get(name, default).lower()
    if text in edges:
        return Edge(text)
    if text.isascii() and text.isdecimal():
        return _number(name, text, 0)
    raise InvalidOptionError(
        name, f"is {text[:80]}; use {', '.join(edges)} or a number, which counts for every partition"
    )


def _number(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text[:20]) <= OFFSET_MAX):
        raise InvalidOptionError(name, f"is {text[:80]}; use a number from {least} on")
    return int(text)
