"""Compilation of the kernels, so that their cache on disk is ready before the first message."""

from __future__ import annotations

from functools import cache

import numpy as np

from ister.core.frames.columns import check_rows, decode_batch, decode_messages, encode_columns, strip_markers
from ister.core.frames.frame import Marker, encode_marker, encode_message
from ister.core.frames.kernels import seal
from ister.core.frames.segment import survey
from ister.core.message import StreamMessage


@cache
def warm() -> None:
    """Call every kernel with the types it will see; once a process."""
    frames = encode_message(StreamMessage(b"x", attributes={"a": "b"}, routing_key="r"), 0, 0)
    frames += encode_marker(Marker(0, 0, 1, 0), 1)
    batch = decode_batch(frames, first_offset=0)
    decode_messages(frames, first_offset=0)
    check_rows(batch)
    strip_markers(frames)
    survey(frames, 0)
    for chunk in encode_columns(batch, 0, 0, bytes_max=1 << 20):
        seal(np.frombuffer(bytearray(chunk.frames), np.uint8), len(chunk.frames))


if __name__ == "__main__":
    warm()
