"""Metadata in memory, in SQLite and in etcd keeps one contract."""

from itertools import count as numbers

import pytest

from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.ports.metadata.etcd import EtcdMetadata
from services.etcd import Etcd
from services.metadata_contract import MetadataContract

pytestmark = pytest.mark.slow

PREFIXES = numbers()


@pytest.fixture(scope="module")
def etcd():
    with Etcd() as etcd:
        yield etcd


class TestMemory(MetadataContract):
    @pytest.fixture
    def new(self):
        async def make():
            return MemoryMetadata()

        return make


class TestSqlite(MetadataContract):
    @pytest.fixture
    def new(self, tmp_path):
        async def make():
            return await SqliteMetadata.open(tmp_path / "metadata.db")

        return make


class TestEtcd(MetadataContract):
    ttl_s = 1

    @pytest.fixture
    def new(self, etcd):
        async def make():
            return await EtcdMetadata.open(etcd.endpoint, prefix=f"/contract-{next(PREFIXES)}")

        return make
