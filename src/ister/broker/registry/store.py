"""The schema registry: subjects, versions and ids, all in memory; each change is written to metadata first.

    <root>/schemas/next                                 the next id
    <root>/schemas/subjects/<subject>/head              a subject's id and its compatibility mode
    <root>/schemas/subjects/<subject>/versions/<n>      one version, or the mark that it was deleted

A version is written on condition that its key is absent, so concurrent registrations, even of two processes, never reuse
a number. The number of a deleted version is not used again. Subjects are percent-encoded in keys. If the next id is lost,
it follows the ids of the subjects.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from ister.broker.registry.records import (
    HeadRecord,
    NextRecord,
    SchemaVersion,
    Subject,
    VersionRecord,
    add,
    dump,
    load,
    record_of,
    version_key,
)
from ister.broker.threads import ClientThreads
from ister.core.errors import BusyError, LimitError, NotFoundError, PreconditionError, UnknownOutcomeError
from ister.ports.metadata.store import entries
from ister.schemas.kinds import Compatibility, SchemaType, check_subject, check_texts
from ister.schemas.schema import incompatibilities, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.broker.registry.records import Record
    from ister.ports.metadata import Metadata
    from ister.schemas.schema import Schema

SUBJECTS_MAX: Final = 10_000
VERSIONS_MAX: Final = 1_000
DEFINITIONS_BYTES_MAX: Final = 256 << 20
"""Limit of all definitions together, which are in memory."""
PARSED_MAX: Final = 1_000
PARSED_BYTES_MAX: Final = 4 << 20
"""Bounds of the cache of parsed definitions, which take many times their size."""
REASONS_SHOWN: Final = 5
PAGE: Final = 32
"""Entries of a page; each may be larger than a megabyte."""
ATTEMPTS: Final = 20
REGISTRY_WAITING_MAX: Final = 64
REGISTRY_DEADLINE_S: Final = 30.0
"""For parsing and comparing a definition, including the time in the queue; the largest take seconds."""
INLINE_BYTES_MAX: Final = 2048
"""Larger definitions are parsed in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchema:
    """A version to be registered."""

    subject: str
    schema_type: SchemaType
    definition: bytes = field(repr=False)
    description: str = ""
    created_by: str = ""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_subject(self.subject)
        check_texts(self.description, self.created_by, self.tags)


