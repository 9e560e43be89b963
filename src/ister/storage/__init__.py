"""The tiers composed behind PersistentStorage, and reliable dispatch over them."""

from ister.core.errors import CorruptCursorsError, CursorsNotSavedError
from ister.core.reader import Reader
from ister.core.tiers.retention import RetentionPolicy
from ister.storage.persistent import PersistentStorage
from ister.storage.retention import ReliableOptions
from ister.storage.spec_api.memory import InMemoryReader, InMemoryStorage
from ister.storage.spec_api.reliable_dispatch import ReliableDispatch, TopicCache, TopicStore
from ister.storage.wal_storage import WalStorage

__all__ = [
    "CorruptCursorsError",
    "CursorsNotSavedError",
    "InMemoryReader",
    "InMemoryStorage",
    "PersistentStorage",
    "Reader",
    "ReliableDispatch",
    "ReliableOptions",
    "RetentionPolicy",
    "TopicCache",
    "TopicStore",
    "WalStorage",
]
