"""Decide which names clients may give to producers, consumers and subscriptions."""

from __future__ import annotations

from ister.core.errors import InvalidRequestError

NAME_CHARS_MAX = 255


def check_name(field: str, name: str) -> None:
    """Refuse a name that is empty, too long, or has characters that no log line should have."""
    if not name:
        raise InvalidRequestError(f"{field} is missing")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidRequestError(f"{field} has {len(name)} characters, more than {NAME_CHARS_MAX}")
    if not name.isprintable():
        raise InvalidRequestError(f"{field} has characters that cannot be printed")
