"""Which tier serves which offsets: every combination of small tiers, against a model that looks at one offset at a time."""

import random
from itertools import product

import pytest

from ister.core.errors import MissingOffsetsError, OffsetOutOfRangeError
from ister.core.tiers.selection import NOTHING, OffsetRange, Serve, Tier, serve

FAR = 12
SMALL = 4


def naive(offset, log, objects, table=NOTHING, unreadable=NOTHING, lost=NOTHING):
    """Ask of one offset which tier may serve it, without knowing of spans."""
    if log.start <= offset <= log.stop and not unreadable.start <= offset < unreadable.stop:
        return Tier.LOG
    if objects.start <= offset < objects.stop and not lost.start <= offset < lost.stop:
        return Tier.OBJECTS
    if table.start <= offset < table.stop:
        return Tier.TABLE
    return None


def ask(offset, log, objects, table=NOTHING, unreadable=NOTHING, lost=NOTHING):
    try:
        return serve(offset, log, objects, table, unreadable=unreadable, lost=lost)
    except (MissingOffsetsError, OffsetOutOfRangeError) as error:
        return error


def judge(offset, *tiers):
    """Insist on what was decided for one offset, by asking the model of every offset around."""
    log, objects, table = tiers[:3]
    found, expected = ask(offset, *tiers), naive(offset, *tiers)
    case = (offset, *tiers)
    start = min([log.start] + [span.start for span in (objects, table) if span.start < span.stop])
    if expected is not None:
        assert isinstance(found, Serve), case
        assert found.tier is expected, case
        # As far as this tier is the cheapest, and not one offset further; the log's end is where a reader waits.
        stop = offset
        while naive(stop, *tiers) is expected and not (expected is Tier.LOG and stop == log.stop):
            stop += 1
        assert found.stop == stop, case
        return "served"
    if start <= offset < log.stop:
        assert isinstance(found, MissingOffsetsError), case
        stop = offset
        while naive(stop, *tiers) is None:
            stop += 1
        assert (found.start, found.stop) == (offset, stop), case
        return "missing"
    assert isinstance(found, OffsetOutOfRangeError), case
    assert (found.requested, found.start, found.stop) == (offset, start, log.stop), case
    return "outside"


def small_spans(far):
    return [OffsetRange(start, stop) for start in range(far + 1) for stop in range(start, far + 1)]


def test_i6_every_combination_of_small_tiers_is_served_as_one_offset_at_a_time(count, tell):
    far = count(SMALL, SMALL + 1)
    seen = {"served": 0, "missing": 0, "outside": 0}
    spans = small_spans(far)
    holes = [NOTHING, *(span for span in spans if span.start < span.stop)]
    for log, objects in product(spans, spans):
        damaged = [hole for hole in holes if hole is NOTHING or log.start <= hole.start < hole.stop <= log.stop]
        gone = [hole for hole in holes if hole is NOTHING or objects.start <= hole.start < hole.stop <= objects.stop]
        for upto, unreadable, lost, offset in product(range(far + 1), damaged, gone, range(-1, far + 2)):
            seen[judge(offset, log, objects, OffsetRange(0, upto), unreadable, lost)] += 1
    assert min(seen.values()) > 1000
    tell("F24", f"{sum(seen.values())} decisions, every combination of tiers of up to {far} offsets: {seen}")


def spans(rng):
    """Make tiers as they may be: objects and a table that end within the log or before, damaged parts of both."""
    start = rng.randint(0, FAR)
    log = OffsetRange(start, rng.randint(start, FAR))
    end = rng.randint(0, log.stop)
    objects = OffsetRange(rng.randint(0, end), end)
    table = OffsetRange(0, rng.choice((0, rng.randint(0, log.stop))))
    unreadable = lost = NOTHING
    if rng.random() < 0.4 and log.start < log.stop:
        first = rng.randint(log.start, log.stop - 1)
        unreadable = OffsetRange(first, rng.randint(first, log.stop))
    if rng.random() < 0.4 and objects.start < objects.stop:
        first = rng.randint(objects.start, objects.stop - 1)
        lost = OffsetRange(first, rng.randint(first, objects.stop))
    return log, objects, table, unreadable, lost


