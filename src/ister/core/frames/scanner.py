"""Incremental scan of the frames of a file or an object. Sans-I/O: the caller reads, the scanner says where and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.core.errors import CorruptLogError
from ister.core.frames import kernels
from ister.core.frames.columns import NO_LIMIT, REASONS, scan_run
from ister.core.frames.frame import HEADER, HEADER_BYTES

if TYPE_CHECKING:
    from ister.core.frames.columns import Frames, Scan
    from ister.core.frames.segment import Survey


class FrameScanner:
    """Scans the frames from `offset` on, which begin at `byte`: read `need` bytes at `byte`, feed them, repeat.

    Fewer bytes than `need` are the end of the source. `need` is `read_bytes`, or more while one frame is larger.
    """

    def __init__(
        self, source: str, offset: int, byte: int, read_bytes: int, *, limit: int = NO_LIMIT, wanted: int = 0
    ) -> None:
        self.offset = offset
        self.byte = byte
        self.need = read_bytes
        self._source = source
        self._read_bytes = read_bytes
        self._limit = limit
        self._wanted = wanted

    def feed(self, data: Frames) -> Scan:
        """Check the frames up to offset `limit`, advance behind them and return them.

        The result has no messages, and `need` is larger, if the first one does not fit into the data.
        """
        scan = scan_run(data, first_offset=self.offset, limit=self._limit, wanted=self._wanted)
        self.advance(data, scan)
        return scan

    def advance(self, data: Frames, found: Scan | Survey) -> None:
        """Advance behind the messages that were found in the data; without any, grow `need`.

        Raise CorruptLogError if there is none and more bytes cannot change that. Damage behind a message is reported
        by the next call.
        """
        if found.next_offset > self.offset:
            self.offset = found.next_offset
            self.byte += found.end
            self.need = self._read_bytes
        elif found.code not in {kernels.OK, kernels.NEED_MORE} or len(data) < self.need:
            reason = REASONS.get(found.code, "the file ends too early")
            raise CorruptLogError(self._source, self.byte + found.end, self.offset, reason)
        elif len(data) - found.end < HEADER_BYTES:
            self.need = found.end + max(self._read_bytes, HEADER_BYTES)
        else:
            self.need = found.end + HEADER_BYTES + HEADER.unpack_from(data, found.end)[1]
