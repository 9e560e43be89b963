"""Metadata stores behind one small port.

`ister.ports.metadata.etcd` is not imported here: gRPC costs half a second, and only clusters need it.
"""

from ister.ports.metadata.memory import MemoryMetadata
from ister.ports.metadata.sqlite import SqliteMetadata
from ister.ports.metadata.store import Change, Entry, Lease, Metadata

__all__ = ["Change", "Entry", "Lease", "MemoryMetadata", "Metadata", "SqliteMetadata"]
