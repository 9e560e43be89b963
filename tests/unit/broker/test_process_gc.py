"""What stays is walked over once more at most, and only so often."""

import gc

import pytest

from ister.broker import process as collecting
from ister.broker.process import GcTuning


@pytest.fixture
def started(monkeypatch):
    one = GcTuning()
    one.start()
    yield one
    one.stop()
    gc.unfreeze()


def test_what_a_long_collection_finds_alive_is_set_aside_and_a_short_one_changes_nothing(started, monkeypatch):
    alive = [[number] for number in range(1000)]
    monkeypatch.setattr(collecting, "LONG_S", 1000)
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() <= before
    monkeypatch.setattr(collecting, "LONG_S", -1)
    gc.collect(1)
    assert gc.get_freeze_count() <= before, "only full collections are long"
    gc.collect()
    assert gc.get_freeze_count() >= before + len(alive)


def test_it_comes_to_an_end(started, monkeypatch):
    monkeypatch.setattr(collecting, "LONG_S", -1)
    for _ in range(collecting.TIMES_MAX + 3):
        gc.collect()
    before = gc.get_freeze_count()
    alive = [[number] for number in range(1000)]
    gc.collect()
    assert gc.get_freeze_count() <= before, f"{len(alive)} are left to the collector"


@pytest.mark.parametrize("comes_so_far", [True, False])
def test_nothing_is_walked_over_while_a_broker_starts_and_everything_is_as_usual_afterwards(comes_so_far):
    one = GcTuning()
    one.pause()
    assert not gc.isenabled()
    if comes_so_far:
        one.start()
        assert gc.isenabled()
    one.stop()
    assert gc.isenabled()
    assert one._collected not in gc.callbacks
    gc.unfreeze()


def test_after_the_stop_nobody_listens():
    one = GcTuning()
    one.start()
    assert one._collected in gc.callbacks
    one.stop()
    assert one._collected not in gc.callbacks
    gc.unfreeze()
