"""Policies of topics: limits, acknowledgement level, retention.

A topic's key overrides its namespace's, and that the broker's (`policies:` in the configuration).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from ister.config.keys import TEXT_MAX, Clash, Milliseconds, Section, setting
from ister.config.problems import nearest, reason
from ister.config.yaml_tree import show_key
from ister.core.defaults import ACK_TIMEOUT_MS
from ister.core.errors import InvalidRequestError

U32_MAX = (1 << 32) - 1
UNSET = "default"
"""The value by which `ister topics set` removes a key, so that the level above applies."""

Count = Annotated[int, Field(ge=0, le=U32_MAX)]
Seconds = Annotated[int, Field(ge=1, le=3_153_600_000)]
AckLevelName = Literal["wal", "fsync", "cloud", "lake"]
RetentionName = Literal["none", "retain_until_ack", "retain_until_expire"]
StartName = Literal["latest", "earliest"]


class Policies(Section):
    """The policies of one namespace or topic; a key that is None inherits from the level above."""

    max_producers_per_topic: Count | None = None
    max_subscriptions_per_topic: Count | None = None
    max_consumers_per_topic: Count | None = None
    max_consumers_per_subscription: Count | None = None
    max_publish_rate: Count | None = None
    max_subscription_dispatch_rate: Count | None = None
    max_message_size: Count | None = None
    ack_level: AckLevelName | None = None
    ack_timeout_ms: Milliseconds | None = None
    retention_policy: RetentionName | None = None
    retention_period_s: Seconds | None = None
    start_position: StartName | None = None
    lake: bool | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a JSON object; InvalidRequestError names the invalid key, and the nearest known one."""
        if len(text) > TEXT_MAX:
            raise InvalidRequestError(f"policies are longer than {TEXT_MAX:,} characters")
        try:
            content = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            raise InvalidRequestError('policies are not JSON; send an object like {"max_message_size": 1000}') from None
        if not isinstance(content, dict):
            raise InvalidRequestError('policies are not a JSON object; send one like {"max_message_size": 1000}')
        try:
            return cls.model_validate(content, strict=True)
        except ValidationError as error:
            raise _refused(error) from None

    def changed(self, words: Mapping[str, str]) -> "Policies":
        """Return these policies with some keys set from text; `default` removes a key."""
        given = self.model_dump(exclude_none=True)
        for key, word in words.items():
            if key in given and word == UNSET:
                del given[key]
            elif word != UNSET or key not in Policies.model_fields:
                given[key] = word
        try:
            return Policies.model_validate(given)
        except ValidationError as error:
            raise _refused(error) from None

    def to_json(self) -> str:
        """Return a JSON object with the keys that are set."""
        return self.model_dump_json(exclude_none=True)


class CompletePolicies(Section):
    """Policies of all topics, unless overridden for their namespace or for themselves."""

    max_producers_per_topic: Count = setting("Producers that a topic may have; 0: any number.", default=0)
    max_subscriptions_per_topic: Count = setting("Subscriptions that a topic may have; 0: any number.", default=0)
    max_consumers_per_topic: Count = setting("Consumers that a topic may have; 0: any number.", default=0)
    max_consumers_per_subscription: Count = setting("Consumers that a subscription may have; 0: any number.", default=0)
    max_publish_rate: Count = setting(
        "Messages a second that a topic takes; producers are throttled beyond it. 0: any number.", default=0
    )
    max_subscription_dispatch_rate: Count = setting(
        "Messages a second that a subscription is given; the rest waits. 0: any number.", default=0
    )
    max_message_size: Count = setting(
        "Bytes that a message's payload may have; 0: any number. `broker.message_bytes_max` holds as well.",
        default=10_485_760,
    )
    ack_level: AckLevelName | None = setting(
        "What a producer's answer waits for. wal: written. fsync: synced. cloud: in an object. lake: in the "
        "table. It can raise what `sync_mode` gives, not lower it; none: what `sync_mode` gives.",
        default=None,
        allowed="wal, fsync, cloud, lake",
        example="fsync",
    )
    ack_timeout_ms: Milliseconds = setting(
        "Milliseconds that a producer's answer waits for the object store or the table, with `ack_level` cloud or lake.",
        default=ACK_TIMEOUT_MS,
    )
    retention_policy: RetentionName = setting(
        "When messages may be deleted. none: `wal_cloud.wal.retention` decides. retain_until_ack: once every subscription "
        "has acknowledged them. retain_until_expire: once they are older than `retention_period_s`.",
        default="none",
    )
    retention_period_s: Seconds | None = setting(
        "Age in seconds for retain_until_expire; none: `wal_cloud.wal.retention.time_minutes`.",
        default=None,
        allowed="a whole number, from 1 to 3,153,600,000",
        example="604800",
    )
    start_position: StartName = setting(
        "Where a new subscription begins: with what comes next, or with the oldest message.", default="latest"
    )
    lake: bool = setting("Append the topic to its table.", default=True)

    def _clashes(self) -> Iterator[Clash]:
        if self.ack_level == "lake" and not self.lake:
            yield Clash("ack_level", "lake", "is lake, which needs a table; lake: false says that there is none")

    def to_json(self) -> str:
        """Return a JSON object with every key."""
        return self.model_dump_json()


def merge(namespace: Policies, topic: Policies, defaults: CompletePolicies) -> CompletePolicies:
    """Return the effective policies of a topic."""
    given = {**namespace.model_dump(exclude_none=True), **topic.model_dump(exclude_none=True)}
    return defaults.model_copy(update=given)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidRequestError("policies have a key that stands twice; keep one of them")
    return found


def _refused(error: ValidationError) -> InvalidRequestError:
    problems = []
    for detail in error.errors(include_url=False, include_input=False):
        key = str(detail["loc"][0])
        if detail["type"] == "extra_forbidden":
            meant = nearest(key, Policies.model_fields)
            known = f"did you mean {meant}?" if meant else f"known are {', '.join(Policies.model_fields)}"
            problems.append(f"{show_key(key)} is not a known key; {known}")
        else:
            problems.append(f"{key} {reason(detail)}")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidRequestError(f"policy {problems[0]}{more}")
