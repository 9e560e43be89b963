"""Frame format of messages and markers (docs/format.md shows every byte).

    [u64 offset][u32 len][u32 crc32][len bytes of body]        little-endian

The CRC covers offset, length and body. A body starts with a kind and a version byte. A message takes an offset; a
marker takes none and attests what was on disk before it was written (docs/adr/0002).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING
from zlib import crc32

from ister.core.errors import CorruptLogError, InvalidMessageError, UnknownFormatError
from ister.core.message import NO_ATTRIBUTES, MsgID, StreamMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HEADER = Struct("<QII")
"""offset, len, crc32."""
HEADER_BYTES = HEADER.size
BODY_BYTES_MAX = 64 * 1024 * 1024
"""The format's limit on len; a longer length is damage, refused before anything is allocated."""
FRAME_BYTES_MAX = HEADER_BYTES + BODY_BYTES_MAX

KIND_MESSAGE = 1
KIND_MARKER = 2
VERSION = 1

FIXED = Struct("<BBHIqQQQQHHHHII")
"""kind, version, flags, schema_version, append_time_us, publish_time, producer_id, request_id, schema_id,
producer_name bytes, broker_addr bytes, routing_key bytes, attribute count, attribute bytes, payload bytes."""
FIXED_BYTES = FIXED.size
FLAG_SCHEMA_ID = 1
FLAG_SCHEMA_VERSION = 2
FLAG_ROUTING_KEY = 4

MARKER = Struct("<8sQQQQ")
"""magic (kind and version are its first two bytes), nonce, own byte position, synced offset, synced byte position."""
MARKER_MAGIC = bytes((KIND_MARKER, VERSION)) + b"marker"
MARKER_FRAME_BYTES = HEADER_BYTES + MARKER.size

_COVERED = Struct("<QI")
_WHOLE = Struct("<QII" + FIXED.format.removeprefix("<"))
_ATTRIBUTE = Struct("<HI")
_TEXT_BYTES_MAX = 0xFFFF


@dataclass(frozen=True, slots=True)
class Marker:
    """Bytes [0, synced_pos) of this file, and all offsets below synced_offset, were on disk when this was written."""

    nonce: int
    at: int
    synced_offset: int
    synced_pos: int


def encode_message(message: StreamMessage, offset: int, append_time_us: int) -> bytes:
    """Return one whole frame."""
    head, payload = encode_unsealed(message, offset, append_time_us)
    body = head[HEADER_BYTES:] + payload
    return HEADER.pack(offset, len(body), crc32(body, crc32(head[:12]))) + body


def encode_marker(marker: Marker, next_offset: int) -> bytes:
    """Return one whole marker frame; its offset field is the next message's."""
    body = MARKER.pack(MARKER_MAGIC, marker.nonce, marker.at, marker.synced_offset, marker.synced_pos)
    return HEADER.pack(next_offset, len(body), crc32(body, crc32(_COVERED.pack(next_offset, len(body))))) + body


