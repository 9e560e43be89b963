"""List every section and key with what people need to know of them; the docs and the starter file are made of this."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from ister.config.keys import note_of
from ister.config.models import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

PLACES = {
    "wal_cloud.wal.dir",
    "wal_cloud.cloud.root",
    "wal_cloud.metadata.sqlite_path",
    "storage.iceberg_config.catalog.uri",
    "storage.iceberg_config.catalog.warehouse",
}
"""The keys whose defaults follow --data-dir."""


class KeyDoc(NamedTuple):
    """One key: its default and an example as YAML (empty: none), what it does, what it takes."""

    name: str
    path: str
    default: str
    example: str
    what: str
    allowed: str


class SectionDoc(NamedTuple):
    """One section; `inner` are the sections in it."""

    path: str
    what: str
    keys: tuple[KeyDoc, ...]
    inner: tuple[SectionDoc, ...]


def whole_file() -> SectionDoc:
    """Describe everything that a file may say."""
    return _section(Config, "")


def every_section(section: SectionDoc) -> Iterator[SectionDoc]:
    """Return a section and all below it, in the order of the file."""
    yield section
    for inner in section.inner:
        yield from every_section(inner)


def _section(model: type[BaseModel], path: str) -> SectionDoc:
    keys, inner = [], []
    for name, field in model.model_fields.items():
        below = f"{path}.{name}".lstrip(".")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner.append(_section(field.annotation, below))
        else:
            keys.append(_key(name, below, field))
    return SectionDoc(path, (model.__doc__ or "").strip(), tuple(keys), tuple(inner))


def _key(name: str, path: str, field: FieldInfo) -> KeyDoc:
    note = note_of(field)
    allowed = note.allowed or _allowed(field)
    if note.backends:
        allowed = f"{allowed}; with {', '.join(note.backends)}"
    return KeyDoc(name, path, _yaml(field.default), _example(note.example), field.description or "", allowed)


def _allowed(field: FieldInfo) -> str:
    kind = next(part for part in (get_args(field.annotation) or (field.annotation,)) if part is not NoneType)
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    if kind is bool:
        return "true, false"
    if kind in {int, float}:
        low = next((f"from {rule.ge:,}" for rule in field.metadata if hasattr(rule, "ge")), "")
        low = low or next((f"more than {rule.gt:,}, up" for rule in field.metadata if hasattr(rule, "gt")), "")
        high = next(f"to {rule.le:,}" for rule in field.metadata if hasattr(rule, "le"))
        return f"{'a whole number' if kind is int else 'a number'}, {low} {high}"
    return "text"


def _example(text: str) -> str:
    return text if text.isdigit() or not text else f'"{text}"'


def _yaml(value: object) -> str:
    match value:
        case None | {}:
            return ""
        case tuple():
            return f"[{', '.join(_yaml(item) for item in value)}]"
        case bool():
            return "true" if value else "false"
        case Path():
            return f'"./{value}"'
        case str():
            return f'"./{value}"' if value.startswith("danube-data/") else f'"{value}"'
    return str(value)
