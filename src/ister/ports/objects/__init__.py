"""Object stores behind one small port."""

from ister.ports.objects.store import CloudStore, ObjectInfo

__all__ = ["CloudStore", "ObjectInfo"]
