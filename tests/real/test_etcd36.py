"""etcd 3.6 keeps the contract of metadata, and everything that is asked of 3.5: F25, TLS, users."""

from itertools import count as numbers

import pytest

from ister.ports.metadata.etcd import EtcdMetadata
from services.etcd36 import Etcd36
from services.metadata_contract import MetadataContract
from unit import test_metadata_etcd as f25
from unit import test_metadata_etcd_access as access

PREFIXES = numbers()

# The very tests of 3.5, which find another Etcd below.
for module in (f25, access):
    globals().update({name: test for name, test in vars(module).items() if name.startswith("test_")})


@pytest.fixture(scope="module")
def etcd(etcd36):
    return etcd36


@pytest.fixture(autouse=True)
def _etcd_is_of_this_version(etcd36, monkeypatch):
    for module in (f25, access):
        monkeypatch.setattr(module, "Etcd", Etcd36)


class TestContract(MetadataContract):
    ttl_s = 1

    @pytest.fixture
    def new(self, etcd36):
        async def make():
            return await EtcdMetadata.open(etcd36.endpoint, prefix=f"/contract-{next(PREFIXES)}")

        return make


def test_the_server_is_of_version_3_6(etcd36):
    assert etcd36.version().startswith("3.6.")
