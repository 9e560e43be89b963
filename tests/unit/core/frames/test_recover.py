import random

import pytest

from ister.core.errors import CorruptLogError
from ister.core.frames.frame import HEADER_BYTES, MARKER_FRAME_BYTES, Marker, encode_marker, encode_message
from ister.core.frames.recover import Scanner, Verdict
from ister.core.message import StreamMessage
from parts.recover import recover

NONCE = 77


def log_bytes(size, *, marker_every=5, payload=40, rng=None, synced_lag=0):
    """Return a file's bytes, the ends of its frames, and the next offset after each of them."""
    rng = rng or random.Random(1)
    data = encode_marker(Marker(NONCE, 0, 0, 0), 0)
    ends, nexts, offset = [len(data)], [0], 0
    while len(data) < size:
        if offset and offset % marker_every == 0 and nexts[-1] != nexts[-2]:
            data += encode_marker(Marker(NONCE, len(data), offset, len(data) - synced_lag), offset)
        else:
            data += encode_message(StreamMessage(rng.randbytes(payload)), offset, offset + 1)
            offset += 1
        ends.append(len(data))
        nexts.append(offset)
    return data, ends, nexts


def test_f2_a_log_cut_at_every_byte_keeps_its_longest_whole_prefix(tell):
    data, ends, nexts = log_bytes(65536, payload=900)
    frame = -1
    for cut in range(len(data) + 1):
        if frame + 1 < len(ends) and ends[frame + 1] == cut:
            frame += 1
        found = recover(data[:cut], 0)
        whole = frame >= 0 and ends[frame] == cut
        assert found.verdict is (Verdict.CLEAN if whole or cut == 0 else Verdict.TORN)
        assert found.end == (ends[frame] if frame >= 0 else 0)
        assert found.next_offset == (nexts[frame] if frame >= 0 else 0)
    tell("F2", f"{len(data)} cuts")


