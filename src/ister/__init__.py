"""Ister: Danube's storage system in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.library import IcebergStorage

__all__ = ["IcebergStorage", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the library when it is asked for: executors and commands that do without it do not wait for it."""
    if name == "IcebergStorage":
        from ister.library import IcebergStorage  # noqa: PLC0415  # see above

        return IcebergStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
