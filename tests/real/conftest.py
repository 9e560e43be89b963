"""Real services, one of each for a file of tests. Collected by `make test-services` only."""

import json
import os

import pytest

from services.azurite import Azurite
from services.etcd36 import Etcd36
from services.fake_gcs import FakeGcs
from services.iceberg_rest import IcebergRest
from services.install import RECIPES
from services.minio import Minio
from services.postgres import Postgres, programs

collect_ignore_glob = [] if os.environ.get("ISTER_TEST_SERVICES") == "1" else ["test_*.py"]


def need(name):
    """Return the program of a service; skip, and say why, where it could not be installed."""
    program = RECIPES[name].binary
    if not program.exists():
        reasons = json.loads(os.environ.get("ISTER_SERVICES_MISSING", "{}"))
        pytest.skip(f"{name}: {reasons.get(name, 'not installed; make test-services does it')}")
    return program


@pytest.fixture(scope="module")
def minio():
    with Minio(need("minio")) as server:
        yield server


@pytest.fixture(scope="module")
def iceberg_rest(minio):
    with IcebergRest(need("iceberg-rest"), minio) as server:
        yield server


@pytest.fixture(scope="module")
def postgres():
    place = programs()
    if isinstance(place, str):
        pytest.skip(place)
    with Postgres(place) as server:
        yield server


@pytest.fixture(scope="module")
def azurite():
    with Azurite(need("azurite")) as server:
        yield server


@pytest.fixture(scope="module")
def fake_gcs():
    with FakeGcs(need("fake-gcs-server")) as server:
        yield server


@pytest.fixture(scope="module")
def etcd36():
    need("etcd")
    with Etcd36() as server:
        yield server
