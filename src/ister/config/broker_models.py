"""Models of the broker's sections: authentication, advertised addresses, dispatch, timeouts and limits."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from ister.config import validators
from ister.config.keys import Milliseconds, Section, Text, setting
from ister.core.defaults import DRAIN_TIMEOUT_MS

MESSAGE_BYTES_MAX = 4 * 1024 * 1024 - 4096
"""Clients take at most 4 MiB; what the broker adds to a message on its way to them is less than the rest."""

Port = Annotated[int, Field(ge=0, le=65_535)]
KeepaliveMilliseconds = Annotated[int, Field(ge=1000, le=86_400_000)]
Namespaces = Annotated[
    tuple[Annotated[Text, AfterValidator(validators.namespace)], ...],
    Field(max_length=1000),
    BeforeValidator(validators.split_words),
]
Listener = Annotated[Text, AfterValidator(validators.listener)]


class AdvertisedListeners(Section):
    """Addresses that clients connect to, where these are not `broker_host` and `broker_port`."""

    broker_url: Listener | None = setting(
        "Address of this broker as clients know it; none: from `broker_host` and `broker_port`.",
        default=None,
        allowed="host:port, or an http:// or https:// address with a port",
        example="http://broker-1.example.com:6650",
    )
    connect_url: Listener | None = setting(
        "Address of a proxy that clients reach this broker through; none: they connect to `broker_url`.",
        default=None,
        allowed="host:port, or an http:// or https:// address with a port",
        example="https://proxy.example.com:6650",
    )


class Auth(Section):
    """Who may use the broker."""

    mode: Annotated[Text, AfterValidator(validators.auth_mode)] = setting(
        "none: everyone who can reach its ports. TLS and tokens come later.", default="none", allowed="none"
    )


class DispatchSection(Section):
    """Dispatch of messages to consumers."""

    max_unacked_messages: int = setting(
        "Messages that a subscription may have delivered and not yet acknowledged; 1: one at a time.",
        default=10,
        ge=1,
        le=10_000,
    )


class BrokerSection(Section):
    """Timeouts and limits of the broker."""

    consumer_grace_ms: Annotated[int, Field(ge=0, le=86_400_000)] = setting(
        "Milliseconds that a consumer keeps its place in a subscription after it disconnects.", default=10_000
    )
    consumer_expiry_ms: Milliseconds = setting(
        "Milliseconds after which a disconnected consumer is removed.", default=600_000
    )
    producer_expiry_ms: Milliseconds = setting(
        "Milliseconds after which an idle producer is removed, and no longer counts against limits.",
        default=15_000,
    )
    volatile_subscription_expiry_ms: Milliseconds = setting(
        "Milliseconds without a consumer after which a subscription of a non-reliable topic is removed.", default=60_000
    )
    cursor_interval_ms: Milliseconds = setting(
        "Milliseconds between two writes of a subscription's cursor; after a crash, messages that were acknowledged since "
        "then may be delivered again.",
        default=1000,
    )
    non_reliable_queue: int = setting(
        "Messages of a non-reliable topic that wait for a consumer; more are dropped.", default=1024, ge=1, le=1_000_000
    )
    message_bytes_max: int = setting(
        "Bytes that a message may have with everything around its payload. Official clients cannot receive more than "
        "4 MiB unless they are built to: raise it on both ends.",
        default=MESSAGE_BYTES_MAX,
        ge=1024,
        le=63 * 1024 * 1024,
    )
    drain_timeout_ms: Milliseconds = setting(
        "Milliseconds that a stop (SIGTERM) may take; what is not uploaded by then is uploaded after the next start.",
        default=DRAIN_TIMEOUT_MS,
    )
    keepalive_interval_ms: KeepaliveMilliseconds = setting(
        "Milliseconds after which the broker sends a keepalive ping on an idle connection.", default=30_000
    )
    keepalive_timeout_ms: KeepaliveMilliseconds = setting(
        "Milliseconds after which a connection is closed that does not answer a ping.", default=10_000
    )
