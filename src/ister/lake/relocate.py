"""Relocation of tables whose local warehouse was moved or copied: the same table with the paths of its new directory.

Iceberg stores absolute paths: in the catalog, in metadata files, manifest lists, manifests and position deletes. Each of
these is written again beside the old one, which is read from the new directory; the catalog's pointer changes last, so an
interrupted relocation is repeated. Data files are not touched. Iceberg's procedure `rewrite_table_path` reads from the old
directory, which a moved warehouse no longer has.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.serializers import FromInputFile
from sqlalchemy import select
from sqlalchemy.orm import Session

from ister.core.table.maintenance import spelling
from ister.lake.catalog import replace_pointer
from ister.lake.errors import LakeUnavailableError, OutsideWarehouseError, UnsupportedFormatError, error_text
from ister.lake.files import PATH_PROPERTIES, SyncedFileIO, is_inside, of_files, root_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io.pyarrow import PyArrowFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

log = structlog.get_logger()

DELETED_PATH = "file_path"
DELETED_PATH_ID = 2_147_483_546
"""Column of a position delete file, and its reserved field id: the data file that a row was deleted from."""
_CODEC: Final = "deflate"
_PATH, _LENGTH = 0, 1  # fields of a ManifestFile, which has no setters for them
_FILE_PATH, _FILE_SIZE, _LOWER, _UPPER = 1, 5, 10, 11  # of a DataFile, likewise


class Move(NamedTuple):
    """A directory that was moved or copied: `old` is what paths begin with, `new` where the files are."""

    old: str
    new: str

    def __call__(self, location: str) -> str:
        """Return a location in the new directory, spelled as before; unchanged if it was not in the old one."""
        path = spelling(location)
        if not path.startswith(f"{self.old}/"):
            return location
        return location.removesuffix(path) + self.new + path.removeprefix(self.old)


def misplaced(catalog: Catalog) -> list[str]:
    """Return the tables whose metadata is outside of the catalog's local warehouse, without reading it."""
    return [row.name for row in _rows(catalog)]


def relocate(catalog: Catalog) -> list[str]:
    """Relocate every table whose metadata is outside of the local warehouse and whose files are inside; return them."""
    rows = _rows(catalog)
    for row in rows:
        assert isinstance(catalog, SqlCatalog), "others have no rows"
        move = _move_of(row)
        try:
            _relocate(catalog, row, move)
        except (OutsideWarehouseError, UnsupportedFormatError, LakeUnavailableError):
            raise
        except Exception as error:
            raise LakeUnavailableError(row.name, "relocate", error_text(error)) from error
        log.info("table_relocated", table=row.name, old=move.old, new=move.new)
    return [row.name for row in rows]


class _Row(NamedTuple):
    """A table's row in the catalog."""

    name: str
    namespace: str
    table: str
    location: str
    root: str


def _rows(catalog: Catalog) -> list[_Row]:
    """Return the misplaced tables; only a SQL catalog with a local warehouse can have some."""
    root = root_of(catalog.properties)
    if root is None or not isinstance(catalog, SqlCatalog):
        return []
    columns = IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location
    with Session(catalog.engine) as session:
        found = session.execute(select(*columns).where(IcebergTables.catalog_name == catalog.name)).all()
    rows = [_Row(f"{space}.{name}", space, name, location or "", root) for space, name, location in sorted(found)]
    return [row for row in rows if not is_inside(row.location, root)]


def _move_of(row: _Row) -> Move:
    """Find the metadata file below the warehouse, by the longest part of its path that exists there."""
    path = Path(spelling(row.location))
    for depth in range(1, len(path.parts)):
        rest = Path(*path.parts[depth:])
        if (Path(row.root) / rest).is_file():
            return Move(str(Path(*path.parts[:depth])), row.root)
    raise OutsideWarehouseError(row.name, row.location, row.root)


class _MovedFileIO(SyncedFileIO):
    """Reads files of the old directory from the new one."""

    def __init__(self, properties: dict[str, str], move: Move) -> None:
        super().__init__(properties)
        self.move = move

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(self.move(location))


