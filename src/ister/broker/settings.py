"""Settings of a broker, from its configuration (config/broker_models.py), which has their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.config.policies import CompletePolicies

NAMESPACES = ("default", "system")
"""Namespaces that exist from the first start on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Times are in seconds; the names are those of the configuration, without their units."""

    cluster_name: str
    broker_url: str | None
    """The absolute URL under which clients know this broker; None: its own address."""
    connect_url: str | None
    """The URL that clients connect to, if it is another one: that of a proxy."""
    auto_create_topics: bool
    bootstrap_namespaces: tuple[str, ...]
    policies: CompletePolicies
    max_unacked_messages: int
    consumer_grace_s: float
    """How long a disconnected consumer keeps its place in the subscription."""
    consumer_expiry_s: float
    """How long a disconnected consumer is remembered."""
    producer_expiry_s: float
    """How long an idle producer counts for the limits."""
    volatile_subscription_expiry_s: float
    """How long a subscription of a non-reliable topic lives without a consumer."""
    cursor_interval_s: float
    """How often cursors are saved."""
    non_reliable_queue: int
    """Messages of a non-reliable topic that wait for a consumer."""
    hold_ttl_s: float = 10.0
    """TTL of subscription leases, where several brokers serve subscriptions."""
