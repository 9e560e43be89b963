"""Ids of producers, consumers and brokers: hashes of their names, so that a restart does not change them.

A producer's id consists of a hash of its topic (24 bits) and one of its name (39 bits), so a broker that has just started
knows which topic an id belongs to. A consumer's id is a hash of topic, subscription and name.
"""

from __future__ import annotations

from hashlib import blake2b

TOPIC_BITS = 24
NAME_BITS = 39


def topic_part(topic: str) -> int:
    """Return the prefix of the ids of a topic's producers; never 0, so that small numbers are no ids."""
    return _bits(TOPIC_BITS, topic) or 1


def producer_id(topic: str, name: str) -> int:
    """Return the id of a producer, above 0 and below 2^63."""
    return topic_part(topic) << NAME_BITS | _bits(NAME_BITS, topic, name)


def may_send(number: int, topic: str) -> bool:
    """Return True if an id is that of a producer of this topic."""
    return number >> NAME_BITS == topic_part(topic)


def topic_part_of(number: int) -> int:
    """Return the topic prefix of a producer's id."""
    return number >> NAME_BITS


def consumer_id(topic: str, subscription: str, name: str) -> int:
    """Return the id of a consumer, above 0 and below 2^63."""
    return _bits(63, topic, subscription, name) or 1


def broker_id(cluster: str, url: str) -> int:
    """Return the id of a broker, above 0 and below 2^63."""
    return _bits(63, cluster, url) or 1


def _bits(count: int, *parts: str) -> int:
    digest = blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return int.from_bytes(digest.digest(), "little") >> (64 - count)
