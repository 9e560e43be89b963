"""What the tests of core/dispatch share: messages, a machine with consumers, and short forms of what came out."""

from ister.core.dispatch.dispatch import Dispatch, FailurePolicy, SubscriptionType
from ister.core.message import MsgID, StreamMessage

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType
T0 = 1000.0


def message(offset, key=None, size=1, producer="p"):
    return StreamMessage(bytes(size), MsgID(topic_offset=offset), producer_name=producer, routing_key=key)


def messages(start, stop, **fields):
    return [message(offset, **fields) for offset in range(start, stop)]


def keyed(*keys, start=0):
    return [message(start + n, key) for n, key in enumerate(keys)]


def machine(kind, consumers=(1,), *, fed=0, cursor=0, window=10, grace_s=10.0, **policy):
    """A subscription whose consumers are connected, with messages in it that were not taken yet."""
    dispatch = Dispatch(kind, cursor, window=window, policy=FailurePolicy(**policy), grace_s=grace_s)
    for consumer in consumers:
        dispatch.join(consumer, (), T0)
        dispatch.connect(consumer, T0)
    dispatch.feed(messages(cursor, cursor + fed), T0)
    return dispatch


def take(dispatch):
    """What is handed out, all of which the consumers' connections take at once."""
    deliveries = dispatch.take()
    for delivery in deliveries:
        dispatch.sent(delivery.consumer, delivery.message.offset, delivery.number, T0)
    return deliveries


def offsets(dispatch):
    return [delivery.message.offset for delivery in take(dispatch)]


def pairs(dispatch):
    return [(delivery.consumer, delivery.message.offset) for delivery in take(dispatch)]


def letters(dispatch):
    return [letter.message.offset for letter in dispatch.take_dead_letters()]