class SchemaStore:
    """The subjects of a registry; reads are served from memory."""

    def __init__(self, metadata: Metadata, root_prefix: str, *, now: Callable[[], float] = time.time) -> None:
        self._metadata = metadata
        self._root = f"{root_prefix.rstrip('/')}/schemas"
        self._now = now
        self._subjects: dict[str, Subject] = {}
        self._by_id: dict[int, Subject] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._parsed: OrderedDict[tuple[int, int], tuple[Schema, int]] = OrderedDict()
        self._parsed_bytes = 0
        self._bytes = 0
        self._parsing = asyncio.Lock()
        self._parse_threads = ClientThreads("parsing schemas", 1)
        """Of their own, so that messages do not wait for registrations."""
        self._registry_threads = ClientThreads(
            "the schema registry", 1, waiting_max=REGISTRY_WAITING_MAX, deadline_s=REGISTRY_DEADLINE_S
        )

    # --- reading, from memory -----------------------------------------------------------------------------------------

    def exists(self, subject: str) -> bool:
        """Return True if a subject has a version."""
        return self.latest(subject) is not None

    def latest(self, subject: str) -> SchemaVersion | None:
        """Return a subject's latest version, None if it has none."""
        found = self._subjects.get(subject)
        return None if found is None else found.latest

    def find(self, schema_id: int, version: int | None = None) -> SchemaVersion | None:
        """Return a version by its subject's id, by default the latest; None if there is none."""
        found = self._by_id.get(schema_id)
        if found is None:
            return None
        return found.latest if version is None else found.versions.get(version)

    def versions(self, subject: str) -> list[SchemaVersion]:
        """Return a subject's versions, in order."""
        found = self._subjects.get(subject)
        return [] if found is None else list(found.versions.values())

    def subjects(self) -> list[SchemaVersion]:
        """Return the latest version of every subject that has one, by name."""
        return [latest for name in sorted(self._subjects) if (latest := self._subjects[name].latest) is not None]

    def parsed_now(self, version: SchemaVersion) -> Schema | None:
        """Return a parsed version from the cache."""
        key = (version.schema_id, version.version)
        found = self._parsed.get(key)
        if found is None:
            return None
        self._parsed.move_to_end(key)
        return found[0]

    async def parsed(self, version: SchemaVersion) -> Schema:
        """Return a parsed version."""
        found = self.parsed_now(version)
        if found is not None:
            return found
        async with self._parsing:
            found = self.parsed_now(version)
            if found is None:
                found = await _parse(self._parse_threads, version.schema_type, version.definition)
                self._cache(version, found)
        return found

    # --- loading ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read every subject; raise CorruptMetadataError for a malformed record."""
        await self._load(f"{self._root}/subjects/")

    async def _load(self, prefix: str) -> None:
        found: dict[str, Subject] = {}
        async for entry in entries(self._metadata, prefix, PAGE):
            add(found, entry, f"{self._root}/subjects/")
        for subject in found.values():
            self._take(subject)

    def _take(self, subject: Subject) -> None:
        """Replace a subject in memory."""
        before = self._subjects.get(subject.name)
        self._bytes += subject.size - (0 if before is None else before.size)
        subject.versions = {
            number: replace(one, subject=subject.name, schema_id=subject.id, compatibility=subject.mode)
            for number, one in sorted(subject.versions.items())
        }
        self._subjects[subject.name] = subject
        self._by_id[subject.id] = subject

    # --- changing -----------------------------------------------------------------------------------------------------

    async def register(self, new: NewSchema) -> tuple[SchemaVersion, bool]:
        """Create a version unless an equal one exists; return it, and True if it is new.

        Raise PreconditionError if it is not compatible with the latest one.
        """
        schema = await _parse(self._registry_threads, new.schema_type, new.definition)
        async with self._lock(new.subject):
            for _ in range(ATTEMPTS):
                subject = self._subjects.get(new.subject)
                if subject is None:
                    await self._create(new.subject)
                    continue
                present = _identical(subject, schema)
                if present is not None:
                    return present, False
                await self._check(subject, schema)
                made = await self._add_version(subject, new, schema)
                if made is not None:
                    return made, True
        raise _crowded(new.subject)

    async def check(self, subject: str, kind: SchemaType, definition: bytes, mode: Compatibility | None) -> list[str]:
        """Return the incompatibilities with a subject's latest version; raise NotFoundError if there is none."""
        latest = self.latest(subject)
        if latest is None:
            raise unknown_subject(subject)
        schema = await _parse(self._registry_threads, kind, definition)
        return await self._incompatibilities(schema, latest, mode or latest.compatibility)

    async def _incompatibilities(self, schema: Schema, latest: SchemaVersion, mode: Compatibility) -> list[str]:
        before = await self.parsed(latest)
        return await self._registry_threads.run(partial(incompatibilities, schema, before, mode))

    async def set_mode(self, subject: str, mode: Compatibility) -> None:
        """Change the compatibility mode of a subject."""
        async with self._lock(subject):
            for _ in range(ATTEMPTS):
                found = self._subjects.get(subject)
                if found is None or found.latest is None:
                    raise unknown_subject(subject)
                if await self._write(found.name, "head", HeadRecord(subject=subject, id=found.id, mode=mode)):
                    self._take(replace(found, mode=mode))
                    return
        raise _crowded(subject)

    async def delete(self, subject: str, version: int) -> None:
        """Delete a version; its number is not used again."""
        async with self._lock(subject):
            for _ in range(ATTEMPTS):
                found = self._subjects.get(subject)
                if found is None or version not in found.versions:
                    raise NotFoundError(f"version {version} of schema subject {subject[:80]!r} not found")
                if await self._write(subject, version_key(version), VersionRecord(number=version, deleted=True)):
                    rest = {number: one for number, one in found.versions.items() if number != version}
                    self._take(replace(found, versions=rest))
                    self._drop((found.id, version))
                    return
        raise _crowded(subject)

    async def _create(self, name: str) -> None:
        """Create a subject, unless another process did at the same time."""
        if len(self._subjects) >= SUBJECTS_MAX:
            raise LimitError(f"there are {SUBJECTS_MAX} schema subjects, and there may be no more")
        record = HeadRecord(subject=name, id=await self._next_id())
        if await self._write(name, "head", record, absent=True):
            self._take(Subject(name, record.id, record.mode))

    async def _next_id(self) -> int:
        key = f"{self._root}/next"
        while True:
            entry = await self._metadata.get(key)
            counted = 1 if entry is None else load(entry, NextRecord).id
            number = max(counted, max(self._by_id, default=0) + 1)
            record = dump(NextRecord(id=number + 1))
            if await self._metadata.cas(key, record, version=0 if entry is None else entry.version):
                return number

    async def _check(self, subject: Subject, schema: Schema) -> None:
        latest = subject.latest
        if latest is None or subject.mode is Compatibility.NONE:
            return
        reasons = await self._incompatibilities(schema, latest, subject.mode)
        if reasons:
            raise PreconditionError(
                f"schema subject {subject.name} is {subject.mode}, and this is not compatible with its version "
                f"{latest.version}: {'; '.join(reasons[:REASONS_SHOWN])}"
            )

    async def _add_version(self, subject: Subject, new: NewSchema, schema: Schema) -> SchemaVersion | None:
        """Write the next version; return None if another process wrote it first."""
        if len(subject.versions) >= VERSIONS_MAX:
            raise LimitError(f"schema subject {subject.name} has {VERSIONS_MAX} versions, and there may be no more")
        if self._bytes + len(new.definition) > DEFINITIONS_BYTES_MAX:
            raise LimitError("the definitions of all schemas together are as large as they may be")
        number = subject.last + 1
        made = SchemaVersion(
            subject=subject.name,
            schema_id=subject.id,
            version=number,
            schema_type=new.schema_type,
            definition=new.definition,
            fingerprint=schema.fingerprint,
            compatibility=subject.mode,
            description=new.description,
            created_by=new.created_by,
            tags=new.tags,
            created_at=int(self._now()),
        )
        if not await self._write(subject.name, version_key(number), record_of(made), absent=True):
            return None
        self._take(replace(subject, versions={**subject.versions, number: made}, last=number))
        self._cache(made, schema)
        return made

    async def _write(self, name: str, key: str, record: Record, *, absent: bool = False) -> bool:
        """Write a record unless another process changed it; then, or if that is unknown, reload the subject."""
        place = f"{self._prefix(name)}/{key}"
        entry = None if absent else await self._metadata.get(place)
        try:
            written = await self._metadata.cas(place, dump(record), version=0 if entry is None else entry.version)
        except UnknownOutcomeError:
            with suppress(BusyError):
                await self._load(f"{self._prefix(name)}/")
            raise
        if written is None:
            await self._load(f"{self._prefix(name)}/")
        return written is not None

    # --- parts --------------------------------------------------------------------------------------------------------

    def _lock(self, subject: str) -> asyncio.Lock:
        return self._locks.setdefault(subject, asyncio.Lock())

    def _prefix(self, subject: str) -> str:
        return f"{self._root}/subjects/{quote(subject, safe='')}"

    def _cache(self, version: SchemaVersion, schema: Schema) -> None:
        """Add a parsed version to the LRU cache."""
        key = (version.schema_id, version.version)
        self._drop(key)
        self._parsed[key] = (schema, len(version.definition))
        self._parsed_bytes += len(version.definition)
        while len(self._parsed) > 1 and (self._parsed_bytes > PARSED_BYTES_MAX or len(self._parsed) > PARSED_MAX):
            self._drop(next(iter(self._parsed)))

    def _drop(self, key: tuple[int, int]) -> None:
        if key in self._parsed:
            self._parsed_bytes -= self._parsed.pop(key)[1]


def unknown_subject(subject: str) -> NotFoundError:
    """Return the error of a subject that has no version."""
    return NotFoundError(f"schema subject {subject[:80]!r} not found")


def _crowded(subject: str) -> LimitError:
    return LimitError(f"schema subject {subject} is being changed by others all the time; try again")


async def _parse(threads: ClientThreads, kind: SchemaType, definition: bytes) -> Schema:
    if len(definition) <= INLINE_BYTES_MAX:
        return parse(kind, definition)
    return await threads.run(partial(parse, kind, definition))


def _identical(subject: Subject, schema: Schema) -> SchemaVersion | None:
    """Return the equal version; one text may be a definition of two schema types, which are not equal."""
    for one in subject.versions.values():
        if one.fingerprint == schema.fingerprint and one.schema_type is schema.type:
            return one
    return None
