"""Ister: Danube's storage system in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister._version import __version__

if TYPE_CHECKING:
    from ister.runtime.iceberg_storage import IcebergStorage

__all__ = ["IcebergStorage", "__version__"]


def __getattr__(name: str) -> object:
    """Import IcebergStorage on first use: executors and commands that do not use it start faster."""
    if name == "IcebergStorage":
        from ister.runtime.iceberg_storage import IcebergStorage  # noqa: PLC0415  # on first use

        return IcebergStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
