"""Validation of messages against the schema binding of their topic.

Under `warn` a message without a schema id, or with one of another subject, is accepted and counted without a check of its
payload. An unregistered schema id is refused under `warn`, too, and so is an invalid payload if payloads are validated.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from ister.broker.threads import ClientThreads
from ister.core.errors import InvalidMessageError, InvalidRequestError, PreconditionError
from ister.schemas import ValidationPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.broker.registry.records import SchemaVersion
    from ister.broker.registry.store import SchemaStore
    from ister.core.message import StreamMessage
    from ister.schemas import TopicSchema

INLINE_BYTES_MAX: Final = 16 * 1024
"""Larger payloads are validated in a thread."""
THREADS_MAX: Final = 2
WARN_INTERVAL_S: Final = 60.0
"""The shortest time between two equal warnings of a topic."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ValidationCounters:
    """Validations by topic and policy, and failures, refused or not, by topic and reason."""

    checked: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)


class Validation:
    """Checks messages against their topics' schemas."""

    def __init__(self, store: SchemaStore, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._warned_at: dict[tuple[str, str], float] = {}
        self._threads = ClientThreads("checking payloads", THREADS_MAX)
        self.counters = ValidationCounters()

    async def check(self, topic: str, schema: TopicSchema, message: StreamMessage) -> None:
        """Raise PreconditionError or InvalidRequestError unless a message may be stored."""
        policy = schema.validation
        if policy is ValidationPolicy.NONE:
            return
        if schema.subject is None:
            if policy is ValidationPolicy.ENFORCE:
                self._count(topic, schema, "no_subject")
                raise PreconditionError(f"topic {topic} accepts messages with a schema only, and is bound to none")
            return
        self.counters.checked[topic, policy.value] += 1
        version = self._version(topic, schema, message)
        if version is not None and schema.payload_validation:
            await self._check_payload(topic, schema, version, message.payload)

    def forget(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        for counter in (self.counters.checked, self.counters.failed):
            for key in [key for key in counter if key[0] == topic]:
                del counter[key]
        for key in [key for key in self._warned_at if key[0] == topic]:
            del self._warned_at[key]

    def _version(self, topic: str, schema: TopicSchema, message: StreamMessage) -> SchemaVersion | None:
        """Return the schema version of a message; None if it has none and is accepted nevertheless."""
        if message.schema_id is None:
            self._warn_or_raise(topic, schema, "missing_schema_id", f"the message names no schema; {_wanted(schema)}")
            return None
        latest = self._store.find(message.schema_id)
        if latest is None:
            self._count(topic, schema, "unknown_schema_id")
            raise InvalidRequestError(f"schema id {message.schema_id} not found; {_wanted(schema)}")
        if latest.subject != schema.subject:
            reason = f"the message's schema id {message.schema_id} is of subject {latest.subject}; {_wanted(schema)}"
            self._warn_or_raise(topic, schema, "subject_mismatch", reason)
            return None
        if message.schema_version is None:
            return latest
        found = self._store.find(message.schema_id, message.schema_version)
        if found is None:
            reason = f"version {message.schema_version} of schema subject {latest.subject} not found"
            if schema.payload_validation:
                self._count(topic, schema, "unknown_version")
                raise InvalidRequestError(reason)
            self._warn_or_raise(topic, schema, "unknown_version", reason)
        return found

    def _warn_or_raise(self, topic: str, schema: TopicSchema, word: str, reason: str) -> None:
        """Raise InvalidRequestError under `enforce`; log a warning otherwise."""
        self._count(topic, schema, word)
        if schema.validation is ValidationPolicy.ENFORCE:
            raise InvalidRequestError(f"topic {topic}: {reason}")
        now = self._monotonic()
        if now - self._warned_at.get((topic, word), -WARN_INTERVAL_S) >= WARN_INTERVAL_S:
            self._warned_at[topic, word] = now
            count = self.counters.failed[topic, word]
            log.warning("schema_not_followed", topic=topic, subject=schema.subject, reason=word, count=count)

    async def _check_payload(self, topic: str, schema: TopicSchema, version: SchemaVersion, payload: bytes) -> None:
        parsed = self._store.parsed_now(version) or await self._store.parsed(version)
        try:
            if len(payload) <= INLINE_BYTES_MAX:
                parsed.check(payload)
            else:
                await self._threads.run(partial(parsed.check, payload))
        except InvalidMessageError:
            self._count(topic, schema, "payload_invalid")
            raise

    def _count(self, topic: str, schema: TopicSchema, word: str) -> None:
        if schema.subject is None:
            self.counters.checked[topic, schema.validation.value] += 1
        self.counters.failed[topic, word] += 1


def _wanted(schema: TopicSchema) -> str:
    return f"the topic's schema subject is {schema.subject}"
