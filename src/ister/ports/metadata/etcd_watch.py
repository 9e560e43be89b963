"""A watch on etcd that outlives its connections: it resumes behind the last change that it yielded."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
from aetcd import rpc

from ister.core.errors import InvalidConfigError, MetadataUnavailableError, WatchCompactedError
from ister.ports.metadata.etcd_cluster import RETRY_PAUSE_S
from ister.ports.metadata.store import Change, after_prefix

if TYPE_CHECKING:
    from ister.ports.metadata.etcd_cluster import Cluster

REFUSALS_MAX = 2


class EtcdWatch:
    """Changes from one revision on. A cancelled step loses nothing: the next one connects again.

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
