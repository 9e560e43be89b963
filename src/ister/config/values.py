"""The effective values with their origins, secrets redacted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, SecretStr

from ister.config.validators import looks_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.config.load import Loaded, Origin

HIDDEN = "***"

Shown = str | int | float | bool | list[str] | None
"""A redacted value."""


class Value(NamedTuple):
    """One setting; a secret is shown as `***`."""

    key: str
    shown: Shown
    origin: Origin
    is_secret: bool


def values(loaded: Loaded) -> list[Value]:
    """Return every setting in the order of the models."""
    return [
        Value(key, shown, loaded.origin(key), is_secret) for key, shown, is_secret in _walk(loaded.config, "")
    ]  # fmt: skip


def _walk(section: BaseModel, prefix: str) -> Iterator[tuple[str, Shown, bool]]:
    for name in type(section).model_fields:
        value, key = getattr(section, name), f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from _walk(value, f"{key}.")
        elif isinstance(value, Mapping):
            yield from _options(value, key)
        elif isinstance(value, SecretStr):
            yield key, HIDDEN, True
        else:
            yield key, _plain(value), False


def _options(options: Mapping[str, SecretStr], key: str) -> Iterator[tuple[str, Shown, bool]]:
    for name, value in options.items():
        text = value.get_secret_value()
        secret = looks_secret(name, text)
        yield f"{key}.{name}", HIDDEN if secret else text, secret


def _plain(value: object) -> Shown:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [str(item) for item in value]
        case Path():
            return str(value)
    raise AssertionError(type(value))  # a new type of setting: define how it is redacted
