"""HPACK header blocks (RFC 7541) of requests and responses.

After its first calls a client's blocks consist of a few indices into the dynamic table. Such a block is decoded once and
cached by its bytes until the table changes. Responses do not use the dynamic table, so their headers are constants.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from ister.transport.http2.frames import BrokenProtocolError, Code

LIST_BYTES_MAX: Final = 16 * 1024
"""SETTINGS_MAX_HEADER_LIST_SIZE: twice gRPC's usual limit."""
LIST_BYTES_READ: Final = 4 * LIST_BYTES_MAX
"""Size up to which an oversized list is decoded, to keep the table in sync; a longer one ends the connection."""
BLOCKS_KNOWN_MAX: Final = 64
BLOCK_KNOWN_BYTES_MAX: Final = 1024
FIELDS_KNOWN_MAX: Final = 32
FIELDS_KNOWN_BYTES_MAX: Final = 2048
"""Limits of cached blocks, encoded and decoded: the client decides how much is sent."""
RESOURCE_EXHAUSTED: Final = 8
INTERNAL: Final = 13

_ENTRY_BYTES: Final = 32
"""Overhead of a field by RFC 7541, section 4.1."""
_NAME: Final = re.compile(rb"[!-@\[-~]*")
"""Visible characters without capital letters."""
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters of grpc-message that are not percent-encoded."""


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The decoded headers of a call, shared by calls with the same block."""

    method: str
    path: str
    content_type: str
    encoding: str
    timeout_s: float | None
    fields: tuple[tuple[bytes, bytes], ...]
    """As received; entries of the dynamic table are shared between requests."""
    problem: str = ""
    problem_code: int = INTERNAL
    is_call: bool = True
    """Whether it is a gRPC call."""

    def header(self, key: str) -> str | None:
        """Return the first value of a key as text; binary values are decoded first."""
        wanted = key.encode()
        for name, value in self.fields:
            if name == wanted:
                text = value.decode(errors="replace")
                return _text_of_binary(text) if key.endswith("-bin") else text
        return None


class HeaderDecoder:
    """Decodes the blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._table = _Table()
        self._decoder = Decoder(max_header_list_size=LIST_BYTES_READ)
        self._decoder.header_table = self._table
        self._known: dict[bytes, RequestHeaders] = {}
        self._changes = 0

    def decode(self, block: bytes) -> RequestHeaders:
        """Return the decoded block; raise BrokenProtocolError if it is invalid, because the table is then out of sync."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            fields = tuple((bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise BrokenProtocolError(
                Code.COMPRESSION_ERROR, f"headers cannot be read: {type(error).__name__}"
            ) from None
        size = sum(len(name) + len(value) for name, value in fields)
        is_too_long = size + _ENTRY_BYTES * len(fields) > LIST_BYTES_MAX
        request = _too_long(fields) if is_too_long else _request(fields)
        if self._table.changes != self._changes:
            self._changes = self._table.changes
            self._known.clear()
        elif (
            len(block) <= BLOCK_KNOWN_BYTES_MAX
            and size < FIELDS_KNOWN_BYTES_MAX
            and len(fields) <= FIELDS_KNOWN_MAX
            and not request.problem
        ):
            if len(self._known) >= BLOCKS_KNOWN_MAX:
                self._known.clear()  # frequent blocks are soon cached again
            self._known[bytes(block)] = request
        return request


class _Table(HeaderTable):
    """A dynamic table that counts its changes."""

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


def _request(fields: tuple[tuple[bytes, bytes], ...]) -> RequestHeaders:
    found: dict[bytes, bytes] = {}
    problem = ""
    plain = False
    for name, value in fields:
        if name.startswith(b":"):
            if plain or name in found:
                problem = f"{name[:40].decode(errors='replace')} is out of place"
        else:
            plain = True
            if _NAME.fullmatch(name) is None:
                problem = "a name of a header has capital letters, or what cannot be seen"
        found.setdefault(name, value)
    timeout_s = None
    if b"grpc-timeout" in found:
        timeout = found[b"grpc-timeout"].decode(errors="replace")
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            problem = problem or f"grpc-timeout {timeout[:20]!r} is no time"
        else:
            timeout_s = int(match[1]) * _SECONDS[match[2]]
    method = found.get(b":method", b"").decode(errors="replace")
    content_type = found.get(b"content-type", b"").decode(errors="replace")
    return RequestHeaders(
        method=method,
        path=found.get(b":path", b"").decode(errors="replace"),
        content_type=content_type,
        encoding=found.get(b"grpc-encoding", b"identity").decode(errors="replace"),
        timeout_s=timeout_s,
        fields=fields,
        problem=problem,
        is_call=method == "POST" and (content_type + "+").startswith(("application/grpc+", "application/grpc;")),
    )


def _too_long(fields: tuple[tuple[bytes, bytes], ...]) -> RequestHeaders:
    """Return a request that only says that it cannot be served."""
    request = _request(tuple(field for field in fields if field[0] in {b":method", b"content-type"}))
    text = f"the headers of this call have more than {LIST_BYTES_MAX} bytes, which is all that the broker takes"
    return replace(
        request,
        method=request.method[:40],
        content_type=request.content_type[:40],
        fields=(),
        problem=text,
        problem_code=RESOURCE_EXHAUSTED,
    )


def _text_of_binary(value: str) -> str:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4)).decode(errors="replace")
    except (binascii.Error, ValueError):
        return value


# --- responses --------------------------------------------------------------------------------------------------------


def literal(name: str, value: str) -> bytes:
    """Return a literal header field without indexing."""
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
"""`:status 200` is entry 8 of the static table."""
START: Final = STATUS_200 + literal("content-type", "application/grpc")
ENCODINGS: Final = ("grpc-accept-encoding", "identity,deflate,gzip")
"""The supported encodings, for a client that used another."""
NO_TABLE: Final = b"\x20"
"""Dynamic table size update to 0, required after the peer has reduced the table size."""
END_OK: Final = literal("grpc-status", "0")


def end(code: int, text: str = "", trail: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return the trailers of a call."""
    block = END_OK if code == 0 else literal("grpc-status", str(code))
    if text:
        block += literal("grpc-message", quote(text, safe=_PRINTABLE))
    for name, value in trail:
        block += literal(name, value)
    return block


def refusal(status: int) -> bytes:
    """Return the headers that refuse a request that is no gRPC call."""
    return literal(":status", str(status))
