"""Avro types: a graph whose names are resolved, so that a record may refer to itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """A value of a basic type."""

    kind: str
    logical: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """A fixed number of bytes."""

    name: str
    aliases: frozenset[str]
    size: int
    logical: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    """One of some symbols."""

    name: str
    aliases: frozenset[str]
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Any number of items."""

    items: Type


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Values by string key."""

    values: Type


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """A value of one of some types."""

    branches: tuple[Type, ...]

    @property
    def not_null(self) -> list[Type]:
        """All of them but null."""
        return [one for one in self.branches if not (isinstance(one, Primitive) and one.kind == "null")]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A field of a record."""

    name: str
    aliases: tuple[str, ...]
    type: Type
    has_default: bool


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Ordered fields. The list is filled after construction: a field may refer back to its record."""

    name: str
    aliases: frozenset[str]
    fields: list[Field] = field(default_factory=list)


Leaf: TypeAlias = Primitive | Fixed | Enum
Type: TypeAlias = Leaf | Array | Map | Union | Record


def word_for(kind: Type) -> str:
    """Return what an error calls a type; no two branches of a union have the same word."""
    match kind:
        case Primitive():
            return kind.kind
        case Fixed() | Enum() | Record():
            return f"{type(kind).__name__.lower()} {kind.name}"
        case _:
            return type(kind).__name__.lower()
