"""Small JSON files with a checksum: the first line is the CRC of the second."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32


def seal(content: Any) -> bytes:
    """Return the file's bytes."""
    body = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x\n%s\n" % (crc32(body), body)


def unseal(data: bytes) -> Any:
    """Return what was sealed; ValueError when the bytes are not what `seal` wrote."""
    crc, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if crc != b"%08x" % crc32(body) or body == rest:
        raise ValueError("the checksum does not match")
    return json.loads(body)
