"""Which keys an object may have: those that every store, every file system and every listing takes alike."""

from __future__ import annotations

from ister.core.errors import StoreRefusedError

KEY_BYTES_MAX = 1024


def check_key(store: str, key: str) -> str:
    """Return the key, or raise StoreRefusedError; no store is asked."""
    reason = key_fault(key)
    if reason:
        raise StoreRefusedError(store, f"use the key {key[:80]!r}", reason)
    return key


def check_prefix(store: str, prefix: str) -> str:
    """Return what keys may begin with, or raise StoreRefusedError; it may end within a name or behind a slash."""
    reason = key_fault(prefix.removesuffix("/")) if prefix else ""
    if reason:
        raise StoreRefusedError(store, f"list {prefix[:80]!r}", reason)
    return prefix


def key_fault(key: str) -> str:
    """Say what is wrong with a key; empty when nothing is."""
    if not key:
        return "it is empty"
    if len(key.encode(errors="replace")) > KEY_BYTES_MAX:
        return f"it has more than {KEY_BYTES_MAX} bytes"
    if not key.isprintable() or "\\" in key:
        return "it has characters that not every store takes"
    for part in key.split("/"):
        if part in {"", ".", ".."}:
            return "it has an empty part, '.' or '..' between its slashes"
        # OpenDAL trims a key's ends, so such a key would be another object's.
        if part != part.strip():
            return "it has a part that begins or ends with a space"
    return ""
