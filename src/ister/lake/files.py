"""PyIceberg FileIOs: on a local disk every file and its directories are fsynced before anything refers to it.

Iceberg's libraries never fsync: after a power loss the catalog would point at empty or missing metadata. They also support
neither GCS without credentials nor Azure locations with an account.

With a local warehouse, nothing is written or deleted outside of it: Iceberg stores absolute paths, so the tables of a copied
data directory refer to the original's files.
"""

from __future__ import annotations

import binascii
import io
import os
from base64 import b64decode
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from pyarrow.fs import FileSelector, GcsFileSystem
from pyiceberg.catalog import WAREHOUSE_LOCATION
from pyiceberg.io import ADLS_ACCOUNT_KEY, GCS_SERVICE_HOST, GCS_TOKEN, PY_IO_IMPL, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from ister.core.errors import InvalidConfigError
from ister.core.table.maintenance import spelling
from ister.lake.errors import OutsideWarehouseError, error_text
from ister.ports.files.files import OsFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyarrow.fs import FileSystem
    from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
    from pyiceberg.table import Table

ROOT = "ister.warehouse-root"
"""FileIO property: the local directory outside of which nothing is written or deleted."""
SYNCED = "ister.lake.files.SyncedFileIO"
GCS_ANONYMOUS = "gcs.anonymous"
GCS_CREDENTIALS_PATH = "gcs.credentials-path"
GCS_CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
GCS_RETRY_LIMIT = timedelta(seconds=30)
"""Retry limit of a call to GCS; the library's default of 15 minutes would block a micro-batch."""

PATH_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Table properties that set directories of its files."""

_OF_FILES = ("s3.", "gcs.", "adls.", "client.", "hdfs.", ROOT, PY_IO_IMPL)
_FILES = OsFiles()  # caches which directories are fsynced


def is_local(location: str) -> bool:
    """Return True if a location is on a local disk."""
    return urlparse(location).scheme in {"", "file"}


def open_io(properties: Mapping[str, str], location: str) -> FileIO:
    """Return the FileIO of a location, the fsyncing one if it is local."""
    chosen = dict(properties)
    if is_local(location) or ROOT in chosen:
        chosen.setdefault(PY_IO_IMPL, SYNCED)
    return load_file_io(chosen, location)


def of_files(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the FileIO properties, without those of the catalog."""
    return {key: str(value) for key, value in properties.items() if key.startswith(_OF_FILES)}


def root_of(properties: Mapping[str, str]) -> str | None:
    """Return the local directory of all tables of a catalog; None with an object store or a REST catalog."""
    if ROOT in properties:
        return properties[ROOT]
    warehouse = properties.get(WAREHOUSE_LOCATION)
    if warehouse is None or not is_local(warehouse) or properties.get("type") == "rest":
        return None
    return spelling(warehouse)


def is_inside(location: str, root: str) -> bool:
    """Return True if a location is inside a local directory; symbolic links in both paths are resolved."""
    return is_local(location) and Path(spelling(location)).resolve().is_relative_to(Path(root).resolve())


def require_inside(table: Table) -> None:
    """Raise OutsideWarehouseError if a table's location or metadata is outside of its catalog's local warehouse."""
    root = root_of(table.catalog.properties)
    if root is None:
        return
    metadata, properties = table.metadata, table.properties
    files = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    files += [snapshot.manifest_list for snapshot in metadata.snapshots]
    places = [metadata.location, *(properties[key] for key in PATH_PROPERTIES if key in properties)]
    for place in dict.fromkeys([*places, *(file.rpartition("/")[0] for file in files)]):
        if not is_inside(place, root):
            raise OutsideWarehouseError(".".join(table.name()), place, root)


def is_empty(files: FileIO, directory: str) -> bool:
    """Return True if the directory is empty or this FileIO cannot list."""
    if not isinstance(files, PyArrowFileIO):
        return True
    scheme, host, path = files.parse_location(directory, files.properties)
    return not files.fs_by_scheme(scheme, host).get_file_info(FileSelector(path, allow_not_found=True))


def sync_local(locations: Iterable[str], table_location: str) -> None:
    """Fsync local files of a table, and their directories up to the table's location; a no-op for object stores."""
    top, directories = Path(spelling(table_location)), set[Path]()
    for path in [Path(spelling(location)) for location in locations if is_local(location)]:
        sync_path(path)
        directories.update(parent for parent in path.parents if parent.is_relative_to(top))
    for directory in sorted(directories, reverse=True):
        sync_path(directory)


def sync_path(path: Path) -> None:
    """Fsync a file or a directory, written by any process."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def unreachable(files: FileIO, location: str) -> str:
    """Return why a file cannot be read, empty if it can: then its content is damaged."""
    try:
        with files.new_input(location).open() as source:
            while source.read(1 << 20):
                pass
    except OSError as error:
        return error_text(error)
    return ""


class SyncedFileIO(PyArrowFileIO):
    """A FileIO that fsyncs local files on close, and changes none outside of ROOT."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return an output file."""
        self._require_inside(location)
        plain = super().new_output(location)
        if not is_local(location):
            return plain
        return _SyncedFile(location, path=plain._path, fs=plain._filesystem)  # noqa: SLF001  # the library has no accessor

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._require_inside(location if isinstance(location, str) else location.location)
        super().delete(location)

    def _require_inside(self, location: str) -> None:
        root = self.properties.get(ROOT)
        if root is not None and not is_inside(location, root):
            raise OutsideWarehouseError("of this file", location, root)


class StoreFileIO(SyncedFileIO):
    """A FileIO for GCS and Azure; `ister.config.catalog` configures it."""

    @staticmethod
    def parse_location(location: str, properties: Mapping[str, str] | None = None) -> tuple[str, str, str]:
        """Return scheme, host and path; Azure's path begins with the container, without the account after its @."""
        scheme, host, path = SyncedFileIO.parse_location(location, dict(properties or {}))
        if scheme in {"abfs", "abfss"}:
            path = f"{host.partition('@')[0]}{path.removeprefix(host)}"
        return scheme, host, path

    def _initialize_azure_fs(self) -> FileSystem:
        try:
            b64decode(self.properties.get(ADLS_ACCOUNT_KEY, ""), validate=True)
        except binascii.Error:  # the library would abort the process
            raise InvalidConfigError("wal_cloud.cloud.account_key", "is not base64, as keys of Azure are") from None
        return super()._initialize_azure_fs()

    def _initialize_gcs_fs(self) -> FileSystem:
        if GCS_TOKEN in self.properties:
            return super()._initialize_gcs_fs()
        credentials = self.properties.get(GCS_CREDENTIALS_PATH)
        if credentials is not None and Path(credentials).is_file():  # an executor may have its own credentials
            os.environ.setdefault(GCS_CREDENTIALS_VARIABLE, credentials)  # the library has no parameter for it
        endpoint = urlparse(self.properties.get(GCS_SERVICE_HOST, ""))
        return GcsFileSystem(
            anonymous=self.properties.get(GCS_ANONYMOUS) == "true",
            scheme=endpoint.scheme or None,
            endpoint_override=endpoint.netloc or None,
            retry_time_limit=GCS_RETRY_LIMIT,
        )


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002  # the library's signature
        path = Path(self._path)
        _FILES.make_directory(path.parent)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream(io.BufferedWriter):
    """A file that is fsynced on close, with its directory."""

    def __init__(self, path: Path, mode: str) -> None:
        self._directory = path.parent
        super().__init__(io.FileIO(path, mode), 1 << 20)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        _FILES.sync_directory(self._directory)
