"""gRPC's messages in a stream of bytes: a flag, a length, the message."""

from __future__ import annotations

import zlib
from typing import Final

PREFIX_BYTES: Final = 5
PACKINGS: Final = {"gzip": 31, "deflate": 15}
"""How zlib is to read each."""


class MessageError(Exception):
    """These bytes are no messages that we can read; `code` is gRPC's number for why."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


class UnknownPackingError(MessageError):
    """A message is packed in a way that we cannot read; the client wants to hear what we can."""


UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
INVALID_ARGUMENT: Final = 3


def only_message(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the one message of a request."""
    size = len(body) - PREFIX_BYTES
    if size < 0 or int.from_bytes(body[1:5]) != size:
        raise MessageError(UNIMPLEMENTED, "this method takes exactly one message")
    return body[PREFIX_BYTES:] if body[0] == 0 else unpack(body[0], body[PREFIX_BYTES:], encoding, limit)


def take_messages(buffer: bytearray, encoding: str, limit: int) -> list[bytes]:
    """Return the messages that are complete, and leave the rest."""
    found = []
    while len(buffer) >= PREFIX_BYTES:
        stop = PREFIX_BYTES + int.from_bytes(buffer[1:5])
        if stop > limit + PREFIX_BYTES:
            raise too_large(limit)
        if len(buffer) < stop:
            break
        data = bytes(buffer[PREFIX_BYTES:stop])
        found.append(data if buffer[0] == 0 else unpack(buffer[0], data, encoding, limit))
        del buffer[:stop]
    return found


def unpack(flag: int, data: bytes, encoding: str, limit: int) -> bytes:
    """Return a packed message as it was; never more than `limit` of it is made."""
    if flag != 1:
        raise MessageError(INTERNAL, f"a message cannot begin with the flag {flag}")
    if encoding == "identity":
        raise MessageError(INTERNAL, "a message is packed, and grpc-encoding does not say how")
    bits = PACKINGS.get(encoding)
    if bits is None:
        raise UnknownPackingError(UNIMPLEMENTED, f"grpc-encoding {encoding[:40]!r} is not known here")
    unpacker = zlib.decompressobj(bits)
    try:
        message = unpacker.decompress(data, limit + 1)
    except zlib.error:
        raise MessageError(INTERNAL, f"a message is packed, and not by {encoding}") from None
    if len(message) > limit:
        raise too_large(limit)
    if not unpacker.eof:
        raise MessageError(INTERNAL, "a packed message is cut off")
    return message


def too_large(limit: int) -> MessageError:
    """Return the error of a message that is not even read."""
    return MessageError(INVALID_ARGUMENT, f"a message has more than {limit} bytes, which is all that the broker takes")
