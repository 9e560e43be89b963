"""Decide which keywords a dialect of JSON Schema has, and whether those of one schema object have the right form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jsonschema import Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from jsonschema.protocols import Validator

    from ister.core.schemas.document import Json

MIXED_MAX: Final = 500
"""In draft 4 the values of an enum must differ, and the library compares each with each unless all are texts."""
TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A version of JSON Schema."""

    draft: int
    uri: str
    validator: type[Validator]
    known: frozenset[str]
    """The keywords whose form matters."""

    @classmethod
    def make(cls, draft: int, uri: str, validator: type[Validator]) -> Self:
        """Describe a dialect by what the library knows of it."""
        known = {*validator.VALIDATORS, "$schema", "$defs", "definitions", "title", "description"}
        known |= {"then", "else"} if "if" in known else set()
        known |= {"minContains", "maxContains", "$anchor"} if draft >= 2019 else set()
        known |= {"id"} if draft == 4 else {"$id"}
        return cls(draft, uri, validator, frozenset(known))


DIALECTS: Final = (
    Dialect.make(2020, "https://json-schema.org/draft/2020-12/schema", Draft202012Validator),
    Dialect.make(2019, "https://json-schema.org/draft/2019-09/schema", Draft201909Validator),
    Dialect.make(7, "http://json-schema.org/draft-07/schema", Draft7Validator),
    Dialect.make(6, "http://json-schema.org/draft-06/schema", Draft6Validator),
    Dialect.make(4, "http://json-schema.org/draft-04/schema", Draft4Validator),
)
"""From the one that is meant when nothing is said."""


class FormError(Exception):
    """Something in a schema that has another form."""


def check_forms(schema: dict[str, Json], dialect: Dialect) -> None:
    """Raise FormError when a keyword of this object, its subschemas aside, is not as the dialect has it."""
    known = dialect.known
    for keyword, value in schema.items():
        check = _FORMS.get(keyword)
        if dialect.draft == 4 and keyword in {"exclusiveMinimum", "exclusiveMaximum"}:
            check = _boolean
        elif keyword not in known:
            continue
        if check is not None and not check(value):
            raise FormError(f"has a {keyword} of a wrong form")
    if dialect.draft == 4:
        if schema.get("required") == [] or schema.get("enum") == []:
            raise FormError("has an empty list where draft 4 asks for one that is not")
        values = schema.get("enum")
        if isinstance(values, list) and len(values) > MIXED_MAX and not all(isinstance(one, str) for one in values):
            raise FormError(f"has an enum of more than {MIXED_MAX} values that are not all texts")


def parts(schema: dict[str, Json], dialect: Dialect) -> Iterator[tuple[str, str, Json]]:
    """Give every subschema of this object with the keyword it belongs to and its place, or raise FormError.

    What is given need not be a schema: that is for whoever takes it to see.
    """
    known = dialect.known
    for keyword, value in schema.items():
        if keyword not in known:
            continue
        if keyword in _SCHEMA or (keyword == "items" and (dialect.draft >= 2020 or not isinstance(value, list))):
            yield keyword, keyword, value
        elif keyword in _SCHEMA_LIST:
            if not isinstance(value, list) or not (value or keyword == "items"):
                raise FormError(f"has a {keyword} that is no list of schemas")
            yield from ((keyword, f"{keyword}[{index}]", one) for index, one in enumerate(value))
        elif keyword in _SCHEMA_MAP:
            if not isinstance(value, dict):
                raise FormError(f"has {keyword} that are no object")
            for name, one in value.items():
                if keyword == "dependencies" and isinstance(one, list):
                    if not _texts(one):
                        raise FormError("has dependencies that name no properties")
                else:
                    yield keyword, f"{keyword}.{name}", one


_SCHEMA: Final = frozenset(
    {
        *("additionalProperties", "additionalItems", "not", "contains", "propertyNames", "if", "then", "else"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
_SCHEMA_LIST: Final = frozenset({"items", "allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAP: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _boolean(value: Json) -> bool:
    return isinstance(value, bool)


def _text(value: Json) -> bool:
    return isinstance(value, str)


def _texts(value: Json) -> bool:
    if not isinstance(value, list):
        return False
    words = {one for one in value if isinstance(one, str)}
    return len(words) == len(value)


def _list(value: Json) -> bool:
    return isinstance(value, list)


def _type(value: Json) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _texts(value) and bool(value) and TYPES.issuperset(value)  # type: ignore[arg-type]


def _positive(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _texts_of_names(value: Json) -> bool:
    return isinstance(value, dict) and all(_texts(one) for one in value.values())


_FORMS: Final[dict[str, Callable[[Json], bool]]] = {
    "type": _type,
    "enum": _list,
    "required": _texts,
    "dependentRequired": _texts_of_names,
    "multipleOf": _positive,
    "uniqueItems": _boolean,
    **dict.fromkeys(("$ref", "$id", "id", "$anchor", "$schema", "pattern", "format", "title", "description"), _text),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        _count,
    ),
}
