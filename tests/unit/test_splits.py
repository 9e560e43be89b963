"""How runs of frames are cut into shares: exact, in order, without a hole."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ister.core.splits import Cut, Share, share_out


def places_of(steps):
    """Places as an index has them: offsets and bytes both grow."""
    found, offset, byte = [(10, 100)], 10, 100
    for by_offset, by_byte in steps:
        offset += by_offset
        byte += by_byte
        found.append((offset, byte))
    return found


STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1000)), min_size=1, max_size=30)


@given(steps=STEPS, split_bytes=st.integers(1, 5000), data=st.data())
def test_shares_cover_everything_once_and_are_cut_at_known_places_only(steps, split_bytes, data):
    places = places_of(steps)
    first = data.draw(st.integers(0, len(places) - 2))
    last = data.draw(st.integers(first + 1, len(places) - 1))
    start, stop = Cut(*places[first]), Cut(*places[last])
    shares = share_out(start, places, stop, split_bytes)
    assert (shares[0].start, shares[-1].stop) == (start, stop)
    assert all(a.stop == b.start for a, b in pairwise(shares))
    assert all(a.start.offset < a.stop.offset for a in shares)
    assert {share.stop for share in shares[:-1]} <= {Cut(*place) for place in places}
    for share in shares[:-1]:
        assert share.stop.byte - share.start.byte >= split_bytes
        before = max(place for place in places if place[1] < share.stop.byte)
        assert before[1] - share.start.byte < split_bytes, "it was cut at the first place where it was large enough"


def test_a_start_between_two_places_is_kept():
    shares = share_out(Cut(12, 130), [(10, 100), (20, 200), (30, 300)], Cut(35, 350), 100)
    assert shares == [Share(Cut(12, 130), Cut(30, 300)), Share(Cut(30, 300), Cut(35, 350))]


def test_of_nothing_there_is_no_share():
    assert share_out(Cut(5, 50), [(5, 50)], Cut(5, 50), 1) == []
