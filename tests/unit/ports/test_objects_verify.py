"""What OpendalStore believes of a service that answers wrongly."""

import asyncio
import hashlib
from base64 import b64encode
from types import SimpleNamespace

import pytest
from opendal import exceptions

from ister.core.errors import (
    CorruptObjectError,
    IsterError,
    PutUnknownError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ister.ports.objects import OpendalStore, RetryOptions
from ister.ports.objects.opendal_store import FAILURES
from services.objects_contract import keys


class Liar:
    """An operator whose answers a test chooses."""

    def __init__(self, *, size=3, etag=None, md5=None, back=b"abc", listing=(), error=None):
        self.metadata = SimpleNamespace(content_length=size, etag=etag, content_md5=md5, is_dir=False)
        self.back, self.listing, self.error, self.reads = back, listing, error, 0

    def capability(self):
        return SimpleNamespace(read_with_if_match=False, list_with_start_after=False)

    def layer(self, layer):
        return self

    async def write(self, key, data, *, if_not_exists):
        assert if_not_exists
        if self.error:
            raise self.error

    async def stat(self, key):
        if isinstance(self.metadata, Exception):
            raise self.metadata
        return self.metadata

    async def read(self, key, *, offset, size, if_match):
        self.reads += 1
        if self.error:
            raise self.error
        if isinstance(self.back, Exception):
            raise self.back
        return self.back

    async def delete(self, key):
        if self.error:
            raise self.error

    async def list(self, prefix, *, recursive, start_after):
        if self.error:
            raise self.error

        async def entries():
            for key in self.listing:
                yield SimpleNamespace(path=key, metadata=self.metadata)

        return entries()


def store_of(liar, service="s3", **more):
    return OpendalStore(liar, service=service, name="the store", **more)


def put(liar):
    return asyncio.run(store_of(liar).put_if_absent("k", b"abc"))


async def ending(call):
    try:
        return await call
    except IsterError as error:
        return error


def test_an_md5_that_the_store_made_is_proof_and_anything_else_is_read_back():
    digest = hashlib.md5(b"abc")
    for proof, reads in (
        ({"etag": f'"{digest.hexdigest()}"'}, 0),
        ({"md5": b64encode(digest.digest()).decode()}, 0),
        ({"etag": '"0x8DAF"'}, 1),
        ({"etag": f'"{digest.hexdigest()}-1"'}, 1),
        ({}, 1),
    ):
        liar = Liar(**proof)
        assert put(liar).etag == (proof.get("etag") or "")
        assert liar.reads == reads


def test_other_bytes_or_another_length_behind_a_put_are_an_unknown_outcome():
    """L1: perhaps a proxy answered, so the caller looks again before it calls it damage."""
    for liar in (Liar(back=b"abd"), Liar(size=2), Liar(size=4)):
        with pytest.raises(PutUnknownError):
            put(liar)


def test_a_put_that_cannot_be_verified_is_unknown():
    for fault in (exceptions.NotFound("x"), exceptions.Unexpected("x"), exceptions.PermissionDenied("x")):
        liar = Liar()
        liar.metadata = fault
        with pytest.raises(PutUnknownError):
            put(liar)
        with pytest.raises(PutUnknownError):
            put(Liar(back=fault))


def test_a_short_answer_is_weather_and_a_short_object_is_damage():
    with pytest.raises(StoreUnavailableError, match="cut short"):
        asyncio.run(store_of(Liar(back=b"ab")).read("k", 0, 3))
    with pytest.raises(CorruptObjectError):
        asyncio.run(store_of(Liar(back=b"ab", size=2)).read("k", 0, 3))


@pytest.mark.parametrize("kind", FAILURES)
def test_every_exception_of_opendal_has_a_family(kind):
    for call in (
        lambda s: s.put_if_absent("k", b"abc"),
        lambda s: s.read("k", 0, 3),
        lambda s: s.stat("k"),
        lambda s: s.delete("k"),
        keys,
    ):
        liar = Liar(error=kind("at x => y"))
        liar.metadata = liar.error
        end = asyncio.run(ending(call(store_of(liar))))
        assert end is not None or kind is exceptions.NotFound, "an error was swallowed"
        assert not isinstance(getattr(end, "__context__", None), FAILURES), "the service's own text hangs on"
    if kind in {exceptions.PermissionDenied, exceptions.ConfigInvalid, exceptions.NotFound}:
        with pytest.raises(StoreRefusedError):
            put(liar)


def test_a_missing_bucket_is_not_taken_for_an_empty_one():
    for text in ("x => S3Error { code: ...NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist."):
        with pytest.raises(StoreRefusedError, match="no such bucket"):
            asyncio.run(store_of(Liar(error=exceptions.NotFound(text))).read("k", 0, 3))
    missing = exceptions.NotFound("x")
    with pytest.raises(StoreRefusedError, match="no such bucket"):
        asyncio.run(keys(store_of(Liar(error=missing), "gcs")))
    assert asyncio.run(keys(store_of(Liar(error=missing), "webhdfs"))) == []


def test_a_directory_is_no_object():
    liar = Liar()
    liar.metadata.is_dir = True
    assert asyncio.run(store_of(liar).stat("k")) is None


def test_a_listing_out_of_order_is_sorted_or_refused():
    listing = ["b", "a/", "a/x", "c"]
    assert asyncio.run(keys(store_of(Liar(listing=listing), "other"))) == ["a/x", "b", "c"]
    with pytest.raises(StoreRefusedError, match="out of order"):
        asyncio.run(keys(store_of(Liar(listing=listing), "s3")))


def test_an_answer_that_drips_for_ever_is_given_up():
    class Dripping(Liar):
        async def read(self, *_, **__):
            await asyncio.sleep(60)

        write = read

    store = store_of(Dripping(), retry=RetryOptions(attempt_s=0.02, retries=0, pause_s_max=0.01))
    with pytest.raises(StoreUnavailableError, match="in time"):
        asyncio.run(store.read("k", 0, 1))
    with pytest.raises(PutUnknownError, match="in time"):
        asyncio.run(store.put_if_absent("k", b"1"))
