"""MinIO and etcd 3.6 together keep a topic whose broker has lost its disk."""

import signal

import pytest

from ister.ports.metadata.etcd import EtcdMetadata
from real.lost_disk import tell_story


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_everything_is_read_again_after_restarts_and_the_loss_of_the_disk(minio, etcd36, tmp_path, how, tell):
    def restart():
        minio.restart(how)
        etcd36.restart(how)

    async def open_metadata():
        return await EtcdMetadata.open(etcd36.endpoint, prefix=f"/{how.name}")

    told = tell_story(
        settings=minio.settings(f"{minio.make_bucket()}/data"),
        open_metadata=open_metadata,
        restart=restart,
        directory=tmp_path / "wal",
    )
    tell("lost disk", f"MinIO and etcd 3.6, {how.name} twice: {told}")
