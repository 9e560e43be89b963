"""Tests on real Spark and real Iceberg share one session a process."""

from pathlib import Path

import pytest

from parts.spark_fixture import catalog, lake_config, lake_home, spark  # noqa: F401  # fixtures for all tests here

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def broker():
    """A broker whose pipeline proves itself by a token."""
    from parts.pipeline import broker_with_token

    with pytest.MonkeyPatch.context() as patch, broker_with_token(patch) as found:
        yield found


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("slow")
            # Spark's bridge to Java leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
