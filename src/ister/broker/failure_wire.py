"""Decide which failure policies the wire may set, and how they are told."""

from __future__ import annotations

from ister.core.errors import InvalidRequestError
from ister.core.failure import Backoff, FailurePolicy, Poison
from ister.core.names import TopicName
from ister.rpc import danube_admin_pb2 as pb
from ister.rpc import ister_v1_pb2 as v1

MS_MAX = 30 * 24 * 3600 * 1000
"""A month: whoever waits longer has made a mistake."""

BACKOFFS = {pb.Fixed: Backoff.FIXED, pb.Exponential: Backoff.EXPONENTIAL}
POISONS = {pb.DeadLetter: Poison.DEAD_LETTER, pb.Block: Poison.BLOCK, pb.Drop: Poison.DROP}
BACKOFFS_TOLD = {backoff: number for number, backoff in BACKOFFS.items()}
POISONS_TOLD = {poison: number for number, poison in POISONS.items()}


def policy_from_wire(wire: pb.SubscriptionFailurePolicy) -> FailurePolicy:
    """Read a policy; InvalidRequestError names the field that is wrong."""
    for field in ("ack_timeout_ms", "base_redelivery_delay_ms", "max_redelivery_delay_ms"):
        if getattr(wire, field) > MS_MAX:
            raise InvalidRequestError(f"{field} {getattr(wire, field)} is more than {MS_MAX} (30 days)")
    backoff, poison = BACKOFFS.get(wire.backoff_strategy), POISONS.get(wire.poison_policy)
    if backoff is None:
        raise InvalidRequestError(f"backoff_strategy {wire.backoff_strategy} is neither Fixed (0) nor Exponential (1)")
    if poison is None:
        raise InvalidRequestError(f"poison_policy {wire.poison_policy} is none of DeadLetter (0), Block (1), Drop (2)")
    target = wire.dead_letter_topic or None
    if target is not None:
        TopicName.parse(target)
    elif poison is Poison.DEAD_LETTER:
        raise InvalidRequestError("dead_letter_topic is missing, and poison_policy DeadLetter needs it")
    return FailurePolicy(
        max_redelivery_count=wire.max_redelivery_count,
        ack_timeout_ms=wire.ack_timeout_ms,
        base_redelivery_delay_ms=wire.base_redelivery_delay_ms,
        max_redelivery_delay_ms=wire.max_redelivery_delay_ms,
        backoff=backoff,
        poison=poison,
        dead_letter_topic=target,
    )


def policy_to_wire(policy: FailurePolicy) -> pb.SubscriptionFailurePolicy:
    """Tell a policy in Danube's words."""
    return pb.SubscriptionFailurePolicy(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
        backoff_strategy=BACKOFFS_TOLD[policy.backoff],
        poison_policy=POISONS_TOLD[policy.poison],
        dead_letter_topic=policy.dead_letter_topic,
    )


def policy_to_v1(policy: FailurePolicy) -> v1.FailurePolicy:
    """Tell a policy in our words."""
    return v1.FailurePolicy(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
        backoff=f"BACKOFF_{policy.backoff.name}",
        poison=f"POISON_{policy.poison.name}",
        dead_letter_topic=policy.dead_letter_topic,
    )