def test_f3_no_flipped_bit_is_ever_served(tell):
    data, ends, nexts = log_bytes(4096, payload=40)
    last_marker = max(end - MARKER_FRAME_BYTES for end, n, b in zip(ends[1:], nexts[1:], nexts, strict=False) if n == b)
    verdicts = {Verdict.TORN: 0, Verdict.CORRUPT: 0}
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        found = recover(bytes(broken), 0)
        hit = next(i for i, end in enumerate(ends) if end > bit // 8)
        assert found.end == (ends[hit - 1] if hit else 0), bit
        assert found.next_offset == (nexts[hit - 1] if hit else 0)
        assert found.verdict is (Verdict.CORRUPT if bit // 8 < last_marker else Verdict.TORN), bit
        verdicts[found.verdict] += 1
        sealed = recover(bytes(broken), 0, limit=nexts[-1])
        assert sealed.verdict is Verdict.CORRUPT or ends[hit] == ends[-1], bit
    assert all(verdicts.values())
    tell("F3", f"{len(data) * 8} bits, {verdicts[Verdict.CORRUPT]} corrupt, {verdicts[Verdict.TORN]} torn, none served")


def test_f3_a_flipped_bit_in_a_long_log_is_corrupt_wherever_a_marker_follows(count):
    data, ends, _ = log_bytes(300_000, payload=100)
    rng = random.Random(3)
    last_marker = data.rfind(b"\x02\x01marker") - HEADER_BYTES
    for _ in range(count(200, 20_000)):
        at = rng.randrange(last_marker)
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        found = recover(bytes(broken), 0)
        assert (found.verdict, found.end) == (Verdict.CORRUPT, max([0, *(end for end in ends if end <= at)]))
        assert "attests" in found.reason


@pytest.mark.parametrize("zeros", [1, 11, 12, 15, 16, 17, 100, 4096, 65536])
def test_f4_a_tail_of_zeros_is_torn_and_holds_no_phantom(zeros):
    data, _, nexts = log_bytes(2000)
    found = recover(data + bytes(zeros), 0)
    assert (found.verdict, found.end, found.next_offset) == (Verdict.TORN, len(data), nexts[-1])
    only = recover(bytes(zeros), 7)
    assert (only.verdict, only.end, only.next_offset) == (Verdict.TORN, 0, 7)


def test_bytes_written_while_a_sync_ran_are_not_attested_by_its_marker():
    data, _, _ = log_bytes(2000, marker_every=10, synced_lag=150)
    marker_at = data.rfind(b"\x02\x01marker") - HEADER_BYTES
    torn = bytearray(data)
    torn[marker_at - 100] ^= 1
    assert recover(bytes(torn), 0).verdict is Verdict.TORN
    rotten = bytearray(data)
    rotten[marker_at - 400] ^= 1
    assert recover(bytes(rotten), 0).verdict is Verdict.CORRUPT


def test_a_marker_copied_into_a_payload_proves_nothing():
    """A producer may send a log file's bytes as a payload; a torn tail must stay torn."""
    data = encode_marker(Marker(NONCE, 0, 0, 0), 0) + encode_message(StreamMessage(b"first"), 0, 1)
    second = len(data)
    broken = bytearray(encode_message(StreamMessage(b"second"), 1, 1))
    broken[20] ^= 1
    data += broken
    for nonce, at in ((NONCE, 12345), (NONCE + 1, None)):
        payload_at = len(data) + HEADER_BYTES + 64
        fake = encode_marker(Marker(nonce, payload_at if at is None else at, 2, len(data)), 2)
        found = recover(data + encode_message(StreamMessage(fake), 2, 1), 0)
        assert (found.verdict, found.end) == (Verdict.TORN, second)
    genuine = encode_marker(Marker(NONCE, len(data), 2, len(data)), 2)
    assert recover(data + genuine, 0).verdict is Verdict.CORRUPT


def test_the_verdict_does_not_depend_on_how_the_bytes_are_fed():
    rng = random.Random(5)
    for _ in range(300):
        data, _, _ = log_bytes(
            rng.randint(100, 3000), rng=rng, payload=rng.randint(0, 80), marker_every=rng.randint(1, 6)
        )
        broken = bytearray(data[: rng.randint(0, len(data))])
        if broken and rng.random() < 0.7:
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        whole = recover(bytes(broken), 0)
        scanner = Scanner(0)
        at = 0
        while at < len(broken):
            step = rng.randint(1, 200)
            scanner.feed(bytes(broken[at : at + step]))
            at += step
        pieced = scanner.finish()
        for field in (
            "verdict",
            "size",
            "end",
            "next_offset",
            "synced_pos",
            "synced_offset",
            "append_time_us",
            "evidence",
        ):
            assert getattr(pieced, field) == getattr(whole, field), field


def test_what_lies_behind_the_next_files_first_offset_is_not_judged():
    data, ends, nexts = log_bytes(2000)
    limit = nexts[-1] // 2
    rotten = data[: ends[nexts.index(limit)]] + b"\xff" * 500
    assert recover(rotten, 0, limit=limit).verdict is Verdict.CLEAN
    assert recover(data, 0, limit=nexts[-1] + 1).verdict is Verdict.CORRUPT
    assert recover(data, 0, limit=nexts[-1] + 1).reason == "the file ends too early"


def test_corruption_names_the_place():
    error = CorruptLogError("wal-1.log", 99, 7, "the checksum does not match")
    assert (error.file, error.byte, error.expected_offset) == ("wal-1.log", 99, 7)
    assert "wal-1.log is corrupt at byte 99, where offset 7 should be" in str(error)


@pytest.mark.parametrize(
    "lie",
    [
        {"synced_pos": 10**6},
        {"synced_offset": 3},
        {"synced_offset": 2**63},
    ],
)
def test_a_marker_that_attests_what_cannot_be_is_corruption(lie):
    data = encode_marker(Marker(NONCE, 0, 0, 0), 0)
    data += encode_message(StreamMessage(b"0"), 0, 1) + encode_message(StreamMessage(b"1"), 1, 1)
    truth = {"nonce": NONCE, "at": len(data), "synced_offset": 2, "synced_pos": len(data)}
    tail = encode_message(StreamMessage(b"2"), 2, 1)
    assert recover(data + encode_marker(Marker(**truth), 2) + tail, 0).verdict is Verdict.CLEAN
    found = recover(data + encode_marker(Marker(**(truth | lie)), 2) + tail, 0)
    assert (found.verdict, found.end, found.next_offset) == (Verdict.CORRUPT, len(data), 2)
    elsewhere = recover(data + encode_marker(Marker(**(truth | {"at": 5})), 2) + tail, 0)
    assert (elsewhere.verdict, elsewhere.end, elsewhere.next_offset) == (Verdict.TORN, len(data), 2)
