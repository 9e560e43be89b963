"""fake-gcs-server keeps the contract of objects; it lets everybody in, so nobody can be refused."""

import pytest

from ister.core.errors import CorruptObjectError, StoreRefusedError
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import RetryOptions, open_store
from real.lost_disk import tell_story
from services.objects_contract import ObjectsContract, keys, run

QUICK = RetryOptions(retries=1, pause_s_min=0.01, pause_s_max=0.05)


class TestContract(ObjectsContract):
    etags = True

    @pytest.fixture
    def store(self, fake_gcs):
        return open_store(fake_gcs.settings(f"{fake_gcs.make_bucket()}/some/prefix"))

    def test_another_objects_etag_is_noticed_where_there_are_etags(self, store):
        """GCS looks at If-Match; this server has etags and does not, so only what we compare ourselves is noticed."""

        async def main():
            info = await store.put_if_absent("x", b"abc")
            other = await store.put_if_absent("y", b"abd")
            assert info.etag != other.etag
            assert await store.read("x", 0, 3, etag=info.etag) == b"abc"
            with pytest.raises(CorruptObjectError, match="not the one with etag"):
                await store.read("x", 1, 1, etag=other.etag)

        run(main())


def test_a_bucket_that_is_not_there_is_a_wrong_configuration(fake_gcs):
    async def main():
        store = open_store(fake_gcs.settings("no-such-bucket"), retry=QUICK)
        for call in (store.put_if_absent("x", b"1"), keys(store)):
            with pytest.raises(StoreRefusedError, match="no such bucket"):
                await call

    run(main())


def test_everything_is_read_again_after_restarts_and_the_loss_of_the_disk(fake_gcs, tmp_path, tell):
    told = tell_story(
        settings=fake_gcs.settings(f"{fake_gcs.make_bucket()}/data"),
        open_metadata=lambda: SqliteMetadata.open(tmp_path / "metadata.db"),
        restart=fake_gcs.restart,
        directory=tmp_path / "wal",
    )
    tell("lost disk", f"fake-gcs-server and SQLite, SIGTERM twice: {told}")
