"""Metadata stores behind one small port."""

from ister.ports.metadata.store import Change, Entry, Lease, Metadata

__all__ = ["Change", "Entry", "Lease", "Metadata"]
