"""List, move and delete subscriptions by asking the broker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, printable, say, tables
from ister.cli.exits import InputError
from ister.cli.positions import reset_cursor
from ister.cli.topics_remote import find_topics
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as ister

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.cli.positions import Position
    from ister.cli.remote import Remote

_TYPES = {
    ister.SUBSCRIPTION_TYPE_EXCLUSIVE: "exclusive",
    ister.SUBSCRIPTION_TYPE_SHARED: "shared",
    ister.SUBSCRIPTION_TYPE_FAILOVER: "failover",
    ister.SUBSCRIPTION_TYPE_KEY_SHARED: "key-shared",
}
_BACKOFFS = {ister.BACKOFF_FIXED: "fixed", ister.BACKOFF_EXPONENTIAL: "exponential"}
_POISONS = {ister.POISON_DEAD_LETTER: "dead_letter", ister.POISON_BLOCK: "block", ister.POISON_DROP: "drop"}


@dataclass(frozen=True, slots=True)
class SubscriptionLine:
    """One subscription of one topic or partition."""

    topic: str
    found: ister.Subscription


@dataclass(frozen=True, slots=True)
class Moved:
    """A subscription that was moved: the next offset that it gets, and the one it would have got."""

    topic: str
    subscription: str
    cursor: int
    previous: int


def list_subscriptions(admin: Remote, topic: str) -> list[SubscriptionLine]:
    """Return the subscriptions of a topic, or of each of its partitions."""
    lines = []
    for one in find_topics(admin, topic):
        request = ister.DescribeSubscriptionsRequest(topic=one.name)
        found = admin.ask("/ister.v1.Admin/DescribeSubscriptions", request, ister.DescribeSubscriptionsResponse)
        lines += [SubscriptionLine(one.name, subscription) for subscription in found.subscriptions]
    return lines


def reset_subscription(admin: Remote, topic: str, subscription: str, place: Position) -> list[Moved]:
    """Move a subscription of a topic, or of each of its partitions."""
    topics = find_topics(admin, topic)
    if place.kind == "offset" and len(topics) > 1:
        raise InputError(
            f"--to {place.value}", f"means another message in each partition; reset {topics[0].name} alone"
        )
    moved = []
    for one in topics:
        answer = reset_cursor(admin, one.name, subscription, place)
        moved.append(Moved(one.name, subscription, answer.cursor, answer.previous))
    return moved


def delete_subscription(admin: Remote, topic: str, subscription: str) -> list[str]:
    """End a subscription of a topic, or of each of its partitions, which are returned."""
    topics = [one.name for one in find_topics(admin, topic)]
    for name in topics:
        request = danube.SubscriptionRequest(topic=name, subscription=subscription)
        admin.change("/danube_admin.TopicAdmin/Unsubscribe", request, danube.SubscriptionResponse)
    return topics


def show_list(topic: str, lines: Sequence[SubscriptionLine]) -> None:
    """Write a row for each subscription."""
    if not lines:
        say(f"{printable(topic)} has no subscriptions. Next: ister consume {printable(topic)} --subscription NAME")
        return
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for heading in ("Topic", "Subscription", "Type"):
        table.add_column(heading, overflow="fold")
    for heading in ("Next offset", "Behind", "Unacked", "Waiting", "Window", "Connected"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for line in lines:
        found = line.found
        reliable = found.dispatch == ister.DISPATCH_RELIABLE
        table.add_row(
            Text(printable(line.topic)),
            Text(printable(found.name)),
            _TYPES.get(found.type, str(found.type)),
            f"{found.cursor}" if reliable else "-",
            f"{found.lag:,}" if reliable else "-",
            f"{found.unacked:,}",
            f"{found.waiting:,}",
            f"{found.window:,}" if reliable else "-",
            f"{sum(consumer.connected for consumer in found.consumers)}/{len(found.consumers)}",
            Text("blocked by a poisoned message", "red") if found.blocked else "",
        )
    console.print(table)
    say(f"{many(len(lines), 'subscription')}.")


def show_list_json(lines: Sequence[SubscriptionLine]) -> None:
    """Write one JSON object."""
    say(json.dumps({"subscriptions": [_fields(line) for line in lines]}, separators=(",", ":")))


def show_moved(moved: Sequence[Moved]) -> None:
    """Write where each went."""
    for one in moved:
        where = f"{printable(one.subscription)} of {printable(one.topic)}"
        say(f"{where} goes on at offset {one.cursor}; it was at {one.previous}.")


def show_moved_json(moved: Sequence[Moved]) -> None:
    """Write one JSON object."""
    content = [
        {"topic": one.topic, "subscription": one.subscription, "cursor": one.cursor, "previous": one.previous}
        for one in moved
    ]
    say(json.dumps({"subscriptions": content}, separators=(",", ":")))


def show_deleted_json(topics: Sequence[str], subscription: str) -> None:
    """Write one JSON object."""
    content = [{"topic": topic, "subscription": subscription} for topic in topics]
    say(json.dumps({"deleted": content}, separators=(",", ":")))


def _fields(line: SubscriptionLine) -> dict[str, object]:
    found, policy = line.found, line.found.failure_policy
    return {
        "topic": line.topic,
        "subscription": found.name,
        "type": _TYPES.get(found.type, str(found.type)),
        "reliable": found.dispatch == ister.DISPATCH_RELIABLE,
        "cursor": found.cursor,
        "durable_cursor": found.durable_cursor,
        "lag": found.lag,
        "unacked": found.unacked,
        "waiting": found.waiting,
        "redelivered": found.redelivered,
        "window": found.window,
        "blocked": found.blocked,
        "failure_policy": {
            "max_redelivery_count": policy.max_redelivery_count,
            "ack_timeout_ms": policy.ack_timeout_ms,
            "base_redelivery_delay_ms": policy.base_redelivery_delay_ms,
            "max_redelivery_delay_ms": policy.max_redelivery_delay_ms,
            "backoff": _BACKOFFS.get(policy.backoff, str(policy.backoff)),
            "poison": _POISONS.get(policy.poison, str(policy.poison)),
            "dead_letter_topic": policy.dead_letter_topic if policy.HasField("dead_letter_topic") else None,
        }
        if found.HasField("failure_policy")
        else None,
        "consumers": [
            {
                "name": consumer.name,
                "connected": consumer.connected,
                "active": consumer.active,
                "unacked": consumer.unacked,
                "key_filters": list(consumer.key_filters),
            }
            for consumer in found.consumers
        ],
    }
