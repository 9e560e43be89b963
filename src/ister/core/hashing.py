"""FNV-1a, the hash of routing keys; producers and brokers must compute the same value."""

_UINT64 = (1 << 64) - 1


def fnv1a(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash."""
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 & _UINT64
    return found
