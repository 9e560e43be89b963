"""Decide which partition a key belongs to; every producer of ours must come to the same answer."""

_UINT64 = (1 << 64) - 1


def fnv1a(data: bytes) -> int:
    """Return the FNV-1a hash of 64 bits."""
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 & _UINT64
    return found
