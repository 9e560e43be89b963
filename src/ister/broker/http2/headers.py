"""Headers of requests and of answers.

A client repeats itself: after its first calls every block of headers is a few numbers of entries that both ends remember.
Such a block is decoded once and then known by its bytes, until the entries change. What we send is written without the
common memory (HPACK leaves that to the sender), so that an answer's headers are constants.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from ister.broker.http2.frames import BrokenProtocolError, Code

LIST_BYTES_MAX: Final = 16 * 1024
"""What all headers of a request may take: more than any client sends, and gRPC's usual limit twice."""
BLOCKS_KNOWN_MAX: Final = 256
BLOCK_KNOWN_BYTES_MAX: Final = 1024
"""What repeats itself is short; what is longer is not kept, because a client decides how much that is."""

_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""What stands for itself in grpc-message; the rest is written as %XX."""


@dataclass(frozen=True, slots=True)
class Request:
    """The headers of a call, read once for all calls that have the same."""

    method: str
    path: str
    content_type: str
    encoding: str
    timeout_s: float | None
    fields: tuple[tuple[str, str], ...]
    problem: str = ""

    def header(self, key: str) -> str | None:
        """Return the first value of this key, what is binary as text as far as it is text."""
        for name, value in self.fields:
            if name == key:
                return _text_of_binary(value) if name.endswith("-bin") else value
        return None


class RequestHeaders:
    """Decodes the blocks of one connection, in the order in which they come."""

    def __init__(self) -> None:
        self._table = _Table()
        self._decoder = Decoder(max_header_list_size=LIST_BYTES_MAX)
        self._decoder.header_table = self._table
        self._known: dict[bytes, Request] = {}
        self._changes = 0

    def decode(self, block: bytes) -> Request:
        """Return what a block says; BrokenProtocolError when it is none, because the next cannot be read then."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            fields = tuple((str(name), str(value)) for name, value in self._decoder.decode(block))
        except (HPACKError, UnicodeDecodeError) as error:
            raise BrokenProtocolError(
                Code.COMPRESSION_ERROR, f"headers cannot be read: {type(error).__name__}"
            ) from None
        request = _request(fields)
        if self._table.changes != self._changes:
            self._changes = self._table.changes
            self._known.clear()
        elif len(block) <= BLOCK_KNOWN_BYTES_MAX:
            if len(self._known) >= BLOCKS_KNOWN_MAX:
                self._known.clear()  # most were seen once; those that come again are soon known again
            self._known[bytes(block)] = request
        return request


class _Table(HeaderTable):
    """The memory that both ends share, which tells when it changes."""

    changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return HeaderTable.maxsize.fget(self)  # type: ignore[no-any-return, attr-defined]

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.fset(self, size)  # type: ignore[attr-defined]


def _request(fields: tuple[tuple[str, str], ...]) -> Request:
    found: dict[str, str] = {}
    problem = ""
    plain = False
    for name, value in fields:
        if name.startswith(":"):
            if plain or name in found:
                problem = f"{name[:40]} is out of place"
        else:
            plain = True
            if name != name.lower():
                problem = "a name of a header has capital letters"
        found.setdefault(name, value)
    timeout = found.get("grpc-timeout")
    timeout_s = None
    if timeout is not None:
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            problem = problem or f"grpc-timeout {timeout[:20]!r} is no time"
        else:
            timeout_s = int(match[1]) * _SECONDS[match[2]]
    return Request(
        method=found.get(":method", ""),
        path=found.get(":path", ""),
        content_type=found.get("content-type", ""),
        encoding=found.get("grpc-encoding", "identity"),
        timeout_s=timeout_s,
        fields=fields,
        problem=problem,
    )


def _text_of_binary(value: str) -> str:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4)).decode(errors="replace")
    except (binascii.Error, ValueError):
        return value


# --- what we send -----------------------------------------------------------------------------------------------------


def literal(name: str, value: str) -> bytes:
    """Return one header that nobody is asked to remember."""
    return b"\x00" + _text(name.encode()) + _text(value.encode())


def _text(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    out = bytearray((0x7F,))
    length -= 0x7F
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + text


STATUS_200: Final = b"\x88"
"""`:status 200` is entry 8 of the table that everyone has."""
START: Final = STATUS_200 + literal("content-type", "application/grpc")
ENCODINGS: Final = literal("grpc-accept-encoding", "identity,deflate,gzip")
END_OK: Final = literal("grpc-status", "0")


def end(code: int, text: str = "", trail: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return the block that ends a call."""
    block = END_OK if code == 0 else literal("grpc-status", str(code))
    if text:
        block += literal("grpc-message", quote(text, safe=_PRINTABLE))
    for name, value in trail:
        block += literal(name, value)
    return block


def refusal(status: int) -> bytes:
    """Return the block that refuses a request that is no call."""
    return literal(":status", str(status))