def test_i6_decision_by_decision_every_offset_comes_once_and_in_order(count):
    rng = random.Random(3)
    ends = 0
    for _ in range(count(20_000, 300_000)):
        log, objects, table, unreadable, lost = spans(rng)
        first = at = rng.randint(0, FAR)
        came = []
        try:
            while at < log.stop:
                to = serve(at, log, objects, table, unreadable=unreadable, lost=lost)
                came += range(at, to.stop)
                assert to.stop > at, "no progress"
                at = to.stop
                held = max(table.stop, objects.stop if objects.start <= table.stop else 0)
                if rng.random() < 0.5 and log.start < held:
                    # Retention moves the log's start to where objects or the table are.
                    log = OffsetRange(rng.randint(log.start, min(held, log.stop)), log.stop)
                if rng.random() < 0.5 and objects.start < objects.stop:
                    objects = OffsetRange(objects.start, rng.randint(objects.stop, max(objects.stop, log.stop)))
                if rng.random() < 0.5 and objects.start < min(table.stop, objects.stop):
                    # Object retention moves the objects' start behind the table.
                    objects = OffsetRange(rng.randint(objects.start, min(table.stop, objects.stop)), objects.stop)
                table = OffsetRange(0, rng.randint(table.stop, max(table.stop, log.stop)))
        except (MissingOffsetsError, OffsetOutOfRangeError):
            assert naive(at, log, objects, table, unreadable, lost) is None
        ends += at >= log.stop > first
        assert came == list(range(first, at))
    assert ends > 1000, "most readers come to the end"


def test_the_usual_cases():
    assert serve(5, OffsetRange(0, 10), NOTHING) == Serve(Tier.LOG, 10)
    assert serve(10, OffsetRange(0, 10), OffsetRange(0, 10)) == Serve(Tier.LOG, 10), "a reader waits at the end"
    assert serve(3, OffsetRange(5, 10), OffsetRange(0, 8)) == Serve(Tier.OBJECTS, 5), "the log goes on where it begins"
    assert serve(0, OffsetRange(5, 5), OffsetRange(0, 5)) == Serve(Tier.OBJECTS, 5)
    assert serve(0, OffsetRange(0, 0), NOTHING) == Serve(Tier.LOG, 0), "an empty topic"
    assert serve(6, OffsetRange(5, 20), OffsetRange(0, 15), unreadable=OffsetRange(6, 10)) == Serve(Tier.OBJECTS, 10)
    assert serve(5, OffsetRange(5, 20), OffsetRange(0, 15), unreadable=OffsetRange(6, 10)) == Serve(Tier.LOG, 6)


def test_the_usual_cases_with_a_table():
    assert serve(0, OffsetRange(20, 30), OffsetRange(10, 25), OffsetRange(0, 22)) == Serve(Tier.TABLE, 10), (
        "objects go on where they begin"
    )
    assert serve(10, OffsetRange(20, 30), OffsetRange(10, 25), OffsetRange(0, 22)) == Serve(Tier.OBJECTS, 20)
    assert serve(3, OffsetRange(20, 30), NOTHING, OffsetRange(0, 22)) == Serve(Tier.TABLE, 20), (
        "the log goes on where it begins"
    )
    assert serve(0, OffsetRange(20, 20), NOTHING, OffsetRange(0, 20)) == Serve(Tier.TABLE, 20)
    assert serve(12, OffsetRange(20, 30), OffsetRange(0, 25), OffsetRange(0, 22), lost=OffsetRange(12, 15)) == Serve(
        Tier.TABLE, 15
    )
    assert serve(21, OffsetRange(20, 30), NOTHING, OffsetRange(0, 25), unreadable=OffsetRange(21, 24)) == Serve(
        Tier.TABLE, 24
    )


def test_a_gap_is_named_by_its_offsets():
    with pytest.raises(MissingOffsetsError) as told:
        serve(6, OffsetRange(9, 20), OffsetRange(0, 6))
    assert (told.value.start, told.value.stop) == (6, 9)
    with pytest.raises(MissingOffsetsError) as told:
        serve(12, OffsetRange(9, 20), OffsetRange(0, 11), unreadable=OffsetRange(12, 15))
    assert (told.value.start, told.value.stop) == (12, 15)
    with pytest.raises(MissingOffsetsError) as told:
        serve(5, OffsetRange(20, 30), OffsetRange(8, 20), OffsetRange(0, 4))
    assert (told.value.start, told.value.stop) == (5, 8)


@pytest.mark.parametrize(("offset", "start", "stop"), [(-1, 0, 10), (11, 0, 10), (2**70, 0, 10)])
def test_an_offset_that_nobody_can_have_is_out_of_range_with_both_bounds(offset, start, stop):
    for objects, table in (
        (OffsetRange(0, 7), NOTHING),
        (NOTHING, OffsetRange(0, 7)),
        (OffsetRange(3, 7), OffsetRange(0, 7)),
    ):
        with pytest.raises(OffsetOutOfRangeError) as told:
            serve(offset, OffsetRange(5, 10), objects, table)
        assert (told.value.requested, told.value.start, told.value.stop) == (offset, start, stop)


def test_without_objects_and_table_what_the_log_has_pruned_is_out_of_range():
    with pytest.raises(OffsetOutOfRangeError) as told:
        serve(2, OffsetRange(5, 10), NOTHING)
    assert (told.value.start, told.value.stop) == (5, 10)
