"""Decide whether a topic's schema binding lets a message in.

Who has no binding is not asked. Under `warn` a message that names no schema, or one of another subject, is let in and
counted; its payload is not looked at, since it is not known what it should be. A schema id that nobody registered is
refused under `warn`, too, and so is a payload that is not of the schema it names, once payloads are checked at all.
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
from ister.core.schemas import ValidationPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.broker.schema_records import SchemaVersion
    from ister.broker.schema_store import SchemaStore
    from ister.core.message import StreamMessage
    from ister.core.schemas import TopicSchema

INLINE_BYTES_MAX: Final = 16 * 1024
"""Payloads that are checked at once; larger ones in a thread, so that the others' messages go on."""
THREADS_MAX: Final = 2
WARN_INTERVAL_S: Final = 60.0
"""How often at most the log says the same of a topic."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ValidationCounters:
    """What was checked, by topic and policy; and what was found wrong, by topic and reason, refused or not."""

    checked: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)


class Validation:
    """Checks messages against their topics' schemas."""

    def __init__(self, store: SchemaStore, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._said: dict[tuple[str, str], float] = {}
        self._threads = ClientThreads("checking payloads", THREADS_MAX)
        self.counters = ValidationCounters()

    async def check(self, topic: str, schema: TopicSchema, message: StreamMessage) -> None:
        """Raise unless a message may be stored. PreconditionError or a ClientError that means INVALID_ARGUMENT."""
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
        """Drop what is counted for a topic that is gone."""
        for counter in (self.counters.checked, self.counters.failed):
            for key in [key for key in counter if key[0] == topic]:
                del counter[key]
        for key in [key for key in self._said if key[0] == topic]:
            del self._said[key]

    def _version(self, topic: str, schema: TopicSchema, message: StreamMessage) -> SchemaVersion | None:
        """Return the version that a message is of; None when it names none that counts, and is let in all the same."""
        if message.schema_id is None:
            self._doubt(topic, schema, "missing_schema_id", f"the message names no schema; {_wanted(schema)}")
            return None
        latest = self._store.find(message.schema_id)
        if latest is None:
            self._count(topic, schema, "unknown_schema_id")
            raise InvalidRequestError(f"schema id {message.schema_id} not found; {_wanted(schema)}")
        if latest.subject != schema.subject:
            reason = f"the message's schema id {message.schema_id} is of subject {latest.subject}; {_wanted(schema)}"
            self._doubt(topic, schema, "subject_mismatch", reason)
            return None
        if message.schema_version is None:
            return latest
        found = self._store.find(message.schema_id, message.schema_version)
        if found is None:
            reason = f"version {message.schema_version} of schema subject {latest.subject} not found"
            if schema.payload_validation:
                self._count(topic, schema, "unknown_version")
                raise InvalidRequestError(reason)
            self._doubt(topic, schema, "unknown_version", reason)
        return found

    def _doubt(self, topic: str, schema: TopicSchema, word: str, reason: str) -> None:
        """Refuse a message where schemas are enforced; let it in, with a word, where they are not."""
        self._count(topic, schema, word)
        if schema.validation is ValidationPolicy.ENFORCE:
            raise InvalidRequestError(f"topic {topic}: {reason}")
        now = self._monotonic()
        if now - self._said.get((topic, word), -WARN_INTERVAL_S) >= WARN_INTERVAL_S:
            self._said[topic, word] = now
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
