"""The records of the schema registry in metadata: one a subject, one a version."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from ister.core.errors import CorruptMetadataError
from ister.schemas.kinds import Compatibility, SchemaType

if TYPE_CHECKING:
    from ister.ports.metadata import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """One version of a subject."""

    subject: str
    schema_id: int
    version: int
    schema_type: SchemaType
    definition: bytes = field(repr=False)
    fingerprint: str
    compatibility: Compatibility
    """The subject's mode now."""
    description: str = ""
    created_by: str = ""
    tags: tuple[str, ...] = ()
    created_at: int = 0
    """Seconds since the epoch."""


@dataclass(slots=True)
class Subject:
    """A subject as it is in metadata."""

    name: str
    id: int
    mode: Compatibility
    versions: dict[int, SchemaVersion] = field(default_factory=dict)
    last: int = 0
    """The highest version number, including deleted ones."""

    @property
    def size(self) -> int:
        """The bytes of its definitions."""
        return sum(len(one.definition) for one in self.versions.values())

    @property
    def latest(self) -> SchemaVersion | None:
        """The latest version, None if all are deleted."""
        return next(reversed(self.versions.values()), None)


class Record(BaseModel):
    """One value in metadata."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    version: Literal[1] = 1


class NextRecord(Record):
    """The next id."""

    id: int


class HeadRecord(Record):
    """A subject."""

    subject: str
    id: int
    mode: Compatibility = Compatibility.BACKWARD


class VersionRecord(Record):
    """A version, or the mark that it was deleted; the definition is in base64."""

    number: int
    deleted: bool = False
    type: SchemaType = SchemaType.BYTES
    definition: str = ""
    fingerprint: str = ""
    description: str = ""
    created_by: str = ""
    tags: tuple[str, ...] = ()
    created_at: int = 0


R = TypeVar("R", bound=Record)


def version_key(number: int) -> str:
    """Return a version's key below its subject's."""
    return f"versions/{number:010d}"


def record_of(version: SchemaVersion) -> VersionRecord:
    """Return the record of a version."""
    return VersionRecord(
        number=version.version,
        type=version.schema_type,
        definition=base64.b64encode(version.definition).decode(),
        fingerprint=version.fingerprint,
        description=version.description,
        created_by=version.created_by,
        tags=version.tags,
        created_at=version.created_at,
    )


def add(found: dict[str, Subject], entry: Entry, prefix: str) -> None:
    """Add an entry to its subject; a subject's head comes before its versions."""
    quoted, _, key = entry.key.removeprefix(prefix).partition("/")
    if key == "head":
        head = load(entry, HeadRecord)
        if quote(head.subject, safe="") != quoted or head.id <= 0:
            raise CorruptMetadataError(entry.key, "what it says of a schema subject cannot be")
        found[quoted] = Subject(head.subject, head.id, head.mode)
        return
    record = load(entry, VersionRecord)
    subject = found.get(quoted)
    if subject is None or key != version_key(record.number):
        raise CorruptMetadataError(entry.key, "what it says of a schema version cannot be")
    subject.last = record.number
    if record.deleted:
        return
    try:
        definition = base64.b64decode(record.definition, validate=True)
    except ValueError:
        raise CorruptMetadataError(entry.key, "its definition is not in base64") from None
    subject.versions[record.number] = SchemaVersion(
        subject=subject.name,
        schema_id=subject.id,
        version=record.number,
        schema_type=record.type,
        definition=definition,
        fingerprint=record.fingerprint,
        compatibility=subject.mode,
        description=record.description,
        created_by=record.created_by,
        tags=record.tags,
        created_at=record.created_at,
    )


def dump(record: Record) -> bytes:
    """Encode a record."""
    return record.model_dump_json().encode()


def load(entry: Entry, kind: type[R]) -> R:
    """Decode a record; raise CorruptMetadataError."""
    try:
        return kind.model_validate_json(entry.value)
    except ValidationError as error:
        raise CorruptMetadataError(
            entry.key, f"it is not a record of a schema ({error.error_count()} problems)"
        ) from None
