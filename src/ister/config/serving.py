"""What the broker's part of a configuration may say: who may use it, what clients are told, and how long it is patient."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from ister.config import forms
from ister.config.keys import Section, Text, setting

MESSAGE_BYTES_MAX = 4 * 1024 * 1024 - 4096
"""Clients take at most 4 MiB; what the broker adds to a message on its way to them is less than the rest."""

Port = Annotated[int, Field(ge=0, le=65_535)]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]
KeepaliveMilliseconds = Annotated[int, Field(ge=1000, le=86_400_000)]
Namespaces = Annotated[
    tuple[Annotated[Text, AfterValidator(forms.namespace)], ...],
    Field(max_length=1000),
    BeforeValidator(forms.split_words),
]
Listener = Annotated[Text, AfterValidator(forms.listener)]


class AdvertisedListeners(Section):
    """What clients are told to connect to, where that is not `broker_host` and `broker_port`."""

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

    mode: Annotated[Text, AfterValidator(forms.auth_mode)] = setting(
        "none: everyone who can reach its ports. TLS and tokens come later.", default="none", allowed="none"
    )


class Dispatch(Section):
    """How messages are handed to consumers."""

    max_unacked_messages: int = setting(
        "Messages that a subscription may have delivered and not yet acknowledged; 1: one at a time.",
        default=10,
        ge=1,
        le=10_000,
    )


class Broker(Section):
    """How long the broker is patient, and how much it holds."""

    consumer_grace_ms: Annotated[int, Field(ge=0, le=86_400_000)] = setting(
        "Milliseconds that a consumer keeps its place in a subscription after its connection is gone.", default=10_000
    )
    consumer_expiry_ms: Milliseconds = setting(
        "A consumer whose connection has been gone for so many milliseconds is forgotten.", default=600_000
    )
    producer_expiry_ms: Milliseconds = setting(
        "A producer that has not been heard of for so many milliseconds is forgotten, and counts no more against limits.",
        default=15_000,
    )
    volatile_subscription_expiry_ms: Milliseconds = setting(
        "A subscription of a non-reliable topic ends after so many milliseconds without a consumer.", default=60_000
    )
    cursor_interval_ms: Milliseconds = setting(
        "Milliseconds between two writes of a subscription's progress; after a crash, what was acknowledged since then "
        "may come once more.",
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
        default=10_000,
    )
    keepalive_interval_ms: KeepaliveMilliseconds = setting(
        "An idle connection is asked for a sign of life after so many milliseconds.", default=30_000
    )
    keepalive_timeout_ms: KeepaliveMilliseconds = setting(
        "A connection that gives no sign of life for so many milliseconds is closed.", default=10_000
    )
