"""Comparison of JSON Schemas by keyword: whether a reader's schema accepts all that is written."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ister.schemas.json.validate import matches
from ister.schemas.json.writable import (
    Limit,
    item_schemas,
    limit_of,
    names_in,
    number_limits,
    object_of,
    prefix_of,
    schemas_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from ister.schemas.document import Json
    from ister.schemas.json.compare import Comparison
    from ister.schemas.json.schema import SubSchema
    from ister.schemas.json.writable import Written

    Object: TypeAlias = dict[str, Json]

_TYPES: Final[dict[str, Object]] = {
    name: {"type": name} for name in ("null", "boolean", "integer", "number", "string", "array", "object")
}


def unfit_keywords(
    comparison: Comparison, part: dict[str, Json], written: Written, path: str, chosen: frozenset[int]
) -> int:
    """Return how many keywords of a schema of the reader do not take all that is written; the reasons are noted."""
    keywords = _Keywords(comparison, part, written, path, chosen)
    unfit = 0
    for kinds, words, check in _CHECKS:
        here = [word for word in words if word in part and word in comparison.reader.dialect.known]
        if here and (not kinds or kinds & written.types) and not check(keywords):
            unfit += 1
    return unfit


class _Keywords:
    """One schema of the reader, and what is written where it applies."""

    def __init__(
        self, comparison: Comparison, part: Object, written: Written, path: str, chosen: frozenset[int]
    ) -> None:
        self._comparison = comparison
        self._part = part
        self._written = written
        self._path = path
        self._chosen = chosen

    # --- values, numbers and texts ------------------------------------------------------------------------------------

    def values(self) -> bool:
        return self._no("the reader takes certain values only, and the writer may write others")

    def numbers(self) -> bool:
        for lower, limit in ((True, self._written.low), (False, self._written.high)):
            for wanted in number_limits(self._part, lower=lower):
                if not _within(limit, wanted, lower=lower):
                    word = "less" if lower else "more"
                    return self._no(f"the writer may write {word} than {wanted.number}, which the reader does not take")
        return True

    def multiple(self) -> bool:
        step = Fraction(repr(self._part["multipleOf"]))
        steps = [Fraction(repr(one)) for one in self._written.has("multipleOf")]
        if "fraction" not in self._written.types:
            steps.append(Fraction(1))
        return any(one % step == 0 for one in steps) or self._no(
            f"the writer may write numbers that are no multiples of {step}"
        )

    def lengths(self) -> bool:
        return self._sizes("minLength", "maxLength")

    def pattern(self) -> bool:
        return self._part["pattern"] in self._written.has("pattern") or self._no(
            "the reader's pattern is not one of the writer's"
        )

    # --- arrays -------------------------------------------------------------------------------------------------------

    def item_counts(self) -> bool:
        return self._sizes("minItems", "maxItems")

    def items(self) -> bool:
        written, side = self._written, self._comparison.reader
        most = written.limit("minItems", "maxItems", lower=False)
        last = max(prefix_of(side, self._part), written.prefix)
        fits = True
        for index in range(last + 1):
            if most is None or index < most.number:
                schemas = item_schemas(side, self._part, index)
                place = f"{self._path}[{index if index < last else ''}]"
                if schemas and not self._comparison.fits(schemas, written.at(index), place):
                    fits = False
        return fits

    def unique(self) -> bool:
        most = self._written.limit("minItems", "maxItems", lower=False)
        if self._part["uniqueItems"] is not True or True in self._written.has("uniqueItems"):
            return True
        return (most is not None and most.number <= 1) or self._no("the writer may write an item twice")

    def contains(self) -> bool:
        return self._has_same("contains", "minContains", "maxContains") or self._no("contains cannot be compared")

    # --- objects ------------------------------------------------------------------------------------------------------

    def required(self) -> bool:
        lost = sorted(names_in(self._part["required"]) - self._written.required)
        return not lost or self._no(f"the reader requires {lost[0]!r}, which the writer may leave out")

    def properties(self) -> bool:
        """Compare what may stand under every name that can be written."""
        written, part = self._written, self._part
        named, patterns = object_of(part.get("properties")), object_of(part.get("patternProperties"))
        rest = part.get("additionalProperties", True)
        fits = True
        for name in sorted(written.names | {name for name in named if written.can_have(name)}):
            here = [named[name]] if name in named else []
            here += [one for pattern, one in patterns.items() if matches(pattern, name)]
            fits &= self._place(here or [rest], written.under(name), f".{name}")
        for pattern, schemas in written.patterns.items():
            # Two patterns may match one name; which do is not known, so all must fit.
            here = [*patterns.values(), *([] if pattern in patterns else [rest])]
            fits &= self._place(here, schemas, f".{{{pattern}}}")
        if written.extra is not None:
            fits &= self._place([*patterns.values(), rest], written.extra, ".*")
        return fits

    def property_counts(self) -> bool:
        written = self._written
        least = max(_size(written.limit("minProperties", "maxProperties", lower=True)) or 0, len(written.required))
        most = _size(written.limit("minProperties", "maxProperties", lower=False))
        if not written.patterns and written.extra is None:
            most = len(written.names) if most is None else min(most, len(written.names))
        low, high = limit_of(self._part, "minProperties"), limit_of(self._part, "maxProperties")
        if low is not None and least < low.number:
            return self._no(f"the writer may write fewer than {low.number} properties")
        if high is not None and (most is None or most > high.number):
            return self._no(f"the writer may write more than {high.number} properties")
        return True

    def property_names(self) -> bool:
        if self._has_same("propertyNames"):
            return True
        if self._written.patterns or self._written.extra is not None:
            return self._no("propertyNames cannot be compared")
        (schema,) = schemas_in([self._part["propertyNames"]])
        lost = [name for name in sorted(self._written.names) if not self._comparison.reads(schema, name)]
        return not lost or self._no(f"the reader does not take the name {lost[0]!r}")

    def dependents(self) -> bool:
        for word in ("dependentRequired", "dependentSchemas", "dependencies"):
            if word not in self._comparison.reader.dialect.known or self._has_same(word):
                continue
            for name, wanted in object_of(self._part.get(word)).items():
                if not self._written.can_have(name):
                    continue
                if isinstance(wanted, list):
                    lost = sorted(names_in(wanted) - self._written.required)
                    if lost:
                        return self._no(f"with {name!r} the reader requires {lost[0]!r}, which may be left out")
                elif not self._in_place(wanted):
                    return self._no(f"what the reader asks with {name!r} cannot be compared")
        return True

    # --- schemas for the same value -----------------------------------------------------------------------------------

    def any_of(self) -> bool:
        return self._alternatives("anyOf")

    def one_of(self) -> bool:
        return self._alternatives("oneOf")

    def not_(self) -> bool:
        (schema,) = schemas_in([self._part["not"]])
        return (
            self._has_same("not")
            or self._comparison.disjoint(self._written, schema)
            or self._no("the writer may write what the reader's `not` excludes")
        )

    def if_(self) -> bool:
        """Whatever the condition says, both ways must do."""
        if self._has_same("if", "then", "else"):
            return True
        return all(self._in_place(self._part.get(word, True)) for word in ("then", "else")) or self._no(
            "the reader's if, then and else cannot be compared"
        )

    def unevaluated(self) -> bool:
        return self._no("the reader's unevaluated properties or items cannot be compared")

    def _alternatives(self, word: str) -> bool:
        """See that what is written fits one alternative; if not all of one kind, then kind by kind."""
        if self._has_same(word):
            return True
        parts = schemas_in(self._part[word])
        if self._comparison.attempt(lambda: self._one_fits(parts, self._written, exactly=word == "oneOf")):
            return True
        kinds = _kinds(self._written.types)
        if len(kinds) > 1:
            apart = [self._written.narrowed(_TYPES[kind]) for kind in kinds]
            if self._comparison.attempt(
                lambda: all(self._one_fits(parts, one, exactly=word == "oneOf") for one in apart)
            ):
                return True
        return self._no(f"no alternative of the reader's {word} certainly takes all of {' or '.join(kinds)}")

    def _one_fits(self, parts: tuple[SubSchema, ...], written: Written, *, exactly: bool) -> bool:
        for index, part in enumerate(parts):
            if self._comparison.fits((part,), written.schemas, self._path, chosen=self._chosen, whole=False):
                others = (*parts[:index], *parts[index + 1 :])
                if not exactly or all(self._comparison.disjoint(written, one) for one in others):
                    return True
        return False

    def _in_place(self, part: Json) -> bool:
        (schema,) = schemas_in([part])
        return self._comparison.attempt(
            lambda: self._comparison.fits(
                (schema,), self._written.schemas, self._path, chosen=self._chosen, whole=False
            )
        )

    def _place(self, reader: list[Json], writer: tuple[SubSchema, ...], place: str) -> bool:
        schemas = tuple(one for one in schemas_in(reader) if one is not True)
        return not schemas or self._comparison.fits(schemas, writer, f"{self._path}{place}")

    def _sizes(self, low: str, high: str) -> bool:
        for lower, word in ((True, low), (False, high)):
            wanted = limit_of(self._part, word)
            if wanted is None or (lower and wanted.number == 0):
                continue
            if not _within(self._written.limit(low, high, lower=lower), wanted, lower=lower):
                return self._no(f"the writer keeps to no {word} of {wanted.number}")
        return True

    def _has_same(self, *words: str) -> bool:
        """Return True if the writer's schema has the same keywords, so that what is written fits."""
        mine: Json = {word: self._part[word] for word in words if word in self._part}
        return any(
            self._comparison.sameness.same(mine, {word: one[word] for word in words if word in one})
            for one in self._written.parts
        )

    def _no(self, reason: str) -> bool:
        return self._comparison.refuse(self._path, reason)


