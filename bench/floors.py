"""Floors: the simplest loops that process the same bytes. Imports nothing of ister."""

from __future__ import annotations

import os
import struct
import time
import zlib
from typing import TYPE_CHECKING

import opendal

if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD = struct.Struct("<QI")
CRC = struct.Struct("<I")
BODY = struct.Struct("<BBHIqQQQQHHHHII")
FRAME_HEAD = struct.Struct("<QII")


def write(path: str, payloads: list[bytes], names: tuple[bytes, bytes]) -> float:
    """Pack each payload as one frame with struct, checksum header and body, one os.write per MiB; return seconds."""
    name, addr = names
    text = name + addr
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    began = time.perf_counter()
    crc32, pack_head, pack_crc, pack_body = zlib.crc32, HEAD.pack, CRC.pack, BODY.pack
    frames: list[bytes] = []
    size = 0
    for offset, payload in enumerate(payloads):
        body = pack_body(1, 1, 0, 0, 1_800_000_000_000_000, 1_700_000_000_000, 7, offset, 0, len(name), len(addr), 0, 0, 0, len(payload)) + text + payload  # fmt: skip
        head = pack_head(offset, len(body))
        frames.append(head + pack_crc(crc32(body, crc32(head))) + body)
        size += 16 + len(body)
        if size >= 1 << 20:
            os.write(fd, b"".join(frames))
            frames.clear()
            size = 0
    if frames:
        os.write(fd, b"".join(frames))
    spent = time.perf_counter() - began
    os.close(fd)
    return spent


def scan(data: bytes) -> tuple[float, int]:
    """Walk frames: struct unpack of the header, one zlib.crc32 over the body; return seconds and frames."""
    began = time.perf_counter()
    unpack, crc32 = FRAME_HEAD.unpack_from, zlib.crc32
    view = memoryview(data)
    at = count = 0
    stop = len(data)
    while at < stop:
        _, length, _ = unpack(data, at)
        crc32(view[at + 16 : at + 16 + length])
        at += 16 + length
        count += 1
    return time.perf_counter() - began, count


def sync(path: str, frame: bytes, count: int) -> float:
    """Write one frame and fdatasync, repeatedly; return seconds."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    began = time.perf_counter()
    for _ in range(count):
        os.write(fd, frame)
        os.fdatasync(fd)
    spent = time.perf_counter() - began
    os.close(fd)
    return spent


def put(root: str, objects: Iterable[tuple[str, bytes]]) -> float:
    """Write each object with OpenDAL alone, then sync the file and its directory; return seconds."""
    operator = opendal.Operator("fs", root=root)
    spent = 0.0
    for name, data in objects:
        began = time.perf_counter()
        operator.write(name, data)
        path = os.path.join(root, name)  # noqa: PTH118  # as plain as can be
        _sync(path, os.O_RDWR)
        _sync(os.path.dirname(path), os.O_DIRECTORY)  # noqa: PTH120  # the same
        spent += time.perf_counter() - began
    return spent


def _sync(path: str, flags: int) -> None:
    fd = os.open(path, flags)
    os.fsync(fd)
    os.close(fd)
