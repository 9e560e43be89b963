"""The reference of every key, generated from the models: the tables of docs/config.md, and the starter file."""

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
"""The keys whose defaults depend on --data-dir."""

_STARTER_HEAD = """\
# Configuration of Ister, with every key. A line that begins with "# key:" is optional: take out the "# " to set it.
#
# ister config check FILE           is it right?
# ister config show --config FILE   what is in force, and where does each value come from?
#
# "${NAME}" in a value is taken from the environment; write secrets that way.
"""


class KeyDoc(NamedTuple):
    """One key: its default and an example as YAML (empty: none), its meaning and its allowed values."""

    name: str
    path: str
    default: str
    example: str
    what: str
    allowed: str


class SectionDoc(NamedTuple):
    """One section; `inner` are its subsections."""

    path: str
    what: str
    keys: tuple[KeyDoc, ...]
    inner: tuple[SectionDoc, ...]


def reference(page: str) -> str:
    """Return the text of docs/config.md with the tables of keys replaced by those of the models."""
    tables = "\n".join(_table(section) for section in every_section(whole_file()) if section.keys)
    head, heading, rest = page.partition("## Keys\n")
    _, next_heading, examples = rest.partition("## Examples\n")
    return f"{head}{heading}\n{tables}\n{next_heading}{examples}"


def _table(section: SectionDoc) -> str:
    heading = f"`{section.path}`" if section.path else "At the top of the file"
    head = f"### {heading}\n\n{section.what}\n\n| key | default | what it does | allowed |\n|---|---|---|---|\n"
    return head + "".join(f"| `{key.name}` | {_default(key)} | {key.what} | {key.allowed} |\n" for key in section.keys)


def _default(key: KeyDoc) -> str:
    if key.path in PLACES:
        return f"`{key.default or key.example}`, or below `--data-dir`"
    return f"`{key.default}`" if key.default else "none"


def starter() -> str:
    """Return a configuration to start from: every key with its default and its meaning."""
    lines = [_STARTER_HEAD]
    file = whole_file()
    for key in file.keys:
        lines += _starter_key(key, "")
    for section in file.inner:
        lines += ["", *_starter_section(section, "")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _starter_section(section: SectionDoc, indent: str) -> list[str]:
    name = section.path.rpartition(".")[2]
    lines = [f"{indent}# {section.what}", f"{indent}{name}:"]
    for key in section.keys:
        lines += _starter_key(key, f"{indent}  ")
    for inner in section.inner:
        lines += ["", *_starter_section(inner, f"{indent}  ")]
    return lines


def _starter_key(key: KeyDoc, indent: str) -> list[str]:
    about = f"{indent}# {key.what} ({key.allowed})"
    if key.name in {"options", "properties"}:
        return [about, f"{indent}# {key.name}:", f"{indent}#   name: value"]
    # A path is commented out, so that --data-dir sets it.
    if key.path in PLACES or not key.default or key.allowed.endswith("; with s3"):
        return [about, f"{indent}# {key.name}: {key.default or key.example}"]
    return [about, f"{indent}{key.name}: {key.default}"]


def whole_file() -> SectionDoc:
    """Return the documentation of every key."""
    return _section_doc(Config, "")


def every_section(section: SectionDoc) -> Iterator[SectionDoc]:
    """Yield a section and all its subsections, in file order."""
    yield section
    for inner in section.inner:
        yield from every_section(inner)


def _section_doc(model: type[BaseModel], path: str) -> SectionDoc:
    keys, inner = [], []
    for name, field in model.model_fields.items():
        below = f"{path}.{name}".lstrip(".")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner.append(_section_doc(field.annotation, below))
        else:
            keys.append(_key_doc(name, below, field))
    return SectionDoc(path, (model.__doc__ or "").strip(), tuple(keys), tuple(inner))


def _key_doc(name: str, path: str, field: FieldInfo) -> KeyDoc:
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
