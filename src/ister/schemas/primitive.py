"""Schemas of the types bytes, string and number, whose definitions are ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.core.errors import InvalidMessageError
from ister.schemas.document import check_size
from ister.schemas.kinds import SchemaType

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class PlainSchema:
    """A schema without a structure."""

    type: SchemaType

    @classmethod
    def parse(cls, kind: SchemaType, definition: bytes) -> Self:
        """Accept any definition that is not too large to be stored."""
        check_size(kind, definition)
        return cls(kind)

    @property
    def fingerprint(self) -> str:
        """The type's name: two definitions of one type mean the same."""
        return self.type.value

    def check(self, payload: bytes) -> None:
        """Raise InvalidMessageError unless a payload is of this type."""
        if self.type is SchemaType.STRING:
            try:
                payload.decode()
            except UnicodeDecodeError as error:
                raise InvalidMessageError("payload", f"is not UTF-8: byte {error.start} cannot be read") from None
        elif self.type is SchemaType.NUMBER and len(payload) not in {4, 8}:
            raise InvalidMessageError("payload", f"has {len(payload)} bytes; a number has 4 or 8")
