"""The simulated twins of the object store and the metadata store: remote, durable, and reached over a bad network.

A call may fail before it did anything, or do it and lose the answer, or give a wrong answer. A put whose answer was lost may have been sent
twice, and its second copy may land much later, even after a restart. What the stores hold survives every crash of ours.
"""

from __future__ import annotations

import asyncio
import random
from zlib import crc32

from ister.core.errors import (
    CorruptObjectError,
    MetadataUnavailableError,
    MetadataUnknownError,
    MissingObjectError,
    ObjectExistsError,
    PutUnknownError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import ObjectInfo
from ister.ports.objects.store import check_key, check_prefix


class Network:
    """Decides what becomes of each remote call; `on_step` is called before one has its effect."""

    def __init__(self, rng: random.Random, trouble: float = 0.0) -> None:
        self.rng = rng
        self.trouble = trouble
        self.on_step = lambda op, key: None

    async def send(self, op: str, key: str, before: Exception) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.001, 0.02)))
        self.on_step(op, key)
        if self.rng.random() < self.trouble:
            raise before

    def lies(self) -> bool:
        """Return True if a wrong answer is given, as a proxy may do."""
        return bool(self.trouble) and self.rng.random() < self.trouble / 2

    def spoil(self, data: bytes) -> bytes:
        """Return the bytes as they arrive: sometimes with one bit changed."""
        if not data or not self.lies():
            return data
        at = self.rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1 :]

    async def answer(self, lost: Exception) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.001)))
        if self.rng.random() < self.trouble:
            raise lost


class SimStore:
    """An object store in memory.

    As `local` it is a directory on a disk of its own: an object whose put did not succeed may be lost in a power cut, until
    it was made durable.
    """

    name = "the simulated store"

    def __init__(self, network: Network | None = None, *, local: bool = False) -> None:
        self.network = network or Network(random.Random(0))
        self.local = local
        self.unsynced: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.puts: list[str] = []

    def copy(self, network: Network) -> SimStore:
        """Return a twin that goes its own way from here."""
        twin = SimStore(network, local=self.local)
        twin.objects = dict(self.objects)
        twin.late = list(self.late)
        twin.unsynced = set(self.unsynced)
        return twin

    def lose_power(self, rng: random.Random) -> None:
        """Lose some of the objects that are not durable."""
        for key in sorted(self.unsynced):
            if rng.random() < 0.5:
                del self.objects[key]
        self.unsynced.clear()

    def land(self, rng: random.Random) -> None:
        """Let some of the puts arrive that were sent and forgotten; the others are lost for good."""
        for key, data in self.late:
            if rng.random() < 0.5 and key not in self.objects:
                self.objects[key] = data
                self._not_synced(key)
        self.late = []

    async def put_if_absent(self, key, data):
        check_key(self.name, key)
        data = bytes(data)
        # From the moment it is sent it may land, whatever becomes of us.
        self.late.append((key, data))
        await self.network.send("put", key, PutUnknownError(self.name, key, "no answer"))
        if key in self.objects:
            raise ObjectExistsError(self.name, key)
        self.objects[key] = data
        self._not_synced(key)
        self.puts.append(key)
        await self.network.answer(
            self.network.rng.choice((PutUnknownError(self.name, key, "no answer"), ObjectExistsError(self.name, key)))
        )
        if (key, data) in self.late:  # it may have landed while the answer was under way
            self.late.remove((key, data))
        self.unsynced.discard(key)
        return self._info(key)

    async def make_durable(self, key, data):
        check_key(self.name, key)
        if self.local:
            await self.network.send("make_durable", key, StoreUnavailableError(self.name, key, "no answer"))
            self.objects[key] = bytes(data)
            self.unsynced.discard(key)

    async def read(self, key, start, stop, *, etag=""):
        check_key(self.name, key)
        if not 0 <= start <= stop:
            raise StoreRefusedError(self.name, f"read {key}", f"[{start}, {stop}) is no range")
        await self.network.send("read", key, StoreUnavailableError(self.name, "read", "no answer"))
        if key not in self.objects:
            raise MissingObjectError(key, self.name)
        data = self.objects[key]
        if etag and etag != self._info(key).etag:
            raise CorruptObjectError(key, -1, -1, f"it is not the one with etag {etag}")
        if stop > len(data):
            raise CorruptObjectError(key, len(data), -1, f"it has {len(data)} bytes only")
        return self.network.spoil(data[start:stop])

    async def stat(self, key):
        check_key(self.name, key)
        await self.network.send("stat", key, StoreUnavailableError(self.name, "stat", "no answer"))
        return self._info(key) if key in self.objects and not self.network.lies() else None

    async def list(self, prefix, *, after=""):
        check_prefix(self.name, prefix)
        await self.network.send("list", prefix, StoreUnavailableError(self.name, "list", "no answer"))
        for key in sorted(self.objects, key=str.encode):
            if key.startswith(prefix) and key.encode() > after.encode() and key in self.objects:
                yield self._info(key)

    async def delete(self, key):
        check_key(self.name, key)
        await self.network.send("delete", key, StoreUnavailableError(self.name, "delete", "no answer"))
        self.objects.pop(key, None)
        self.unsynced.discard(key)
        await self.network.answer(StoreUnavailableError(self.name, "delete", "no answer"))

    async def close(self):
        pass

    def _not_synced(self, key: str) -> None:
        if self.local:
            self.unsynced.add(key)

    def _info(self, key: str) -> ObjectInfo:
        data = self.objects[key]
        return ObjectInfo(key, len(data), f"{crc32(data):08x}")


class SimMetadata(MemoryMetadata):
    """A metadata store behind the same network."""

    def __init__(self, network: Network | None = None) -> None:
        super().__init__()
        self.network = network or Network(random.Random(0))

    def copy(self, network: Network) -> SimMetadata:
        """Return a twin that goes its own way from here."""
        twin = SimMetadata(network)
        twin._keys, twin._held, twin._version = list(self._keys), dict(self._held), self._version
        return twin

    async def get(self, key):
        await self._ask("get", key)
        return await super().get(key)

    async def list(self, prefix, *, start="", limit=None, reverse=False):
        await self._ask("list", prefix)
        return await super().list(prefix, start=start, limit=limit, reverse=reverse)

    async def put(self, key, value, *, lease=None):
        await self._ask("put", key)
        version = await super().put(key, value, lease=lease)
        await self.network.answer(MetadataUnknownError(self.name, f"put {key}", "no answer"))
        return version

    async def cas(self, key, value, *, version, lease=None):
        await self._ask("cas", key)
        done = await super().cas(key, value, version=version, lease=lease)
        await self.network.answer(MetadataUnknownError(self.name, f"cas {key}", "no answer"))
        return done

    async def delete(self, key, *, version=None):
        await self._ask("delete", key)
        done = await super().delete(key, version=version)
        await self.network.answer(MetadataUnknownError(self.name, f"delete {key}", "no answer"))
        return done

    async def _ask(self, op: str, key: str) -> None:
        await self.network.send(op, key, MetadataUnavailableError(self.name, f"{op} {key}", "no answer"))
