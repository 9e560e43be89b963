"""Protobuf messages, fields and enums, as far as the wire format and compatibility need them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message."""

    number: int
    name: str
    kind: str
    """`int32`, `string`, …, `enum`, `message` or `group`."""
    repeated: bool = False
    required: bool = False
    target: str | None = None
    """The full name of its message or enum."""
    oneof: str | None = None
    implicit: bool = False
    """An absent field stands for 0, false or nothing (proto3, without `optional`)."""

    @property
    def type_name(self) -> str:
        """The full name of the message or enum that the field must have."""
        assert self.target is not None, "a message or an enum has a type"
        return self.target


@dataclass(frozen=True, slots=True)
class Reserved:
    """Numbers and names that are not to be used again; spans are [start, stop)."""

    spans: tuple[tuple[int, int], ...] = ()
    names: frozenset[str] = frozenset()

    def holds(self, number: int, name: str) -> bool:
        """Return True if a number or a name is reserved."""
        return name in self.names or any(start <= number < stop for start, stop in self.spans)


@dataclass(frozen=True, slots=True)
class Message:
    """A message."""

    name: str
    fields: dict[int, Field]
    reserved: Reserved = Reserved()


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum; a closed one (proto2) loses values that it does not know, an open one keeps their numbers."""

    name: str
    values: dict[str, int]
    closed: bool
    reserved: Reserved = Reserved()
