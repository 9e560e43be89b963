"""A directory, OpenDAL's memory and an S3 server keep the same contract."""

import itertools

import pytest

from ister.ports.objects import FsStore, StoreSettings, open_store
from services.moto import LIST_PAGE, shared_moto
from services.objects_contract import ObjectsContract

pytestmark = pytest.mark.slow

_names = itertools.count()


class TestFs(ObjectsContract):
    @pytest.fixture
    def store(self, tmp_path):
        return FsStore(tmp_path / "a" / "objects")


class TestMemory(ObjectsContract):
    @pytest.fixture
    def store(self):
        return open_store(StoreSettings("memory", f"contract-{next(_names)}"))


class TestS3(ObjectsContract):
    etags = True
    many = 2 * LIST_PAGE + 50

    @pytest.fixture
    def store(self):
        moto = shared_moto()
        return open_store(moto.settings(f"{moto.make_bucket()}/some/prefix"))
