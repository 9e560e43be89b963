"""Names of a topic's table, and the Iceberg properties that identify it."""

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
"""Property: the topic; a table's name does not prove it."""
GENERATION = "ister.generation"
EPOCH = "ister.epoch"
"""Property, and in each snapshot of ours: the epoch of the last owner."""
UPTO = "ister.upto"
"""Property, and in each snapshot of ours: partition → the offset below which the table has every message, as JSON."""
HASH_CHARS = 8
FROM = "ister.from"
"""In each appending snapshot of ours: partition → the first offset that it appended, as JSON."""


def base_of(topic: TopicName) -> TopicName:
    """Return the topic whose table holds this topic's messages: a partition's base topic, or the topic itself."""
    found = partition_of(topic)
    return topic if found is None else found[0]


def table_of(topic: TopicName) -> tuple[str, str]:
    """Return the namespace and the name of a topic's table."""
    base = base_of(topic)
    return (_plain(base.namespace), _plain(base.topic))


def with_hash(topic: TopicName) -> tuple[str, str]:
    """Return the name for a topic whose plain table name another topic has."""
    namespace, name = table_of(topic)
    digest = hashlib.sha256(str(base_of(topic)).encode()).hexdigest()[:HASH_CHARS]
    return (namespace, _short(name, f"_{digest}"))


def with_generation(table: tuple[str, str], generation: int) -> tuple[str, str]:
    """Return the name for a topic that was re-created while the table of its old generation remains."""
    name = table[1]
    return (table[0], _short(name[: -1 - HASH_CHARS], f"{name[-1 - HASH_CHARS :]}_g{generation}"))


def table_names(topic: TopicName, generation: int) -> list[tuple[str, str]]:
    """Return every name that a topic's table can have: plain, hashed, and both with the generation."""
    plain, hashed = table_of(topic), with_hash(topic)
    return [plain, hashed, with_generation(plain, generation), with_generation(hashed, generation)]


def is_of(properties: Mapping[str, str], topic: TopicName, generation: int) -> bool:
    """Return True if a table's properties name this topic and generation."""
    return properties.get(TOPIC) == str(topic) and properties.get(GENERATION) == str(generation)


def with_number(name: str, number: int) -> str:
    """Return the directory name of a table when others of the same name exist."""
    return _short(name, f"-{number}")


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Return partition → offset as JSON."""
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)}, separators=(",", ":"))


def offsets_of(text: str, table: str) -> dict[int, int]:
    """Parse partition → offset; CorruptMetadataError when `offsets_text` cannot have written it."""
    try:
        found = json.loads(text)
        offsets = {int(partition): offset for partition, offset in found.items()}
    except (ValueError, AttributeError) as error:
        raise CorruptMetadataError(f"{UPTO} of table {table}", f"{text[:80]!r} is not ours ({error})") from None
    if not all(type(offset) is int and offset >= 0 and key >= 0 for key, offset in offsets.items()):
        raise CorruptMetadataError(f"{UPTO} of table {table}", f"{text[:80]!r} has what is no offset")
    return offsets


def _short(name: str, suffix: str) -> str:
    """Return a name with a suffix, truncated before it to fit a file name and a catalog's column."""
    return f"{name[: NAME_BYTES_MAX - len(suffix)]}{suffix}"


def _plain(part: str) -> str:
    return part.lower().replace("-", "_")
