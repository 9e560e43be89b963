"""The write-ahead log: append, group commit, cache, rotation, readers."""

from ister.wal.config import AckLevel, SyncMode, WalConfig
from ister.wal.reader import WalReader
from ister.wal.wal import Wal

__all__ = ["AckLevel", "SyncMode", "Wal", "WalConfig", "WalReader"]
