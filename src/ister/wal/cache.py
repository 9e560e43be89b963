"""Cache of the newest frames, bounded by messages and by bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from ister.core.frames.columns import Chunk

CACHE_BYTES_MAX = 16 * 1024 * 1024
READ_BYTES_MAX = 1024 * 1024


class FrameCache:
    """A run of chunks without a hole, newest last.

    It holds encoded frames, not message objects: the bytes exist already and are counted exactly, and a log without
    readers does not pay for building messages.
    """

    def __init__(self, capacity: int, next_offset: int) -> None:
        self._capacity = capacity
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._start = next_offset
        self.stop = next_offset

    @property
    def start(self) -> int:
        """The oldest cached offset."""
        return max(self._start, self.stop - self._capacity)

    @property
    def held_bytes(self) -> int:
        """The size of the chunks."""
        return self._bytes

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk, and evict the oldest until both bounds hold."""
        assert chunk.start == self.stop, "the cache has no holes"
        self._chunks.append(chunk)
        self._bytes += len(chunk.frames)
        self.stop = chunk.stop
        while self._chunks and (self._bytes > CACHE_BYTES_MAX or self._chunks[0].stop <= self.start):
            evicted = self._chunks.popleft()
            self._bytes -= len(evicted.frames)
            self._start = evicted.stop

    def read(self, offset: int) -> Chunk:
        """Return a run of frames that starts at or before `offset`, about a MiB of them; it must be cached."""
        assert self.start <= offset < self.stop, "only cached offsets can be read"
        first = bisect_right(self._chunks, offset, key=lambda chunk: chunk.start) - 1
        parts: list[Chunk] = [self._chunks[first]]
        size = len(parts[0].frames)
        for index in range(first + 1, len(self._chunks)):
            chunk = self._chunks[index]
            size += len(chunk.frames)
            if size > READ_BYTES_MAX:
                break
            parts.append(chunk)
        if len(parts) == 1:
            return parts[0]
        return Chunk(b"".join(part.frames for part in parts), parts[0].start, parts[-1].stop)