def _within(limit: Limit | None, wanted: Limit, *, lower: bool) -> bool:
    """Return True if a value within one limit is within another."""
    if limit is None:
        return False
    if limit.number == wanted.number:
        return limit.open or not wanted.open
    return (limit.number > wanted.number) is lower


def _size(limit: Limit | None) -> int | None:
    return None if limit is None else int(limit.number)


def _kinds(types: frozenset[str]) -> list[str]:
    """Return kinds by the words of JSON Schema, fractions with the integers among them."""
    kinds = types - {"integer", "fraction"} | {"number"} if "fraction" in types else types
    return sorted(kinds)


_NUMBER: Final = frozenset({"integer", "fraction"})
_STRING: Final = frozenset({"string"})
_ARRAY: Final = frozenset({"array"})
_OBJECT: Final = frozenset({"object"})
_ANY: Final[frozenset[str]] = frozenset()

_CHECKS: Final[tuple[tuple[frozenset[str], tuple[str, ...], Callable[[_Keywords], bool]], ...]] = (
    (_ANY, ("enum", "const"), _Keywords.values),
    (_NUMBER, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _Keywords.numbers),
    (_NUMBER, ("multipleOf",), _Keywords.multiple),
    (_STRING, ("minLength", "maxLength"), _Keywords.lengths),
    (_STRING, ("pattern",), _Keywords.pattern),
    (_ARRAY, ("minItems", "maxItems"), _Keywords.item_counts),
    (_ARRAY, ("items", "prefixItems", "additionalItems"), _Keywords.items),
    (_ARRAY, ("uniqueItems",), _Keywords.unique),
    (_ARRAY, ("contains",), _Keywords.contains),
    (_ARRAY, ("unevaluatedItems",), _Keywords.unevaluated),
    (_OBJECT, ("required",), _Keywords.required),
    (_OBJECT, ("properties", "patternProperties", "additionalProperties"), _Keywords.properties),
    (_OBJECT, ("minProperties", "maxProperties"), _Keywords.property_counts),
    (_OBJECT, ("propertyNames",), _Keywords.property_names),
    (_OBJECT, ("dependentRequired", "dependentSchemas", "dependencies"), _Keywords.dependents),
    (_OBJECT, ("unevaluatedProperties",), _Keywords.unevaluated),
    (_ANY, ("anyOf",), _Keywords.any_of),
    (_ANY, ("oneOf",), _Keywords.one_of),
    (_ANY, ("not",), _Keywords.not_),
    (_ANY, ("if",), _Keywords.if_),
)
"""For which kinds of values, which keywords, and what compares them; `type`, `$ref` and `allOf` are seen to before."""
