"""Metadata store in etcd, for clusters. A version is etcd's revision; that of a key its `mod_revision`.

aetcd is used for its generated messages and stubs only: its client knows one address, no TLS and no renewal of tokens,
has no lease renewal and ends a watch with its connection.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from aetcd import rpc

from ister.core.errors import InvalidConfigError, LeaseLostError, MetadataUnavailableError, WatchCompactedError
from ister.ports.metadata.etcd_cluster import RETRY_PAUSE_S, Cluster, Login, parse_endpoints
from ister.ports.metadata.leases import RenewedLease, check_ttl
from ister.ports.metadata.store import Change, Entry, after_prefix, check_value, check_writable, key_bytes, key_range

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Self

    from ister.ports.metadata.etcd_cluster import Call
    from ister.ports.metadata.store import Lease

    Entries = list[Entry]

REFUSALS_MAX = 2
PAGE_KEYS = 64


def boot_time() -> float:
    """Return seconds on a clock that never steps, and does not stand still while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EtcdMetadata:
    """A metadata store in an etcd cluster, under a prefix of its own."""

    def __init__(self, cluster: Cluster, prefix: str, root: str, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._prefix = prefix.encode()
        self._root = root
        self._monotonic = monotonic
        self._leases: set[RenewedLease] = set()

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str] | str,
        *,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout_s: float = 5,
        prefix: str = "",
        root: str = "",
        read_only: bool = False,
        monotonic: Callable[[], float] = boot_time,
    ) -> Self:
        """Connect. TLS when the endpoints say https or files are given; `ca` None means the roots gRPC knows.

        `root` is what the keys begin with that will be used: only there the user needs to read and, unless `read_only`,
        to write, which is checked. MetadataUnavailableError when no member answers; InvalidConfigError when etcd
        refuses the user.
        """
        if prefix and not prefix.startswith("/"):
            raise InvalidConfigError("metadata prefix", "does not begin with /")
        if (cert is None) != (key is None) or (user is None) != (password is None):
            raise InvalidConfigError("metadata", "cert and key, and user and password, come in pairs")
        addresses, secure = parse_endpoints(endpoints, tls=ca is not None or cert is not None)
        tls = None
        if secure:
            pems = await asyncio.to_thread(
                lambda: [Path(path).read_bytes() if path else None for path in (ca, key, cert)]
            )
            tls = grpc.ssl_channel_credentials(*pems)
        login = None if user is None or password is None else Login(user, password)
        cluster = Cluster(addresses, tls=tls, login=login, timeout_s=timeout_s)
        store = cls(cluster, prefix, root.rstrip("/"), monotonic)
        try:
            await store._check_access(user, read_only=read_only)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def name(self) -> str:
        """The location, without secrets."""
        return self._cluster.name + self._prefix.decode()

    async def get(self, key: str) -> Entry | None:
        """Return one entry, None if the key is absent."""
        request = rpc.RangeRequest(key=self._key(key))
        response = await self._range(f"get {key}", request)
        return self._entry(response.kvs[0]) if response.kvs else None

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Set a key unconditionally; return its version. Raise LeaseLostError if the lease has ended."""
        version = await self._put(f"put {key}", key, value, lease, [])
        assert version is not None, "nothing was compared"
        return version

    async def cas(self, key: str, value: bytes, *, version: int, lease: Lease | None = None) -> int | None:
        """Set a key if its version is `version` (0: absent); return the new one, None if it was another."""
        return await self._put(f"cas {key}", key, value, lease, [self._compare(key, version)])

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a key (only at this version, if given); return True if it was deleted."""
        remove = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._key(key)))
        compare = [] if version is None else [self._compare(key, version)]
        response = await self._transact(f"delete {key}", compare, remove)
        return bool(response.succeeded and response.responses[0].response_delete_range.deleted)

    async def list(
        self, prefix: str, *, start: str = "", limit: int | None = None, reverse: bool = False
    ) -> list[Entry]:
        """Return entries with keys that begin with `prefix`, in order; of one revision, read in pages."""
        first, stop = key_range(prefix, start, reverse=reverse)
        if first >= stop or limit == 0:
            return []
        while True:
            try:
                return await self._pages(f"list {prefix}", self._prefix + first, self._prefix + stop, limit, reverse)
            except grpc.aio.AioRpcError as error:  # compacted between two pages: begin again
                if error.code() is not grpc.StatusCode.OUT_OF_RANGE:
                    raise MetadataUnavailableError(self.name, f"list {prefix}", error.details() or "") from None

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Change]:
        """Yield every change behind a version, in order, each once, for ever, also across lost connections."""
        return EtcdWatch(self._cluster, self._key(prefix), hidden=len(self._prefix), after=after)

    async def version(self) -> int:
        """Return the store's current version, to watch from."""
        request = rpc.RangeRequest(key=self._key(f"{self._root}/"), count_only=True)
        return int((await self._range("tell its version", request)).header.revision)

    async def lease(self, ttl_s: float) -> Lease:
        """Grant a lease that renews itself; etcd counts whole seconds, and may grant more than requested."""
        check_ttl(ttl_s)
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        sent = self._monotonic()
        granted = await self._cluster.read(  # a second grant is harmless
            "grant a lease", lambda call: call.send(call.member.lease.LeaseGrant, request)
        )
        lease = RenewedLease(
            self.name,
            granted.ID,
            ttl_s=granted.TTL,
            sent=sent,
            renew=self._renew,
            revoke=self._revoke,
            monotonic=self._monotonic,
        )
        self._leases = {held for held in self._leases if held.remaining_s > 0} | {lease}
        return lease

    async def close(self) -> None:
        """End every watch and lease task (without revoking), and close connections."""
        for lease in self._leases:
            await lease.stop()
        await self._cluster.close()

    async def _check_access(self, user: str | None, *, read_only: bool) -> None:
        """Raise InvalidConfigError unless the user may read, and write, every key below the root."""
        try:
            await self.list(f"{self._root}/", limit=1)
            if not read_only:
                await check_writable(self, self._root)
        except InvalidConfigError as error:
            if "permission denied" not in error.reason:
                raise  # a wrong password, for example
            right = "read" if read_only else "readwrite"
            raise InvalidConfigError(
                "metadata.etcd_user",
                f"{user or 'nobody'} needs the right to {right} all keys below {self._prefix.decode()}{self._root}/ "
                f"({error.reason}); grant it with `etcdctl role grant-permission ROLE {right} --prefix "
                f"{self._prefix.decode()}{self._root}/`",
            ) from None

    async def _put(
        self, action: str, key: str, value: bytes, lease: Lease | None, compare: Sequence[rpc.Compare]
    ) -> int | None:
        check_value(key, value)
        if lease is not None and lease.remaining_s <= 0:
            raise LeaseLostError(self.name)
        put = rpc.PutRequest(key=self._key(key), value=bytes(value), lease=0 if lease is None else lease.id)
        try:
            response = await self._transact(action, compare, rpc.RequestOp(request_put=put))
        except grpc.aio.AioRpcError:  # NOT_FOUND: the lease
            if isinstance(lease, RenewedLease):
                lease.lose()
            raise LeaseLostError(self.name) from None
        return response.header.revision if response.succeeded else None

    async def _transact(self, action: str, compare: Sequence[rpc.Compare], change: rpc.RequestOp) -> rpc.TxnResponse:
        request = rpc.TxnRequest(compare=compare, success=[change], failure=[])
        return await self._cluster.change(action, lambda call: call.send(call.member.kv.Txn, request))

    async def _range(self, action: str, request: rpc.RangeRequest) -> rpc.RangeResponse:
        return await self._cluster.read(action, lambda call: call.send(call.member.kv.Range, request))

    async def _pages(
        self, action: str, first: bytes, stop: bytes, limit: int | None, reverse: bool  # noqa: FBT001  # as given
    ) -> Entries:  # fmt: skip
        entries: Entries = []
        revision = 0
        order = rpc.RangeRequest.DESCEND if reverse else rpc.RangeRequest.NONE
        while True:
            room = PAGE_KEYS if limit is None else min(PAGE_KEYS, limit - len(entries))
            request = rpc.RangeRequest(key=first, range_end=stop, limit=room, revision=revision, sort_order=order)
            response = await self._range(action, request)
            entries += [self._entry(kv) for kv in response.kvs]
            if not response.more or len(entries) == limit:
                return entries
            revision = revision or response.header.revision
            last = response.kvs[-1].key
            first, stop = (first, last) if reverse else (last + b"\0", stop)

    async def _renew(self, lease_id: int, timeout_s: float) -> float:
        request = rpc.LeaseKeepAliveRequest(ID=lease_id)

        async def send(call: Call) -> rpc.LeaseKeepAliveResponse:
            stream = call.member.lease.LeaseKeepAlive([request], metadata=call.metadata, timeout=call.timeout_s)
            return await stream.read()

        response = await self._cluster.read("renew a lease", send, timeout_s=timeout_s)
        if response is grpc.aio.EOF:
            raise MetadataUnavailableError(self.name, "renew a lease", "the stream ended")
        if response.TTL <= 0:
            raise LeaseLostError(self.name)
        return float(response.TTL)

    async def _revoke(self, lease_id: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease_id)

        async def send(call: Call) -> None:
            try:
                await call.send(call.member.lease.LeaseRevoke, request)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:  # it does not exist
                    raise

        await self._cluster.change("revoke a lease", send)

    def _key(self, key: str) -> bytes:
        return self._prefix + key_bytes(key)

    def _compare(self, key: str, version: int) -> rpc.Compare:
        return rpc.Compare(key=self._key(key), target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=version)

    def _entry(self, kv: rpc.KeyValue) -> Entry:
        return Entry(kv.key[len(self._prefix) :].decode(), kv.value, kv.mod_revision)


