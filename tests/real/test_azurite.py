"""Azurite keeps the contract of objects, and checks the key of its account."""

import asyncio
import base64

import pytest

from ister.core.errors import StoreRefusedError
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import RetryOptions, open_store
from real.lost_disk import tell_story
from services.azurite import KEY
from services.objects_contract import ObjectsContract, keys, run

PAGE = 5000  # of a listing, on Azure
QUICK = RetryOptions(retries=1, pause_s_min=0.01, pause_s_max=0.05)
OTHER = base64.b64encode(b"another key, of thirty-two bytes").decode()


class TestContract(ObjectsContract):
    etags = True
    many = 200  # pages are tested below

    @pytest.fixture
    def store(self, azurite):
        return open_store(azurite.settings(f"{azurite.make_container()}/some/prefix"))


def test_a_listing_of_two_pages_has_every_key_once(azurite, tell):
    async def main():
        store = open_store(azurite.settings(f"{azurite.make_container()}/p"))
        names = [f"t/{n:05}" for n in range(PAGE + 10)]
        unput = iter(names)

        async def put():
            for name in unput:
                await store._operator.write(name, b"")  # our put would look at each of them

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(put())
        assert await keys(store, "t/") == names
        assert await keys(store, "t/", after=names[PAGE - 2]) == names[PAGE - 1 :]

    asyncio.run(main())
    tell("listing", f"Azurite: {PAGE + 10} keys in two pages")


@pytest.mark.parametrize("wrong", [{"account_key": OTHER}, {"account_key": "", "anonymous": "true"}])
def test_s9_who_has_the_wrong_key_is_refused_and_no_key_is_told(azurite, wrong):
    async def main():
        root = azurite.make_container()
        await open_store(azurite.settings(root)).put_if_absent("x", b"1")
        store = open_store(azurite.settings(root, **wrong), retry=QUICK)
        calls = (
            store.put_if_absent("y", b"1"), store.read("x", 0, 1), store.read("x", 0, 0), store.stat("x"),
            keys(store), store.delete("x"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(StoreRefusedError) as refused:
                await call
            for secret in (OTHER, KEY):
                assert secret not in str(refused.value) + repr(refused.value)
        assert await keys(open_store(azurite.settings(root))) == ["x"]

    run(main())


def test_a_container_that_is_not_there_is_a_wrong_configuration(azurite):
    async def main():
        store = open_store(azurite.settings("no-such-container"), retry=QUICK)
        for call in (store.put_if_absent("x", b"1"), store.read("x", 0, 1), keys(store)):
            with pytest.raises(StoreRefusedError, match="no such bucket or container"):
                await call

    run(main())


def test_everything_is_read_again_after_restarts_and_the_loss_of_the_disk(azurite, tmp_path, tell):
    told = tell_story(
        settings=azurite.settings(f"{azurite.make_container()}/data"),
        open_metadata=lambda: SqliteMetadata.open(tmp_path / "metadata.db"),
        restart=azurite.restart,
        directory=tmp_path / "wal",
    )
    tell("lost disk", f"Azurite and SQLite, SIGTERM twice: {told}")
