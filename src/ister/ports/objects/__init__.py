"""Object stores behind one small port."""

from ister.ports.objects.factory import Root, StoreSettings, open_store, parse_root
from ister.ports.objects.fs import FsStore
from ister.ports.objects.opendal_store import OpendalStore, RetryOptions
from ister.ports.objects.store import CloudStore, ObjectInfo

__all__ = [
    "CloudStore",
    "FsStore",
    "ObjectInfo",
    "OpendalStore",
    "RetryOptions",
    "Root",
    "StoreSettings",
    "open_store",
    "parse_root",
]
