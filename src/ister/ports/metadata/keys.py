"""What is a key, a range of keys and a value, the same for every metadata store."""

from __future__ import annotations

from ister.core.errors import InvalidMessageError

VALUE_BYTES_MAX = 1_500_000
"""etcd takes requests of 1.5 MiB; the others keep to it, so that what works embedded works in a cluster."""


def key_bytes(key: str) -> bytes:
    """Return a key as it is stored: bytes order as text does."""
    assert key.startswith("/"), f"keys begin with /, not {key[:80]!r}"
    return key.encode()


def check_value(key: str, value: bytes) -> None:
    """Raise unless every store can hold this value."""
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidMessageError(
            "metadata value", f"of {key} has {len(value)} bytes; a metadata store takes at most {VALUE_BYTES_MAX}"
        )


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key behind every key that begins with `prefix`.

    There always is one: our prefixes begin with `/`, and UTF-8 has no byte 0xFF.
    """
    return prefix[:-1] + bytes([prefix[-1] + 1])


def key_range(prefix: str, start: str, *, reverse: bool) -> tuple[bytes, bytes]:
    """Return the keys [first, stop) that `Metadata.list` means."""
    low = key_bytes(prefix)
    stop = after_prefix(low)
    if not start:
        return low, stop
    edge = key_bytes(start)
    return (low, min(stop, edge + b"\0")) if reverse else (max(low, edge), stop)
