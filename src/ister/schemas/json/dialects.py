"""Dialects of JSON Schema: their keywords, and the form that the value of each must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeGuard

import jsonschema_rs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ister.schemas.document import Json

MIXED_MAX: Final = 500
"""In draft 4 the values of an enum must differ, and the library compares each with each unless all are texts."""
TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A version of JSON Schema."""

    draft: int
    uri: str
    own_library: type[jsonschema_rs.Validator]
    library: type[jsonschema_rs.Validator]
    """Validates payloads: the oldest one that has `if`, by which steps are counted."""
    library_draft: int
    known: frozenset[str]
    """The keywords whose form matters."""

    def metaschema_errors(self, document: Json) -> Iterator[tuple[str, str]]:
        """Yield what the dialect's own schema finds wrong in a definition, as JSON path and error text."""
        metaschema = self.own_library({"$ref": self.uri}, validate_formats=False, offline=True)
        for error in metaschema.iter_errors(document):
            yield (
                "".join(("$", *(f"[{s}]" if isinstance(s, int) else f".{s}" for s in error.instance_path))),
                error.message,
            )


class FormError(Exception):
    """A keyword whose value does not have the form that the dialect requires."""


def check_forms(schema: dict[str, Json], dialect: Dialect) -> None:
    """Raise FormError when a keyword of this object, its subschemas aside, is not as the dialect has it."""
    known = dialect.known
    for keyword, value in schema.items():
        check = _FORMS.get(keyword)
        if dialect.draft == 4 and keyword in {"exclusiveMinimum", "exclusiveMaximum"}:
            check = _is(bool)
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


def is_applicator(keyword: str) -> bool:
    """Return True if the value of a keyword holds subschemas."""
    return keyword in _SCHEMA or keyword in _SCHEMA_LIST or keyword in _SCHEMA_MAP


def parts(schema: dict[str, Json], dialect: Dialect) -> Iterator[tuple[str, str, Json]]:
    """Yield every subschema of this object with its keyword and its place, or raise FormError.

    What is yielded need not be a schema; the caller checks that.
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


def _is(kind: type) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, kind)


def _number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(value: Json) -> bool:
    return isinstance(value, list) and len({one for one in value if isinstance(one, str)}) == len(value)


def _type(value: Json) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _texts(value) and bool(value) and TYPES.issuperset(value)  # type: ignore[arg-type]


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


_COUNTS: Final = tuple(
    f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Properties", "Contains")
)
_FORMS: Final[dict[str, Callable[[Json], bool]]] = {
    "type": _type,
    "enum": _is(list),
    "required": _texts,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_texts, value.values())),
    "multipleOf": lambda value: _number(value) and value > 0,
    "uniqueItems": _is(bool),
    **dict.fromkeys(("$ref", "$id", "id", "$anchor", "$schema", "pattern", "format", "title", "description"), _is(str)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(_COUNTS, lambda value: _number(value) and value >= 0 and value == int(value)),
}
_SINCE: Final = {
    **dict.fromkeys(("$id", "const", "contains", "propertyNames", "exclusiveMinimum", "exclusiveMaximum"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("$anchor", "minContains", "maxContains", "dependentRequired", "dependentSchemas"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "$recursiveRef"), 2019),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), 2020),
}
"""The first draft that has a keyword, where that is not 4."""
_UNTIL: Final = {"id": 4, "dependencies": 7, "additionalItems": 2019, "$recursiveRef": 2019}
"""The last draft that has a keyword, where that is not 2020."""
_KEYWORDS: Final = frozenset({*_FORMS, *_SINCE, *_SCHEMA, *_SCHEMA_LIST, *_SCHEMA_MAP})


def _dialect(draft: int, uri: str, own_library: type[jsonschema_rs.Validator], own_draft: int) -> Dialect:
    known = frozenset(word for word in _KEYWORDS if _SINCE.get(word, 4) <= draft <= _UNTIL.get(word, 2020))
    if draft >= 7:
        return Dialect(draft, uri, own_library, own_library, own_draft, known)
    return Dialect(draft, uri, own_library, jsonschema_rs.Draft7Validator, jsonschema_rs.Draft7, known)


DIALECTS: Final = (
    _dialect(
        2020,
        "https://json-schema.org/draft/2020-12/schema",
        jsonschema_rs.Draft202012Validator,
        jsonschema_rs.Draft202012,
    ),
    _dialect(
        2019,
        "https://json-schema.org/draft/2019-09/schema",
        jsonschema_rs.Draft201909Validator,
        jsonschema_rs.Draft201909,
    ),
    _dialect(7, "http://json-schema.org/draft-07/schema", jsonschema_rs.Draft7Validator, jsonschema_rs.Draft7),
    _dialect(6, "http://json-schema.org/draft-06/schema", jsonschema_rs.Draft6Validator, jsonschema_rs.Draft6),
    _dialect(4, "http://json-schema.org/draft-04/schema", jsonschema_rs.Draft4Validator, jsonschema_rs.Draft4),
)
"""The default first."""
