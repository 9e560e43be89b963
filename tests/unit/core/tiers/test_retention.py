import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.errors import InvalidConfigError
from ister.core.tiers.retention import RetentionPolicy, SealedSegment, prunable_below

ACK = RetentionPolicy.RETAIN_UNTIL_ACK
EXPIRE = RetentionPolicy.RETAIN_UNTIL_EXPIRE
SECOND_US = 1_000_000


def below(segments, policy=ACK, *, period_s=60, now_us=0, cursors=(), later=None):
    return prunable_below(
        segments,
        policy=policy,
        retention_period_s=period_s,
        now_us=now_us,
        cursors=cursors,
        later_tier_offset=later,
    )


def may_go(offset, time_us, policy, period_s, now_us, cursors, later):
    """The rules, said once more for one message, one by one."""
    for cursor in cursors:
        if offset >= cursor:
            return False
    if later is not None and offset >= later:
        return False
    if policy is ACK:
        return len(cursors) != 0
    if time_us == 0:
        return False
    oldest_kept_us = now_us - period_s * SECOND_US
    return time_us < oldest_kept_us and time_us < now_us


def oracle(segments, policy, period_s, now_us, cursors, later):
    """Try every place where a log can be cut, and take the last before which every message may go."""
    best = segments[0].first if segments else 0
    for cut in [segment.stop for segment in segments]:
        doomed = [
            (offset, segment.append_time_us)
            for segment in segments
            for offset in range(segment.first, segment.stop)
            if offset < cut
        ]
        if all(may_go(offset, time_us, policy, period_s, now_us, cursors, later) for offset, time_us in doomed):
            # Where there is nothing to lose, an empty file is as good as deleted, unless someone waits before it.
            held = [*cursors, *([] if later is None else [later])]
            if all(cut <= hold for hold in held) and (policy is EXPIRE or cursors):
                best = max(best, cut)
    return best


def layouts(first):
    for sizes in itertools.chain.from_iterable(itertools.product((0, 1, 2), repeat=count) for count in range(4)):
        stops = list(itertools.accumulate(sizes, initial=first))
        for times in itertools.combinations_with_replacement((0, 1, 2), len(sizes)):
            yield [
                SealedSegment(start, stop, time * SECOND_US)
                for (start, stop), time in zip(itertools.pairwise(stops), times, strict=True)
            ]


def test_i5_every_small_case_agrees_with_the_rules_said_one_by_one(tell):
    cases = 0
    deleted = 0
    held = [(), (3,), (4,), (5,), (9,), (3, 9), (4, 5), (5, 9, 9)]
    for segments in layouts(3):
        for policy, cursors, later in itertools.product(RetentionPolicy, held, (None, 3, 4, 5, 9)):
            for period_s, now_s in ((0, 2), (1, 2), (1, 3)) if policy is EXPIRE else ((0, 9),):
                now_us = now_s * SECOND_US
                found = below(segments, policy, period_s=period_s, now_us=now_us, cursors=cursors, later=later)
                case = (segments, policy, period_s, now_s, cursors, later)
                assert found == oracle(segments, policy, period_s, now_us, cursors, later), case
                cases += 1
                deleted += bool(segments) and found > segments[0].first
    tell("I5", f"what may be deleted: {cases} cases against an oracle, {deleted} of them delete something")
    assert cases >= 40_000
    assert deleted >= 4_000


SEGMENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**13)), max_size=8).map(
    lambda parts: [
        SealedSegment(start, start + size, time)
        for (size, time), start in zip(
            parts, itertools.accumulate((size for size, _ in parts), initial=7), strict=False
        )
    ]
)
OFFSETS = st.integers(0, 50)


@given(
    SEGMENTS,
    st.sampled_from(RetentionPolicy),
    st.integers(0, 10**7),
    st.integers(-(10**13), 3 * 10**13),
    st.lists(OFFSETS, max_size=4),
    st.none() | OFFSETS,
)
@settings(max_examples=500)
def test_i5_nothing_that_is_still_needed_is_ever_deleted(segments, policy, period_s, now_us, cursors, later):
    found = below(segments, policy, period_s=period_s, now_us=now_us, cursors=cursors, later=later)
    assert found == oracle(segments, policy, period_s, now_us, cursors, later)
    first = segments[0].first if segments else 0
    assert first <= found <= max([first, *(segment.stop for segment in segments)])
    if found > first:
        assert found <= min([found, *cursors])
        assert later is None or found <= later


@given(SEGMENTS, st.integers(0, 10**7), st.integers(-(10**13), 3 * 10**13), st.integers(0, 10**13))
@settings(max_examples=300)
def test_f15_a_clock_that_steps_back_never_deletes_more(segments, period_s, now_us, step_us):
    now = below(segments, EXPIRE, period_s=period_s, now_us=now_us)
    assert below(segments, EXPIRE, period_s=period_s, now_us=now_us - step_us) <= now


def test_without_a_subscription_nothing_is_acknowledged_and_nothing_is_deleted():
    assert below([SealedSegment(0, 10, 1), SealedSegment(10, 20, 2)], ACK, now_us=10**18) == 0


def test_the_slowest_subscription_decides():
    segments = [SealedSegment(0, 10, 1), SealedSegment(10, 20, 2), SealedSegment(20, 30, 3)]
    assert below(segments, ACK, cursors=[30, 19]) == 10
    assert below(segments, ACK, cursors=[30, 20]) == 20


def test_a_message_is_old_only_once_the_period_is_over():
    segments = [SealedSegment(0, 10, 100 * SECOND_US)]
    assert below(segments, EXPIRE, period_s=60, now_us=160 * SECOND_US) == 0
    assert below(segments, EXPIRE, period_s=60, now_us=160 * SECOND_US + 1) == 10


def test_a_segment_of_unknown_age_is_kept_and_so_is_all_behind_it():
    segments = [SealedSegment(0, 10, 1), SealedSegment(10, 20, 0), SealedSegment(20, 30, 2)]
    assert below(segments, EXPIRE, period_s=0, now_us=10**18) == 10


def test_a_log_without_sealed_segments_has_nothing_to_delete():
    for policy in RetentionPolicy:
        assert below([], policy, cursors=[100], now_us=10**18) == 0


def test_a_negative_period_is_refused_because_it_would_delete_the_future():
    with pytest.raises(InvalidConfigError, match="retention_period_s"):
        below([SealedSegment(0, 1, 1)], EXPIRE, period_s=-1)


def test_the_policies_have_the_names_that_a_configuration_uses():
    assert RetentionPolicy("retain_until_ack") is ACK
    assert RetentionPolicy("retain_until_expire") is EXPIRE
