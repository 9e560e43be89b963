"""Decide the name of a topic's table, and what the table says about itself."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from ister.core.errors import CorruptMetadataError
from ister.core.names import NAME_BYTES_MAX, partition_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.core.names import TopicName

TOPIC = "ister.topic"
"""Property: whose table this is; the name alone proves nothing."""
GENERATION = "ister.generation"
EPOCH = "ister.epoch"
"""Property, and in each snapshot of ours: the owner that wrote last."""
UPTO = "ister.upto"
"""Property, and in each snapshot of ours: partition → the offset below which the table holds every message, as JSON."""
HASH_CHARS = 8
FROM = "ister.from"
"""In each snapshot of ours that appends: partition → where it began, as JSON, for the partitions that it appends to."""


def base_of(topic: TopicName) -> TopicName:
    """Return the topic whose table holds this one's messages: a partition's base, or the topic itself."""
    found = partition_of(topic)
    return topic if found is None else found[0]


def table_of(topic: TopicName) -> tuple[str, str]:
    """Return the namespace and the name of a topic's table."""
    base = base_of(topic)
    return (_plain(base.namespace), _plain(base.topic))


def with_hash(topic: TopicName) -> tuple[str, str]:
    """Return the name for a topic whose plain name another one has."""
    namespace, name = table_of(topic)
    digest = hashlib.sha256(str(base_of(topic)).encode()).hexdigest()[:HASH_CHARS]
    return (namespace, _short(name, f"_{digest}"))


def with_generation(table: tuple[str, str], generation: int) -> tuple[str, str]:
    """Return the name for a topic that was made again, while its predecessor's table stays."""
    name = table[1]
    return (table[0], _short(name[: -1 - HASH_CHARS], f"{name[-1 - HASH_CHARS :]}_g{generation}"))


def with_number(name: str, number: int) -> str:
    """Return the name of a table's directory beside others of the same name."""
    return _short(name, f"-{number}")


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Write partition → offset as text."""
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)}, separators=(",", ":"))


def offsets_of(text: str, table: str) -> dict[int, int]:
    """Read partition → offset; CorruptMetadataError when it is not what we write."""
    try:
        found = json.loads(text)
        offsets = {int(partition): offset for partition, offset in found.items()}
    except (ValueError, AttributeError) as error:
        raise CorruptMetadataError(f"{UPTO} of table {table}", f"{text[:80]!r} is not ours ({error})") from None
    if not all(type(offset) is int and offset >= 0 and key >= 0 for key, offset in offsets.items()):
        raise CorruptMetadataError(f"{UPTO} of table {table}", f"{text[:80]!r} has what is no offset")
    return offsets


def _short(name: str, suffix: str) -> str:
    """Return a name with a suffix, cut before it so that both are a file's name and fit into a catalog's column."""
    return f"{name[: NAME_BYTES_MAX - len(suffix)]}{suffix}"


def _plain(part: str) -> str:
    return part.lower().replace("-", "_")
