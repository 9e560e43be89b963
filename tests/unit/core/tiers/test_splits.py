"""How a range of frames is divided into splits: exact, in order, without a hole."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ister.core.tiers.splits import Split


def places_of(steps):
    """Places as an index has them: offsets and bytes both grow."""
    found, offset, byte = [(10, 100)], 10, 100
    for by_offset, by_byte in steps:
        offset += by_offset
        byte += by_byte
        found.append((offset, byte))
    return found


def ends(split):
    return (split.start, split.start_byte), (split.stop, split.stop_byte)


STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1000)), min_size=1, max_size=30)


@given(steps=STEPS, split_bytes=st.integers(1, 5000), data=st.data())
def test_shares_cover_everything_once_and_are_cut_at_known_places_only(steps, split_bytes, data):
    places = places_of(steps)
    first = data.draw(st.integers(0, len(places) - 2))
    last = data.draw(st.integers(first + 1, len(places) - 1))
    start, stop = places[first], places[last]
    shares = Split(start[0], stop[0], start[1], stop[1], "wal.log").divide(places, split_bytes)
    assert ends(shares[0])[0] == start
    assert ends(shares[-1])[1] == stop
    assert all(ends(a)[1] == ends(b)[0] for a, b in pairwise(shares))
    assert all(a.start < a.stop for a in shares)
    assert {ends(share)[1] for share in shares[:-1]} <= {*places}
    assert {share.path for share in shares} == {"wal.log"}
    for share in shares[:-1]:
        assert share.bytes >= split_bytes
        before = max(place for place in places if place[1] < share.stop_byte)
        assert before[1] - share.start_byte < split_bytes, "it was cut at the first place where it was large enough"


def test_a_start_between_two_places_is_kept():
    shares = Split(12, 35, 130, 350).divide([(10, 100), (20, 200), (30, 300)], 100)
    assert shares == [Split(12, 30, 130, 300), Split(30, 35, 300, 350)]


def test_of_nothing_there_is_no_share():
    assert Split(5, 5, 50, 50).divide([(5, 50)], 1) == []
