"""Reads of stdin that Ctrl-C interrupts.

gRPC has threads of its own. A signal that the kernel delivers to one of them does not interrupt a read in the main thread,
where alone Python handles it: without polling, Ctrl-C would wait for the next line.
"""

from __future__ import annotations

import io
import select
import sys
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_S = 0.2
CHUNK_BYTES = 65_536


def lines() -> Iterator[bytes]:
    """Yield each line without its newline; the last one may have none."""
    stream = cast("io.BufferedReader", sys.stdin.buffer)
    begun = bytearray()
    while _wait(stream) and (chunk := stream.read1(CHUNK_BYTES)):
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            begun += part
            yield bytes(begun)
            begun.clear()
        begun += rest
    if begun:
        yield bytes(begun)


def answer() -> str:
    """Return one line that the user types."""
    _wait(sys.stdin.buffer)
    return sys.stdin.readline()


def _wait(stream: BinaryIO) -> bool:
    """Wait until stdin is readable or at its end."""
    try:
        number = stream.fileno()
    except io.UnsupportedOperation:
        return True  # a stream in memory, in tests
    while not select.select([number], [], [], POLL_S)[0]:
        pass
    return True
