"""MinIO keeps the contract of objects, checks secrets, and gives no wrong byte through bad weather (F21)."""

import asyncio
from contextlib import suppress

import pytest

from ister.core.errors import ObjectExistsError, PutUnknownError, StoreRefusedError
from ister.ports.objects import RetryOptions, open_store
from services.minio import ClosingProxy
from services.objects_contract import ObjectsContract, keys, run
from unit import test_objects_faults as faults

QUICK = RetryOptions(retries=1, pause_s_min=0.01, pause_s_max=0.05)
CANARY = "canary-secret-51c7"


class TestContract(ObjectsContract):
    etags = True

    @pytest.fixture
    def store(self, minio):
        return open_store(minio.settings(f"{minio.make_bucket()}/some/prefix"))


class TestContractWithVersions(ObjectsContract):
    """A bucket that keeps old versions: a deleted name is free although what was there is kept."""

    etags = True

    @pytest.fixture
    def store(self, minio):
        return open_store(minio.settings(minio.make_bucket(versions=True)))


@pytest.mark.parametrize("wrong", [{"secret_key": CANARY}, {"access_key": "nobody"}, {"access_key": "", "secret_key": "", "anonymous": "true"}])  # fmt: skip
def test_s9_who_has_the_wrong_secret_is_refused_and_no_secret_is_told(minio, wrong):
    async def main():
        root = minio.make_bucket()
        await open_store(minio.settings(root)).put_if_absent("x", b"1")
        store = open_store(minio.settings(root, **wrong), retry=QUICK)
        calls = (
            store.put_if_absent("y", b"1"), store.read("x", 0, 1), store.read("x", 0, 0), store.stat("x"),
            keys(store), store.delete("x"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(StoreRefusedError) as refused:
                await call
            for secret in (CANARY, "testsecret"):
                assert secret not in str(refused.value) + repr(refused.value)
        assert await keys(open_store(minio.settings(root))) == ["x"]

    run(main())


def test_a_bucket_that_is_not_there_is_a_wrong_configuration(minio):
    async def main():
        store = open_store(minio.settings("no-such-bucket"), retry=QUICK)
        for call in (store.put_if_absent("x", b"1"), store.read("x", 0, 1), keys(store)):
            with pytest.raises(StoreRefusedError, match="bucket"):
                await call

    run(main())


def test_objects_outlive_a_restart_and_a_store_goes_on_through_it(minio):
    async def main():
        store = open_store(minio.settings(minio.make_bucket()))
        await store.put_if_absent("before", b"1")
        restart = asyncio.create_task(asyncio.to_thread(minio.restart))
        there, n = {"before": b"1"}, 0
        while not restart.done():
            key, data = f"during/{n:04}", b"%d" % n
            with suppress(PutUnknownError):
                with suppress(ObjectExistsError):  # an attempt whose answer the restart took with it
                    await store.put_if_absent(key, data)
                there[key] = data
            n += 1
        await restart
        await store.put_if_absent("last", b"2")
        assert there.keys() | {"last"} <= set(await keys(store))
        for key, data in there.items():
            assert await store.read(key, 0, len(data)) == data

    run(main())


class TestBadWeather:
    """F21 and F20 as they are asked of moto, asked of MinIO."""

    @pytest.fixture(autouse=True)
    def _minio_instead_of_moto(self, minio, monkeypatch):
        monkeypatch.setattr(faults, "shared_moto", lambda: minio)
        monkeypatch.setattr(faults, "FaultProxy", ClosingProxy)

    def test_f21_bad_weather_before_minio_gives_no_wrong_byte(self, count, tell):
        faults.test_f21_bad_weather_before_an_s3_server_gives_no_wrong_byte(
            count=lambda short, long: count(4 * short, long), tell=lambda fault, text: tell(fault, f"MinIO: {text}")
        )

    @pytest.mark.parametrize("kind", faults.KINDS)
    def test_each_fault_alone_ends_in_the_error_that_says_what_is_known(self, kind):
        faults.test_each_fault_alone_ends_in_the_error_that_says_what_is_known(kind)

    def test_f20_an_answer_that_is_lost_once_is_told_as_exists_and_the_object_is_ours(self):
        faults.test_f20_an_answer_that_is_lost_once_is_told_as_exists_and_the_object_is_ours()

    def test_a_server_that_never_answers_is_given_up_in_bounded_time(self):
        faults.test_a_server_that_never_answers_is_given_up_in_bounded_time()
