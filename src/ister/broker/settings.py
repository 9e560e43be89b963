"""How a broker behaves: what the configuration says, as the broker uses it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ister.config.policies import CompletePolicies

NAMESPACES = ("default", "system")
"""These exist from the first start on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Times are in seconds; the names are those of the configuration, without their units."""

    cluster_name: str = "ister"
    broker_url: str | None = None
    """What clients are told that this broker is called; absolute, with its scheme."""
    connect_url: str | None = None
    """What they are told to connect to, where that is another address: that of a proxy."""
    auto_create_topics: bool = True
    bootstrap_namespaces: tuple[str, ...] = ()
    policies: CompletePolicies = field(default_factory=CompletePolicies)
    max_unacked_messages: int = 10
    consumer_grace_s: float = 10.0
    """How long a consumer without a stream keeps its place."""
    consumer_expiry_s: float = 600.0
    """How long a consumer without a stream is remembered."""
    producer_expiry_s: float = 15.0
    """How long a producer that says nothing counts for the limits."""
    volatile_subscription_expiry_s: float = 60.0
    """How long a subscription of a non-reliable topic lives without a consumer."""
    hold_ttl_s: float = 10.0
    """How long a broker that died keeps its subscriptions from others, where several brokers serve them."""
    cursor_interval_s: float = 1.0
    """How often progress is saved."""
    non_reliable_queue: int = 1024
    """How many messages wait for a consumer of a non-reliable topic."""
