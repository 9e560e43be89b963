"""Write batches: messages of one event-loop iteration, or of one call, encoded and sealed as chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ister.core.errors import InvalidMessageError
from ister.core.frames import kernels
from ister.core.frames.columns import Chunk, encode_columns
from ister.core.frames.frame import FRAME_BYTES_MAX, encode_batch, encode_unsealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ister.core.message import StreamMessage
    from ister.wal.waiters import Refusals, Waiter

CHUNK_BYTES = 1024 * 1024
"""The approximate size of a chunk, which is encoded, cached and read as a whole."""
BATCH_BYTES_MAX = FRAME_BYTES_MAX
"""A batch is stored whole or not at all, so the bound of a message holds for it, too."""


class SyncTarget(NamedTuple):
    """What a sync makes durable: messages below `offset`, the file below `pos`; and the waiters to refuse then."""

    offset: int
    pos: int
    refused: Refusals


class WriteBatch:
    """The messages of one event-loop iteration, waiting for their one write."""

    __slots__ = ("_pieces", "append_time_us", "size", "start", "waiters")

    def __init__(self, start: int, append_time_us: int) -> None:
        self.start = start
        self.append_time_us = append_time_us
        self.size = 0
        self.waiters: list[Waiter] = []
        self._pieces: list[bytes] = []

    @property
    def stop(self) -> int:
        """The offset after its last message."""
        return self.start + len(self.waiters)

    def add(self, message: StreamMessage, waiter: Waiter) -> None:
        """Encode a message now, so that an invalid one is refused here and leaves no hole."""
        head, payload = encode_unsealed(message, self.start + len(self.waiters), self.append_time_us)
        self._pieces += (head, payload)
        self.size += len(head) + len(payload)
        self.waiters.append(waiter)

    def chunk(self) -> Chunk:
        """Return the sealed frames."""
        return sealed_chunk(self._pieces, self.start, self.stop)


def sealed_chunk(pieces: Sequence[bytes], start: int, stop: int) -> Chunk:
    """Join the pieces of unsealed frames and fill in their CRCs."""
    frames = bytearray().join(pieces)
    kernels.seal(np.frombuffer(frames, np.uint8), len(frames))
    return Chunk(frames, start, stop)


def message_chunks(messages: Sequence[StreamMessage], start: int, append_time_us: int) -> list[Chunk]:
    """Encode messages as chunks of about CHUNK_BYTES."""
    chunks: list[Chunk] = []
    at = 0
    while at < len(messages):
        first = messages[at].payload
        step = max(1, min(4096, CHUNK_BYTES // (128 + (len(first) if isinstance(first, bytes) else 0))))
        part = messages[at : at + step]
        pieces = encode_batch(part, start + at, append_time_us)
        chunks.append(sealed_chunk(pieces, start + at, start + at + len(part)))
        at += len(part)
    return bounded(chunks)


def arrow_chunks(batch: pa.RecordBatch, start: int, append_time_us: int) -> list[Chunk]:
    """Encode a record batch as chunks of about CHUNK_BYTES."""
    return bounded(list(encode_columns(batch, start, append_time_us, bytes_max=CHUNK_BYTES)))


def bounded(chunks: list[Chunk]) -> list[Chunk]:
    """Return the chunks; raise InvalidMessageError if they are too large to be written whole."""
    if sum(len(chunk.frames) for chunk in chunks) > BATCH_BYTES_MAX:
        raise InvalidMessageError("batch", f"is larger than {BATCH_BYTES_MAX} bytes encoded; split it")
    return chunks