def encode_unsealed(message: StreamMessage, offset: int, append_time_us: int) -> tuple[bytes, bytes]:
    """Return a frame without its CRC, in two pieces: everything before the payload, and the payload.

    `kernels.seal` fills in the CRCs of a whole run of such frames at once, which costs a third of calling zlib here.
    """
    (
        payload,
        (producer_id, _, broker_addr, _),
        request_id,
        publish_time,
        producer_name,
        _,
        attributes,
        schema_id,
        schema_version,
        routing_key,
        _,
    ) = message
    flags = 0
    try:
        if type(payload) is not bytes:
            raise InvalidMessageError("payload", f"must be bytes, not {type(payload).__name__}")  # one way out
        names = producer_name.encode() + broker_addr.encode()
        name_bytes = len(producer_name) if producer_name.isascii() else len(producer_name.encode())
        addr_bytes = len(names) - name_bytes
        route_bytes = attribute_bytes = 0
        if routing_key is not None:
            flags = FLAG_ROUTING_KEY
            route = routing_key.encode()
            route_bytes = len(route)
            names += route
        if attributes:
            encoded = _encode_attributes(attributes)
            attribute_bytes = len(encoded)
            names += encoded
        if schema_id is None:
            schema_id = 0
        else:
            flags |= FLAG_SCHEMA_ID
        if schema_version is None:
            schema_version = 0
        else:
            flags |= FLAG_SCHEMA_VERSION
        payload_bytes = len(payload)
        body_bytes = FIXED_BYTES + len(names) + payload_bytes
        head = _WHOLE.pack(
            offset, body_bytes, 0, KIND_MESSAGE, VERSION, flags, schema_version, append_time_us, publish_time, producer_id,
            request_id, schema_id, name_bytes, addr_bytes, route_bytes, len(attributes), attribute_bytes, payload_bytes,
        )  # fmt: skip
    except (struct_error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise _explain(message, error) from None
    if body_bytes > BODY_BYTES_MAX:
        raise InvalidMessageError("size", f"is {body_bytes} bytes encoded, more than {BODY_BYTES_MAX}")
    return head + names, payload


def encode_batch(messages: Sequence[StreamMessage], offset: int, append_time_us: int) -> list[bytes]:
    """Return the unsealed pieces of a run of frames, two a message, offsets counting up from `offset`.

    The common message (bytes payload, no attributes, the same producer as the one before) takes a short path; any
    other goes through `encode_unsealed`. Both write the same bytes.
    """
    pieces: list[bytes] = []
    add = pieces.append
    pack = _WHOLE.pack
    last_name = last_addr = None
    names = b""
    name_bytes = addr_bytes = 0
    for message in messages:
        (
            payload,
            (producer_id, _, broker_addr, _),
            request_id,
            publish_time,
            producer_name,
            _,
            attributes,
            schema_id,
            schema_version,
            routing_key,
            _,
        ) = message
        if (
            type(payload) is not bytes
            or attributes
            or schema_id is not None
            or schema_version is not None
            or routing_key is not None
            or len(payload) > 1_000_000
        ):
            pieces += encode_unsealed(message, offset, append_time_us)
            offset += 1
            continue
        payload_bytes = len(payload)
        try:
            if producer_name is not last_name or broker_addr is not last_addr:
                name, addr = producer_name.encode(), broker_addr.encode()
                name_bytes, addr_bytes = len(name), len(addr)
                names = name + addr
                last_name, last_addr = producer_name, broker_addr
            add(
                pack(
                    offset, FIXED_BYTES + name_bytes + addr_bytes + payload_bytes, 0, KIND_MESSAGE, VERSION, 0, 0,
                    append_time_us, publish_time, producer_id, request_id, 0, name_bytes, addr_bytes, 0, 0, 0, payload_bytes,
                ) + names
            )  # fmt: skip
        except (struct_error, AttributeError, UnicodeEncodeError) as error:
            raise _explain(message, error) from None
        add(payload)
        offset += 1
    return pieces


def decode_body(body: bytes | memoryview, offset: int, topic_name: str) -> StreamMessage:
    """Rebuild a message from a body whose CRC was checked; raises ValueError when its lengths do not add up."""
    if len(body) < FIXED_BYTES:
        raise ValueError("the body is shorter than its fixed part")
    (
        _, _, flags, schema_version, append_time_us, publish_time, producer_id, request_id, schema_id,
        name_bytes, addr_bytes, route_bytes, count, attribute_bytes, payload_bytes,
    ) = FIXED.unpack_from(body)  # fmt: skip
    if FIXED_BYTES + name_bytes + addr_bytes + route_bytes + attribute_bytes + payload_bytes != len(body):
        raise ValueError("the lengths in the body do not add up to its length")
    view = memoryview(body)
    name_at = FIXED_BYTES
    addr_at = name_at + name_bytes
    route_at = addr_at + addr_bytes
    attributes_at = route_at + route_bytes
    payload_at = attributes_at + attribute_bytes
    return StreamMessage(
        payload=bytes(view[payload_at:]),
        msg_id=MsgID(producer_id, topic_name, str(view[addr_at:route_at], "utf-8"), offset),
        request_id=request_id,
        publish_time=publish_time,
        producer_name=str(view[name_at:addr_at], "utf-8"),
        attributes=decode_attributes(view[attributes_at:payload_at], count),
        schema_id=schema_id if flags & FLAG_SCHEMA_ID else None,
        schema_version=schema_version if flags & FLAG_SCHEMA_VERSION else None,
        routing_key=str(view[route_at:attributes_at], "utf-8") if flags & FLAG_ROUTING_KEY else None,
        append_time_us=append_time_us,
    )


def decode_attributes(view: bytes | memoryview, count: int) -> Mapping[str, str]:
    """Rebuild the attributes; raises ValueError when they do not fill their bytes exactly."""
    if not count and not len(view):
        return NO_ATTRIBUTES
    attributes: dict[str, str] = {}
    at = 0
    for _ in range(count):
        if at + _ATTRIBUTE.size > len(view):
            raise ValueError("the attributes run past their bytes")
        key_bytes, value_bytes = _ATTRIBUTE.unpack_from(view, at)
        at += _ATTRIBUTE.size
        key = str(view[at : at + key_bytes], "utf-8")
        at += key_bytes
        attributes[key] = str(view[at : at + value_bytes], "utf-8")
        at += value_bytes
    if at != len(view):
        raise ValueError("the attributes do not fill their bytes")
    return attributes


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame and where it stood; `content` is what its body means."""

    at: int
    offset: int
    length: int
    crc: int
    content: StreamMessage | Marker


class FrameDecoder:
    """Take bytes as they come, give back whole frames in order; stops at the first byte it cannot trust.

    It holds at most one unfinished frame, and refuses an absurd length before waiting for it.
    """

    def __init__(self, source: str, *, first_offset: int | None = None, at: int = 0, topic_name: str = "") -> None:
        self._source = source
        self._expected = first_offset
        self._at = at
        self._topic_name = topic_name
        self._held = bytearray()

    @property
    def at(self) -> int:
        """The position behind the last whole frame."""
        return self._at

    @property
    def held(self) -> int:
        """The number of buffered bytes of an unfinished frame."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that is whole now; CorruptLogError names the first byte that cannot be one."""
        self._held += data
        done = 0
        try:
            while len(self._held) - done >= HEADER_BYTES:
                offset, length, crc = HEADER.unpack_from(self._held, done)
                if not 1 <= length <= BODY_BYTES_MAX:
                    raise self._corrupt(f"a length of {length} is not possible")
                stop = done + HEADER_BYTES + length
                if len(self._held) < stop:
                    return
                body = bytes(self._held[done + HEADER_BYTES : stop])
                if crc32(body, crc32(_COVERED.pack(offset, length))) != crc:
                    raise self._corrupt("the checksum does not match")
                content = self._content(body, offset)
                if self._expected is not None and offset != self._expected:
                    raise self._corrupt(f"the frame has offset {offset}")
                yield Frame(self._at, offset, HEADER_BYTES + length, crc, content)
                done = stop
                self._at += HEADER_BYTES + length
                self._expected = offset + isinstance(content, StreamMessage)
        finally:
            del self._held[:done]

    def _content(self, body: bytes, offset: int) -> StreamMessage | Marker:
        kind, version = body[0], body[1] if len(body) > 1 else 0
        if version != VERSION or kind not in {KIND_MESSAGE, KIND_MARKER}:
            raise UnknownFormatError(self._source, self._at, kind, version)
        try:
            if kind == KIND_MARKER:
                return decode_marker(body)
            return decode_body(body, offset, self._topic_name)
        except ValueError as error:
            raise self._corrupt(str(error)) from None

    def _corrupt(self, reason: str) -> CorruptLogError:
        return CorruptLogError(self._source, self._at, -1 if self._expected is None else self._expected, reason)


def decode_marker(body: bytes | memoryview) -> Marker:
    """Rebuild a marker from a body whose CRC was checked."""
    if len(body) != MARKER.size or bytes(body[:8]) != MARKER_MAGIC:
        raise ValueError("the marker does not have a marker's form")
    _, nonce, at, synced_offset, synced_pos = MARKER.unpack(body)
    return Marker(nonce, at, synced_offset, synced_pos)


def _encode_attributes(attributes: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for key, value in attributes.items():
        raw_key, raw_value = key.encode(), value.encode()
        parts += (_ATTRIBUTE.pack(len(raw_key), len(raw_value)), raw_key, raw_value)
    return b"".join(parts)


def _explain(message: StreamMessage, error: Exception) -> InvalidMessageError:
    """Find the field that could not be packed; called only after packing failed, so it may take its time."""
    for field, value in (
        ("producer_name", message.producer_name),
        ("broker_addr", message.msg_id.broker_addr),
        ("routing_key", message.routing_key),
    ):
        if value is None and field == "routing_key":
            continue
        if not isinstance(value, str):
            return InvalidMessageError(field, f"must be text, not {type(value).__name__}")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            return InvalidMessageError(field, "is not valid Unicode text")
        if size > _TEXT_BYTES_MAX:
            return InvalidMessageError(field, f"has {size} bytes, more than {_TEXT_BYTES_MAX}")
    for field, number, limit in (
        ("msg_id.producer_id", message.msg_id.producer_id, 2**64),
        ("request_id", message.request_id, 2**64),
        ("publish_time", message.publish_time, 2**64),
        ("schema_id", message.schema_id, 2**64),
        ("schema_version", message.schema_version, 2**32),
    ):
        if number is not None and not (isinstance(number, int) and 0 <= number < limit):
            return InvalidMessageError(field, f"must be a whole number from 0 to {limit - 1}")
    if len(message.payload) > BODY_BYTES_MAX:
        return InvalidMessageError("payload", f"has {len(message.payload)} bytes, more than {BODY_BYTES_MAX}")
    return InvalidMessageError(
        "attributes",
        f"cannot be stored: {error} (at most {_TEXT_BYTES_MAX}, keys up to {_TEXT_BYTES_MAX} bytes, all text)",
    )
