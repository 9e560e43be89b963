"""Which tier serves which offsets, against a model that looks at every offset by itself."""

import random

import pytest

from ister.core.errors import MissingSpanError, OffsetOutOfRangeError
from ister.core.handoff import NOTHING, Serve, Span, Tier, serve

FAR = 12


def naive(offset, log, objects, unreadable):
    """Ask of one offset which tier may serve it, without knowing of spans."""
    if log.start <= offset <= log.stop and not unreadable.start <= offset < unreadable.stop:
        return Tier.LOG
    if objects.start <= offset < objects.stop:
        return Tier.OBJECTS
    return None


def spans(rng, *, ahead):
    """Make tiers as they may be: a log, objects that end within it or before, and a damaged part of the log."""
    start = rng.randint(0, FAR)
    log = Span(start, rng.randint(start, FAR))
    end = rng.randint(0, FAR if ahead else log.stop)
    objects = Span(rng.randint(0, end), end)
    unreadable = NOTHING
    if rng.random() < 0.4 and log.start < log.stop:
        first = rng.randint(log.start, log.stop - 1)
        unreadable = Span(first, rng.randint(first, log.stop))
    return log, objects, unreadable


@pytest.mark.parametrize("ahead", [False, True])
def test_i6_the_tier_that_serves_an_offset_is_one_that_has_it_up_to_where_it_says(ahead, count, tell):
    rng = random.Random(2 + ahead)
    trials = count(60_000, 1_000_000)
    served = missing = outside = 0
    for _ in range(trials):
        log, objects, unreadable = spans(rng, ahead=ahead)
        offset = rng.randint(0, FAR + 1)
        expected = naive(offset, log, objects, unreadable)
        case = (offset, log, objects, unreadable)
        try:
            found = serve(offset, log, objects, unreadable=unreadable)
        except (MissingSpanError, OffsetOutOfRangeError) as error:
            found = error
        if isinstance(found, MissingSpanError):
            missing += 1
            assert expected is None, case
            assert found.start == offset, case
            assert found.stop > offset, case
            for at in range(found.start, min(found.stop, log.stop)):
                assert naive(at, log, NOTHING, unreadable) is None, case
        elif isinstance(found, OffsetOutOfRangeError):
            outside += 1
            assert expected is None, case
            assert not found.start <= offset < found.stop, case
        else:
            served += 1
            tier, stop = found
            assert tier is expected, case
            if tier is Tier.OBJECTS:
                assert offset < stop <= objects.stop, f"no progress: {case}"
                assert stop in {objects.stop, log.start, unreadable.stop}, case
                assert all(naive(at, log, NOTHING, unreadable) is None for at in range(offset, min(stop, log.stop))), (
                    case
                )
            else:
                assert offset <= stop, case
                assert all(naive(at, log, NOTHING, unreadable) is Tier.LOG for at in range(offset, stop)), case
    assert min(served, missing, outside) > trials // 100
    tell("F24", f"{trials} decisions: {served} served, {missing} missing, {outside} out of range, as the model says")


def test_i6_decision_by_decision_every_offset_comes_once_and_in_order(count):
    rng = random.Random(3)
    for _ in range(count(20_000, 300_000)):
        log, objects, unreadable = spans(rng, ahead=False)
        first = at = rng.randint(0, FAR)
        came = []
        try:
            while at < log.stop:
                to = serve(at, log, objects, unreadable=unreadable)
                came += range(at, to.stop)
                assert to.stop > at, "no progress"
                at = to.stop
                if rng.random() < 0.5 and objects.start <= log.start <= objects.stop:
                    # Retention moves the log's start to where objects are.
                    log = Span(rng.randint(log.start, min(objects.stop, log.stop)), log.stop)
                if rng.random() < 0.5 and objects.start < objects.stop:
                    objects = Span(objects.start, rng.randint(objects.stop, max(objects.stop, log.stop)))
        except (MissingSpanError, OffsetOutOfRangeError):
            assert naive(at, log, objects, unreadable) is None
        assert came == list(range(first, at))


def test_the_usual_cases():
    assert serve(5, Span(0, 10), NOTHING) == Serve(Tier.LOG, 10)
    assert serve(10, Span(0, 10), Span(0, 10)) == Serve(Tier.LOG, 10), "a reader waits at the end"
    assert serve(3, Span(5, 10), Span(0, 8)) == Serve(Tier.OBJECTS, 5), "the log goes on where it begins"
    assert serve(0, Span(5, 5), Span(0, 5)) == Serve(Tier.OBJECTS, 5)
    assert serve(0, Span(0, 0), NOTHING) == Serve(Tier.LOG, 0), "an empty topic"
    assert serve(6, Span(5, 20), Span(0, 15), unreadable=Span(6, 10)) == Serve(Tier.OBJECTS, 10)
    assert serve(5, Span(5, 20), Span(0, 15), unreadable=Span(6, 10)) == Serve(Tier.LOG, 6)


def test_a_gap_is_named_by_its_offsets():
    with pytest.raises(MissingSpanError) as told:
        serve(6, Span(9, 20), Span(0, 6))
    assert (told.value.start, told.value.stop) == (6, 9)
    with pytest.raises(MissingSpanError) as told:
        serve(12, Span(9, 20), Span(0, 11), unreadable=Span(12, 15))
    assert (told.value.start, told.value.stop) == (12, 15)


@pytest.mark.parametrize(("offset", "start", "stop"), [(-1, 0, 10), (11, 0, 10), (2**70, 0, 10)])
def test_an_offset_that_nobody_can_have_is_out_of_range_with_both_bounds(offset, start, stop):
    with pytest.raises(OffsetOutOfRangeError) as told:
        serve(offset, Span(5, 10), Span(0, 7))
    assert (told.value.requested, told.value.start, told.value.stop) == (offset, start, stop)


def test_without_objects_what_the_log_has_pruned_is_out_of_range():
    with pytest.raises(OffsetOutOfRangeError) as told:
        serve(2, Span(5, 10), NOTHING)
    assert (told.value.start, told.value.stop) == (5, 10)
