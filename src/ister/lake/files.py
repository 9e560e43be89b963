"""Files of a warehouse; on a local disk each is synced, with its directories, before anyone can refer to it.

Iceberg's libraries sync nothing: after a power loss the catalog would point at metadata that is empty or gone.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlparse

from pyiceberg.io import PY_IO_IMPL, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from ister.ports.files import OsFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.io import FileIO, OutputStream

SYNCED = "ister.lake.files.SyncedFileIO"

_OF_FILES = ("s3.", "gcs.", "adls.", "client.", "hdfs.", PY_IO_IMPL)
_FILES = OsFiles()  # remembers which directories are on disk


class _Directories(Protocol):
    def make_directory(self, directory: Path) -> None: ...

    def sync_directory(self, directory: Path) -> None: ...


def is_local(location: str) -> bool:
    """Tell whether a location is on this machine's disk."""
    return urlparse(location).scheme in {"", "file"}


def open_io(properties: Mapping[str, str], location: str) -> FileIO:
    """Return the files of a location, those that sync if it is local."""
    chosen = dict(properties)
    if is_local(location):
        chosen.setdefault(PY_IO_IMPL, SYNCED)
    return load_file_io(chosen, location)


def of_files(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that files need, and none that opens a catalog."""
    return {key: str(value) for key, value in properties.items() if key.startswith(_OF_FILES)}


class SyncedFileIO(PyArrowFileIO):
    """PyIceberg's files, where a local one is on disk once its stream is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        plain = super().new_output(location)
        if not is_local(location):
            return plain
        return _SyncedFile(location, path=plain._path, fs=plain._filesystem)  # noqa: SLF001  # the library has no other way to ask


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002  # the library's signature
        path = Path(self._path)
        _FILES.make_directory(path.parent)
        return _SyncedStream(path, "wb" if overwrite else "xb", _FILES)


class _SyncedStream(io.BufferedWriter):
    """Bytes that are on disk, with their name, once it is closed."""

    def __init__(self, path: Path, mode: str, directories: _Directories) -> None:
        self._directory = path.parent
        self._directories = directories
        super().__init__(io.FileIO(path, mode), 1 << 20)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        self._directories.sync_directory(self._directory)
