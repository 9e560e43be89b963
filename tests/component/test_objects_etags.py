"""A server that compares an etag wrongly is no reason to call an object damaged."""

import asyncio

import pytest

from ister.core.errors import CorruptObjectError
from ister.ports.objects import open_store
from services.fault_proxy import FaultProxy
from services.moto import shared_moto


class Contrary(FaultProxy):
    """Before a server: refuses every etag, as if the object were another."""

    refused = 0

    async def _forward(self, request):
        if b"\r\nif-match: " in request.lower():
            self.refused += 1
            return b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        return await super()._forward(request)


def test_a_server_that_refuses_its_own_etags_is_asked_without_them():
    async def main():
        moto = shared_moto()
        async with Contrary(moto.port, rate=0.0) as proxy:
            store = open_store(moto.settings(moto.make_bucket(), endpoint=f"http://127.0.0.1:{proxy.port}"))
            info = await store.put_if_absent("x", b"abc")
            other = await store.put_if_absent("y", b"abd")
            with pytest.raises(CorruptObjectError, match=f"not the one with etag {other.etag}"):
                await store.read("x", 0, 3, etag=other.etag)
            assert await store.read("x", 0, 3, etag=info.etag) == b"abc"
            assert proxy.refused == 2
            assert await store.read("x", 1, 2, etag=info.etag) == b"b"
            assert proxy.refused == 2, "it is not asked to compare again"

    asyncio.run(main())
