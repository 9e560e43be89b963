"""One Spark session for all tests of a process, on a lake of its own."""

import warnings

import pytest

from ister.config import load


@pytest.fixture(scope="session")
def lake_home(tmp_path_factory):
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def lake_config(lake_home):
    return load(None, lake_home, {}).config


@pytest.fixture(scope="session")
def catalog(lake_config):
    from ister.config.catalog import catalog_properties
    from ister.lake.catalog import open_catalog

    name, properties = catalog_properties(lake_config)
    found = open_catalog(name, properties)
    yield found
    found.close()


@pytest.fixture(scope="session")
def spark(lake_config, catalog):
    from ister.pipeline.session import open_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, while it starts
        session = open_session(lake_config, master="local[2]")
    yield session
    session.stop()
