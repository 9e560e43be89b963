"""Recovery scan of a log file: its valid prefix, and whether what follows is torn or corrupt.

    clean     every byte belongs to a whole, dense frame
    torn      the first damaged frame lies behind everything that a marker attests: a write that a crash cut short
    corrupt   a marker behind the damage attests that the damaged bytes were on disk: acknowledged data is lost

Truncating at the first bad frame everywhere would turn the third case into the second and lose data silently
(docs/adr/0002). The scanner takes a file piece by piece and holds at most one unfinished frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from zlib import crc32

from ister.core.frames import kernels
from ister.core.frames.columns import NO_LIMIT, REASONS, scan_run
from ister.core.frames.frame import (
    HEADER,
    HEADER_BYTES,
    MARKER,
    MARKER_FRAME_BYTES,
    MARKER_MAGIC,
    Marker,
    decode_marker,
)


class Verdict(Enum):
    """The state of a log file."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of the scan of one file.

    The valid prefix is [0, end) and ends before `next_offset`. Bytes below `synced_pos` are attested by a marker;
    messages in [synced_pos, end) are whole but were never attested. `reason` says what is wrong at `end`, and
    `evidence` where the marker stands that turns torn into corrupt.
    """

    verdict: Verdict
    size: int
    end: int
    next_offset: int
    synced_pos: int
    synced_offset: int
    append_time_us: int
    nonce: int | None
    index: tuple[tuple[int, int], ...]
    reason: str = ""
    evidence: int = -1
    unknown_format: bool = False


class Scanner:
    """Feed it a file from its first byte; `finish` returns the result.

    `limit` is the offset at which the next file starts, when there is one: what lies behind it was superseded by that
    file and is not checked.
    """

    def __init__(self, first_offset: int, *, limit: int | None = None) -> None:
        self._held = b""
        self._held_at = 0
        self._expected = first_offset
        self._limit = NO_LIMIT if limit is None else limit
        self._first_offset = first_offset
        self._synced_pos = 0
        self._synced_offset = first_offset
        self._append_time_us = 0
        self._nonce: int | None = None
        self._index: list[tuple[int, int]] = []
        self._damage_at = -1
        self._code = kernels.OK
        self._evidence = -1
        self._size = 0
        self._end = 0

    def feed(self, data: bytes) -> None:
        """Scan the next bytes of the file."""
        self._size += len(data)
        data = self._held + data if self._held else data
        at = self._held_at
        self._held = b""
        if self._expected == self._limit:
            return
        if self._damage_at >= 0:
            self._seek_markers(data, at)
            return
        scan = scan_run(data, first_offset=self._expected, limit=self._limit, file_at=at)
        if scan.end:
            self._index.append((self._expected, at))
        if at == 0 and len(data) >= MARKER_FRAME_BYTES:
            opening = _marker_at(data, 0)
            self._nonce = opening.nonce if opening else None
        if scan.synced_pos >= 0 and scan.synced_pos >= self._synced_pos:
            self._synced_pos, self._synced_offset = scan.synced_pos, scan.synced_offset
        if scan.append_time_us:
            self._append_time_us = scan.append_time_us
        self._expected = scan.next_offset
        self._end = at + scan.end
        rest = data[scan.end :]
        if scan.code in {kernels.OK, kernels.NEED_MORE}:
            self._held, self._held_at = rest, self._end
            self._code = scan.code
        else:
            self._damaged(rest, scan.code)

    def finish(self) -> Recovery:
        """Return the result for the whole file."""
        if self._expected == self._limit:
            self._held = b""
        elif self._damage_at < 0 and self._held:
            held, self._held = self._held, b""
            self._damaged(held, kernels.NEED_MORE)
        if self._damage_at < 0:
            verdict = Verdict.CLEAN
        elif self._code in {kernels.UNKNOWN_KIND, kernels.BAD_BODY} or self._evidence >= 0:
            verdict = Verdict.CORRUPT
        else:
            verdict = Verdict.TORN
        if self._limit not in {NO_LIMIT, self._expected}:
            verdict = Verdict.CORRUPT
        return Recovery(
            verdict=verdict,
            size=self._size,
            end=self._end,
            next_offset=self._expected,
            synced_pos=min(self._synced_pos, self._end),
            synced_offset=self._synced_offset,
            append_time_us=self._append_time_us,
            nonce=self._nonce,
            index=tuple(self._index),
            reason=self._reason(),
            evidence=self._evidence,
            unknown_format=self._code == kernels.UNKNOWN_KIND,
        )

    def _reason(self) -> str:
        if self._damage_at < 0:
            return "the file ends too early" if self._limit not in {NO_LIMIT, self._expected} else ""
        reason = REASONS[self._code]
        if self._evidence >= 0:
            reason += f", and the marker at byte {self._evidence} attests that it was on disk"
        return reason

    def _damaged(self, rest: bytes, code: int) -> None:
        self._damage_at, self._code = self._end, code
        if self._synced_pos > self._damage_at:
            self._evidence = self._damage_at
        self._seek_markers(rest, self._damage_at)

    def _seek_markers(self, data: bytes, at: int) -> None:
        """Search behind the damage for a marker of this file that attests the damaged bytes.

        A marker has its own position and its file's nonce, so a copy inside a payload does not count.
        """
        found = data.find(MARKER_MAGIC)
        while found >= 0 and self._evidence < 0:
            start = found - HEADER_BYTES
            if start >= 0:
                marker = _marker_at(data, start)
                if (
                    marker is not None
                    and marker.at == at + start
                    and (self._nonce is None or marker.nonce == self._nonce)
                    and marker.synced_pos > self._damage_at
                ):
                    self._evidence = at + start
            found = data.find(MARKER_MAGIC, found + 1)
        keep = min(len(data), MARKER_FRAME_BYTES - 1)
        self._held = data[len(data) - keep :]
        self._held_at = at + len(data) - keep


def _marker_at(data: bytes, start: int) -> Marker | None:
    if start + MARKER_FRAME_BYTES > len(data):
        return None
    _, length, crc = HEADER.unpack_from(data, start)
    body = data[start + HEADER_BYTES : start + MARKER_FRAME_BYTES]
    if length != MARKER.size or body[:8] != MARKER_MAGIC or crc32(body, crc32(data[start : start + 12])) != crc:
        return None
    return decode_marker(body)