def _relocate(catalog: SqlCatalog, row: _Row, move: Move) -> None:
    files = _MovedFileIO(of_files(catalog.properties), move)
    metadata = FromInputFile.table_metadata(files.new_input(row.location))
    if metadata.format_version != 2:
        raise UnsupportedFormatError(row.name, metadata.format_version)
    written = _Rewrite(files, metadata)
    document = json.loads(metadata.model_dump_json(by_alias=True))
    document["location"] = move(metadata.location)
    for snapshot, described in zip(metadata.snapshots, document.get("snapshots", ()), strict=True):
        described["manifest-list"] = written.manifest_list(snapshot)
    for key, name in (
        ("metadata-log", "metadata-file"),
        ("statistics", "statistics-path"),
        ("partition-statistics", "statistics-path"),
    ):
        for entry in document.get(key) or ():
            entry[name] = move(entry[name])
    properties = document.get("properties", {})
    properties |= {key: move(properties[key]) for key in PATH_PROPERTIES if key in properties}
    for place in (document["location"], *(properties[key] for key in PATH_PROPERTIES if key in properties)):
        if not is_inside(place, row.root):
            raise OutsideWarehouseError(row.name, place, row.root)
    document.setdefault("metadata-log", []).append(
        {"metadata-file": move(row.location), "timestamp-ms": metadata.last_updated_ms}
    )
    version = Path(row.location).name.partition("-")[0]
    target = written.path(f"{int(version) + 1 if version.isdecimal() else 0:05d}-{{}}.metadata.json")
    with files.new_output(target).create() as output:
        output.write(json.dumps(document).encode())
    if not replace_pointer(catalog, (row.namespace, row.table), row.location, target, move(row.location)):
        raise LakeUnavailableError(row.name, "relocate", "another process changed it meanwhile")


class _Rewrite:
    """Writes the manifests of a table again, each once, with the paths of the new directory."""

    def __init__(self, files: _MovedFileIO, metadata: TableMetadata) -> None:
        self._files = files
        self._move = files.move
        self._metadata = metadata
        self._directory = f"{self._move(metadata.location)}/metadata"
        self._manifests: dict[str, ManifestFile] = {}
        self._deletes: dict[str, tuple[str, int]] = {}

    def path(self, name: str) -> str:
        """Return the path of a new metadata file; `{}` in its name is replaced by a unique id."""
        return f"{self._directory}/{name.format(uuid.uuid4())}"

    def manifest_list(self, snapshot: Snapshot) -> str:
        """Write a snapshot's manifests and their list; return the path of the list."""
        path = self.path(f"snap-{snapshot.snapshot_id}-0-{{}}.avro")
        with write_manifest_list(
            format_version=2,
            output_file=self._files.new_output(path),
            snapshot_id=snapshot.snapshot_id,
            parent_snapshot_id=snapshot.parent_snapshot_id,
            sequence_number=snapshot.sequence_number,
            avro_compression=_CODEC,
        ) as writer:
            writer.add_manifests([self._manifest(old) for old in snapshot.manifests(self._files)])
        return path

    def _manifest(self, old: ManifestFile) -> ManifestFile:
        known = self._manifests.get(old.manifest_path)
        if known is not None:
            return known
        path = self.path("{}-m0.avro")
        kind = ManifestWriterV2 if old.content == ManifestContent.DATA else _DeleteManifestWriter
        spec = self._metadata.specs()[old.partition_spec_id]
        output = self._files.new_output(path)
        with kind(spec, self._metadata.schema(), output, old.added_snapshot_id or 0, _CODEC) as writer:
            for entry in old.fetch_manifest_entry(self._files, discard_deleted=False):
                writer.add_entry(self._entry(entry))
        new = ManifestFile(*old._data)  # noqa: SLF001  # a copy: PyIceberg caches the original
        new[_PATH], new[_LENGTH] = path, len(output)
        self._manifests[old.manifest_path] = new
        return new

    def _entry(self, entry: ManifestEntry) -> ManifestEntry:
        file = entry.data_file
        if file.content == DataFileContent.POSITION_DELETES:
            file[_FILE_PATH], file[_FILE_SIZE] = self._position_deletes(file)
            for bounds in (_LOWER, _UPPER):  # bounds of paths may be truncated, so they are dropped
                file[bounds] = {key: value for key, value in (file[bounds] or {}).items() if key != DELETED_PATH_ID}
        else:
            file[_FILE_PATH] = self._move(file.file_path)
        return entry

    def _position_deletes(self, file: DataFile) -> tuple[str, int]:
        old = file.file_path
        if old not in self._deletes:
            with self._files.new_input(old).open() as source:
                rows = pq.read_table(source)
            paths = pc.cast(rows[DELETED_PATH], pa.string()).to_pylist()
            column = pa.array([self._move(path) for path in paths], pa.string())
            position = rows.schema.get_field_index(DELETED_PATH)
            field = rows.schema.field(position).with_type(pa.string())
            parent, _, name = self._move(old).rpartition("/")
            new = f"{parent}/{uuid.uuid4()}-{name}"
            with self._files.new_output(new).create() as output:
                pq.write_table(rows.set_column(position, field, column), output)
            self._deletes[old] = new, len(self._files.new_input(new))
        return self._deletes[old]


class _DeleteManifestWriter(ManifestWriterV2):
    """A writer of manifests of delete files, which PyIceberg does not have."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, Any]:
        return {**super()._meta, "content": "deletes"}
