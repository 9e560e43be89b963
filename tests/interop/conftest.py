"""What the interop tests share: a broker for all of them, brokers of their own, and tests that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import re

import pytest

from interop.broker import Broker
from interop.leftovers import run_clean

TEST_S = 240.0
"""How long one test may take; those that try more say so (`waiting.limited_to`)."""
_numbers = itertools.count()
logging.getLogger("danube").setLevel(logging.CRITICAL)  # it warns of every attempt to connect again, thousands of them


@pytest.fixture(scope="session")
def loop():
    """One event loop for all tests of a process: gRPC's threads belong to it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine; whatever it leaves running, or leaves to fail unseen, is a failure."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    limit_s = getattr(pyfuncitem.obj, "limit_s", TEST_S)
    pyfuncitem.funcargs["loop"].run(run_clean(pyfuncitem.obj(**given), limit_s))
    return True


def pytest_collection_modifyitems(items):
    for item in items:
        if inspect.iscoroutinefunction(getattr(item, "obj", None)) and "loop" not in item.fixturenames:
            item.fixturenames.insert(0, "loop")


class _Shared:
    """A broker for many tests; one that was stopped is started again, with what it holds."""

    def __init__(self) -> None:
        self.broker: Broker | None = None

    def get(self) -> Broker:
        if self.broker is None:
            self.broker = Broker().__enter__()
        elif not self.broker.is_alive:
            self.broker.start()
        return self.broker

    def close(self) -> None:
        if self.broker is not None:
            self.broker.__exit__()
            self.broker = None


@pytest.fixture(scope="session")
def _shared():
    shared = _Shared()
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def _condemned():
    condemned = _Shared()
    yield condemned
    condemned.close()


@pytest.fixture
def broker(_shared, request):
    """The broker that tests share, each with topics of its own. It lives afterwards, and has nothing to report."""
    broker = _shared.get()
    start = len(broker.log)
    request.node.stash[_BROKERS] = [(broker, start)]
    yield broker
    assert broker.is_alive, "the broker has died"
    _insist_on_quiet(broker.log[start:])


@pytest.fixture
def victim(_condemned, request):
    """The broker of tests that kill and stop it; each has topics of its own there, too."""
    broker = _condemned.get()
    start = len(broker.log)
    request.node.stash[_BROKERS] = [(broker, start)]
    yield broker
    _insist_on_quiet(broker.log[start:])


@pytest.fixture
def own_broker(request):
    """Make brokers for one test alone: own_broker(config) is started, and ends with the test."""
    brokers: list[Broker] = []
    request.node.stash[_BROKERS] = told = []

    def make(config: dict | None = None, **options) -> Broker:
        broker = Broker(config, **options)
        brokers.append(broker)
        told.append((broker, 0))
        return broker.start()

    yield make
    said = [broker.log for broker in brokers]
    for broker in brokers:
        broker.__exit__()
    for log in said:
        _insist_on_quiet(log)


@pytest.fixture
def topic():
    """A name that no other test has."""
    return f"/default/topic-{next(_numbers)}"


@pytest.fixture
def topics():
    """As many names as a test asks for."""
    return lambda count: [f"/default/topic-{next(_numbers)}" for _ in range(count)]


_BROKERS = pytest.StashKey()


def _insist_on_quiet(log: str) -> None:
    found = re.search(r"Traceback|never awaited|never retrieved|Task was destroyed", log)
    assert found is None, f"the broker's log has a surprise:\n{log[max(0, found.start() - 500) : found.start() + 3000]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for broker, start in item.stash.get(_BROKERS, []):
            report.sections.append((f"log of the broker on port {broker.port}", broker.log[start:][-8000:]))
    return report
