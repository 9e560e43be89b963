"""Schema types, compatibility modes, validation policies and subject names, and the limits of texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ister.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

DEFINITION_BYTES_MAX: Final = 1 << 20
SUBJECT_BYTES_MAX: Final = 255
TEXT_BYTES_MAX: Final = 4096
TAGS_MAX: Final = 32
TAG_BYTES_MAX: Final = 128


class _Word(StrEnum):
    """An enumeration that is parsed case-insensitively."""

    @classmethod
    def _parse(cls, field: str, text: str, word: str) -> Self:
        try:
            return cls(word)
        except ValueError:
            raise InvalidRequestError(f"{field} {text[:80]!r} is none of {', '.join(cls)}") from None


class SchemaType(_Word):
    """The types of schemas, by the names that the protocol gives them."""

    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    AVRO = "avro"
    JSON_SCHEMA = "json_schema"
    PROTOBUF = "protobuf"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a type as clients write it, by any of its names."""
        return cls._parse("schema_type", text, _TYPE_ALIASES.get(text.lower(), text.lower()))


class Compatibility(_Word):
    """The compatibility that a new version must have with the latest one.

    backward: the new version reads what the latest one allows; forward: the latest reads what the new one allows.
    """

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a mode."""
        return cls._parse("compatibility_mode", text, text.lower())


class ValidationPolicy(_Word):
    """What a topic does with a message that does not name its schema."""

    NONE = "none"
    WARN = "warn"
    ENFORCE = "enforce"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a policy."""
        return cls._parse("validation_policy", text, text.lower())


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema subject a topic is bound to, and what is checked of its messages."""

    subject: str | None = None
    validation: ValidationPolicy = ValidationPolicy.WARN
    payload_validation: bool = False


_TYPE_ALIASES: Final = {
    "int64": "number",
    "int": "number",
    "float": "number",
    "double": "number",
    "json": "json_schema",
    "jsonschema": "json_schema",
    "proto": "protobuf",
}


def check_subject(subject: str) -> None:
    """Raise unless this can name a subject: 1 to 255 bytes of printable text without spaces at its ends."""
    if not subject:
        raise InvalidRequestError("subject is empty")
    _check_text("subject", subject, SUBJECT_BYTES_MAX)
    if subject != subject.strip() or not subject.isprintable():
        raise InvalidRequestError("subject has characters that cannot be printed, or spaces at its ends")


def check_texts(description: str, created_by: str, tags: Sequence[str]) -> None:
    """Raise unless these texts are small enough to be stored beside a definition."""
    _check_text("description", description, TEXT_BYTES_MAX)
    _check_text("created_by", created_by, SUBJECT_BYTES_MAX)
    if len(tags) > TAGS_MAX:
        raise InvalidRequestError(f"tags are {len(tags)}, more than {TAGS_MAX}")
    for tag in tags:
        _check_text("a tag", tag, TAG_BYTES_MAX)


def _check_text(name: str, text: str, bytes_max: int) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > bytes_max:
        raise InvalidRequestError(f"{name} has {size} bytes, more than {bytes_max}")
