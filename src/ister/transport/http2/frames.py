"""HTTP/2 frames (RFC 9113): constants, encoding, protocol errors."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = Struct(">BHBBI")
"""Length in 24 bits, as one byte and two; type; flags; stream."""
HEAD_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384
"""The default SETTINGS_MAX_FRAME_SIZE, for both directions."""
WINDOW_START: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
STREAM_MAX: Final = 2**31 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20


class Setting(IntEnum):
    """Identifiers of settings."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class BrokenProtocolError(Exception):
    """The peer violated the protocol or a limit; the connection ends with GOAWAY."""

    def __init__(self, code: Code, why: str) -> None:
        self.code = code
        self.why = why
        super().__init__(f"{code.name}: {why}")


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """Return an encoded frame."""
    length = len(body)
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + body


def settings(values: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    body = b"".join(number.to_bytes(2) + value.to_bytes(4) for number, value in values.items())
    return frame(SETTINGS, 0, 0, body)


def window_update(stream: int, more: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4))


def reset(stream: int, code: Code) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4))


def goaway(last: int, code: Code, why: str = "") -> bytes:
    """Return a GOAWAY frame: streams above `last` were not processed."""
    return frame(GOAWAY, 0, 0, last.to_bytes(4) + code.to_bytes(4) + why.encode())