class EtcdWatch:
    """Changes from one revision on, also across lost connections: it resumes behind the last change that it yielded.

    A cancelled step loses nothing: the next one connects again.

    Large answers come in fragments, which may end within a revision. So the place is a revision that was not given
    completely yet, and how many of its changes were.
    """

    def __init__(self, cluster: Cluster, prefix: bytes, *, hidden: int, after: int) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._hidden = hidden
        self._revision = after + 1
        self._given = 0
        self._skip = 0
        self._refusals = 0
        self._stream: grpc.aio.StreamStreamCall[Any, Any] | None = None
        self._read_ahead: deque[Change] = deque()

    def __aiter__(self) -> EtcdWatch:
        return self

    async def __anext__(self) -> Change:
        while not self._read_ahead:
            if self._cluster.closed:
                self._drop()
                raise StopAsyncIteration
            try:
                self._take(await self._receive())
            except asyncio.CancelledError:
                self._drop()
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # The call was cancelled and not our task: the store was closed, which the next iteration sees.
            except (grpc.aio.AioRpcError, MetadataUnavailableError):
                self._drop()
                self._cluster.avoid()
                await asyncio.sleep(RETRY_PAUSE_S)
        return self._read_ahead.popleft()

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the loop may be closed already
            self._drop()

    async def _receive(self) -> rpc.WatchResponse:
        if self._stream is None:
            call = await self._cluster.stream("watch")
            create = rpc.WatchCreateRequest(
                key=self._prefix,
                range_end=after_prefix(self._prefix),
                start_revision=self._revision,
                progress_notify=True,
                fragment=True,
            )
            self._skip = self._given
            self._stream = call.member.watch.Watch(metadata=call.metadata)
            await self._stream.write(rpc.WatchRequest(create_request=create))
        response = await self._stream.read()
        if response is grpc.aio.EOF:
            raise MetadataUnavailableError(self._cluster.name, "watch", "the stream ended")
        return response

    def _take(self, response: rpc.WatchResponse) -> None:
        if response.canceled:
            self._refused(response)
        elif response.events:
            self._refusals = 0
            for event in response.events:
                self._take_event(event)
            if not response.fragment:
                self._go_on(self._revision + 1)
        elif not response.created:  # everything up to here was sent: compaction may pass our last change
            self._go_on(response.header.revision + 1)

    def _take_event(self, event: rpc.Event) -> None:
        revision = event.kv.mod_revision
        if revision > self._revision:
            self._go_on(revision)
        if self._skip:
            self._skip -= 1
            return
        self._given += 1
        value = None if event.type == rpc.Event.DELETE else event.kv.value
        self._read_ahead.append(Change(event.kv.key[self._hidden :].decode(), value, revision))

    def _go_on(self, revision: int) -> None:
        self._revision = max(self._revision, revision)
        self._given = self._skip = 0

    def _refused(self, response: rpc.WatchResponse) -> None:
        self._drop()
        if response.compact_revision:
            raise WatchCompactedError(self._cluster.name, self._revision - 1)
        self._refusals += 1
        if self._refusals >= REFUSALS_MAX and "permission denied" in response.cancel_reason:
            raise InvalidConfigError(
                "metadata", f"{self._cluster.name} does not let us watch: {response.cancel_reason}"
            )
        self._cluster.forget_token()  # an expired token gives the same error as a missing permission
        raise MetadataUnavailableError(self._cluster.name, "watch", response.cancel_reason)

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
