"""A simulated life that is cut short leaves coroutines behind that nobody will ever await; that is what a crash is."""

import gc
import warnings
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"))


@pytest.fixture(autouse=True)
def bury_what_a_planted_bug_leaves(request):
    """Collect it here, where it is expected, and not in the next test, where it would be a mystery."""
    yield
    if "planted_bug" in request.node.name:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
