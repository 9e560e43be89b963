"""gRPC message framing: a compression flag, a length, the message."""

from __future__ import annotations

import zlib
from typing import Final

PREFIX_BYTES: Final = 5
ZLIB_WBITS: Final = {"gzip": 31, "deflate": 15}
"""zlib's `wbits` of each encoding."""


class MessageError(Exception):
    """The bytes are no valid messages; `code` is the gRPC status code."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


class UnknownEncodingError(MessageError):
    """The compression is not supported; the response lists what is."""


UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
INVALID_ARGUMENT: Final = 3


def only_message(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the only message of a request."""
    size = len(body) - PREFIX_BYTES
    if size < 0 or int.from_bytes(body[1:5]) != size:
        raise MessageError(UNIMPLEMENTED, "this method takes exactly one message")
    return body[PREFIX_BYTES:] if body[0] == 0 else decompress(body[0], body[PREFIX_BYTES:], encoding, limit)


def take_messages(buffer: bytearray, encoding: str, limit: int) -> list[bytes]:
    """Remove the complete messages from the buffer and return them."""
    found = []
    while len(buffer) >= PREFIX_BYTES:
        stop = PREFIX_BYTES + int.from_bytes(buffer[1:5])
        if stop > limit + PREFIX_BYTES:
            raise too_large(limit)
        if len(buffer) < stop:
            break
        data = bytes(buffer[PREFIX_BYTES:stop])
        found.append(data if buffer[0] == 0 else decompress(buffer[0], data, encoding, limit))
        del buffer[:stop]
    return found


def decompress(flag: int, data: bytes, encoding: str, limit: int) -> bytes:
    """Return a message decompressed; at most `limit + 1` bytes are produced."""
    if flag != 1:
        raise MessageError(INTERNAL, f"a message cannot begin with the flag {flag}")
    if encoding == "identity":
        raise MessageError(INTERNAL, "a message is packed, and grpc-encoding does not say how")
    bits = ZLIB_WBITS.get(encoding)
    if bits is None:
        raise UnknownEncodingError(UNIMPLEMENTED, f"grpc-encoding {encoding[:40]!r} is not known here")
    decompressor = zlib.decompressobj(bits)
    try:
        message = decompressor.decompress(data, limit + 1)
    except zlib.error:
        raise MessageError(INTERNAL, f"a message is packed, and not by {encoding}") from None
    if len(message) > limit:
        raise too_large(limit)
    if not decompressor.eof:
        raise MessageError(INTERNAL, "a packed message is cut off")
    return message


def too_large(limit: int) -> MessageError:
    """Return the error of an oversized message."""
    return MessageError(INVALID_ARGUMENT, f"a message has more than {limit} bytes, which is all that the broker takes")
