"""Identity of a data directory: the cluster id, created with its metadata, and the path of its last start.

Iceberg stores absolute paths, so the tables of a directory that was moved or copied refer to its old path. A moved directory
is relocated (`ister lake relocate`); a copy, whose original still exists, also gets an identity of its own (`ister adopt`).
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ister.config.catalog import local_warehouse
from ister.core.errors import BusyError, CorruptMetadataError, FencedError, PreconditionError
from ister.ports.metadata import SqliteMetadata
from ister.runtime.compose import open_catalog, open_metadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.config import Config
    from ister.ports.metadata import Metadata


class Identity(NamedTuple):
    """The cluster id, and the absolute path of the metadata file at the last start; "" with metadata elsewhere."""

    cluster_id: str
    path: str = ""

    def to_json(self) -> bytes:
        """Return the value that is stored."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_json(cls, value: bytes, key: str) -> Identity:
        """Return a stored identity."""
        try:
            return cls(**json.loads(value))
        except (ValueError, TypeError) as error:
            raise CorruptMetadataError(key, str(error)) from None


class Adopted(NamedTuple):
    """The new identity of a copied data directory, and the tables that were relocated."""

    cluster_id: str
    tables: list[str]


class CopiedDirectoryError(FencedError):
    """The data directory is a copy, and its original still exists."""

    def __init__(self, copy: str, original: str) -> None:
        self.copy, self.original = copy, original
        super().__init__(
            f"the data directory {copy} is a copy of {original}, which still exists; run `ister adopt` to make it a "
            "directory of its own, or serve the original"
        )


class MovedDirectoryError(PreconditionError):
    """The data directory was moved, and its tables still have the paths of the old place."""

    def __init__(self, new: str, old: str, tables: int) -> None:
        self.new, self.old, self.tables = new, old, tables
        super().__init__(
            f"the data directory was moved from {old} to {new}, and {tables} of its tables still have the old paths; run "
            "`ister lake relocate`, then start again"
        )


async def claim_directory(
    metadata: Metadata, config: Config, *, new_id: Callable[[], uuid.UUID] = uuid.uuid4
) -> Identity:
    """Record the path that the data directory is served from; create the identity of a new one.

    CopiedDirectoryError and MovedDirectoryError: it may not be served as it is.
    """
    found, version = await _stored(metadata, config)
    path = _metadata_path(config)
    if found is not None and not await _check(found, config):
        return found
    claimed = Identity(str(new_id()) if found is None else found.cluster_id, path)
    if await metadata.cas(_key(config), claimed.to_json(), version=version) is None:
        return await claim_directory(metadata, config, new_id=new_id)
    return claimed


async def adopt_directory(config: Config, *, new_id: Callable[[], uuid.UUID] = uuid.uuid4) -> Adopted:
    """Relocate the tables of a copied data directory and give it an identity of its own.

    The identity comes last: after a failure the directory still is a copy, and is adopted again.
    """
    metadata = await open_metadata(config, read_only=False)
    try:
        _, version = await _stored(metadata, config)
        tables = _relocate(config)
        adopted = Identity(str(new_id()), _metadata_path(config))
        if await metadata.cas(_key(config), adopted.to_json(), version=version) is None:
            raise BusyError("the identity of the data directory was changed by another process; run the command again")
        return Adopted(adopted.cluster_id, tables)
    finally:
        await metadata.close()


async def relocate_directory(config: Config) -> list[str]:
    """Relocate the tables of a moved data directory; return their names. A copy is refused: it needs its own identity."""
    if not _metadata_path(config):
        return _relocate(config)
    metadata = await open_metadata(config, read_only=False)
    try:
        found, _ = await _stored(metadata, config)
        if found is not None:
            await _require_no_original(found, config)
        return _relocate(config)
    finally:
        await metadata.close()


async def require_own_directory(config: Config) -> None:
    """Raise CopiedDirectoryError or MovedDirectoryError unless tables may be changed through this data directory."""
    if not _is_file(_metadata_path(config)):
        return
    metadata = await open_metadata(config, read_only=True)
    try:
        found, _ = await _stored(metadata, config)
    finally:
        await metadata.close()
    if found is not None:
        await _check(found, config)


async def _check(found: Identity, config: Config) -> bool:
    """Return True if the recorded path has to be replaced by the present one."""
    path = _metadata_path(config)
    if not path or found.path == path:
        return False
    await _require_no_original(found, config)
    if tables := _misplaced(config):
        raise MovedDirectoryError(str(Path(path).parent), str(Path(found.path).parent), tables)
    return True


async def _require_no_original(found: Identity, config: Config) -> None:
    path, original = _metadata_path(config), found.path
    if not _is_file(original) or _same_file(original, path):
        return
    metadata = await SqliteMetadata.open(original, read_only=True)
    try:
        other, _ = await _stored(metadata, config)
    finally:
        await metadata.close()
    if other is not None and other.cluster_id == found.cluster_id:
        raise CopiedDirectoryError(str(Path(path).parent), str(Path(original).parent))


async def _stored(metadata: Metadata, config: Config) -> tuple[Identity | None, int]:
    """Return the identity, and the version of its key."""
    key = _key(config)
    entry = await metadata.get(key)
    return (None, 0) if entry is None else (Identity.from_json(entry.value, key), entry.version)


def _is_file(path: str) -> bool:
    return bool(path) and Path(path).is_file()


def _same_file(one: str, other: str) -> bool:
    return Path(one).samefile(other)


def _misplaced(config: Config) -> int:
    """Return how many tables have paths outside of the local warehouse."""
    if local_warehouse(config) is None:
        return 0
    from ister.lake.relocate import misplaced  # noqa: PLC0415  # PyIceberg takes a second to import

    with open_catalog(config) as catalog:
        return 0 if catalog is None else len(misplaced(catalog))


def _relocate(config: Config) -> list[str]:
    if local_warehouse(config) is None:
        return []
    from ister.lake.relocate import relocate  # noqa: PLC0415  # as above

    with open_catalog(config) as catalog:
        return [] if catalog is None else relocate(catalog)


def _key(config: Config) -> str:
    return f"{config.wal_cloud.uploader.root_prefix}/identity"


def _metadata_path(config: Config) -> str:
    """Return the absolute path of the metadata file; "" if the metadata is not on this disk."""
    metadata = config.wal_cloud.metadata
    return str(metadata.sqlite_file.resolve()) if metadata.kind == "sqlite" else ""
