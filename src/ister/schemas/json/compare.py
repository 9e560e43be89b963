"""Compatibility of JSON Schemas: whether a reader accepts everything that a writer with another schema can write.

The rules are those of logic, with one assumption (json/writable.py) and one rule of the protocol's on top: **a property
that the writer requires must be known to the reader.** By logic a reader could ignore it. This makes backward refuse that
a required property is removed, and forward that one is added, as the protocol has both.

What cannot be decided is refused, with its place: a schema that is refused can be registered under another mode, one that
was accepted wrongly breaks readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from ister.schemas.document import shown
from ister.schemas.json.validate import TooLongError, matches
from ister.schemas.json.writable import (
    Limit,
    Written,
    atoms,
    flatten,
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
    from ister.schemas.json.schema import JsonSchema, SubSchema

    Schemas: TypeAlias = tuple[SubSchema, ...]

STEPS_MAX: Final = 20_000
SAME_STEPS_MAX: Final = 200_000
REASONS_MAX: Final = 20
_TYPES: Final[dict[str, dict[str, Json]]] = {
    name: {"type": name} for name in ("null", "boolean", "integer", "number", "string", "array", "object")
}


def unreadable(reader: JsonSchema, writer: JsonSchema) -> list[str]:
    """Return why not everything that the writer can write is accepted; empty when it is."""
    if reader.dialect.draft == 4 and writer.dialect.draft != 4:
        return ["$: the reader's schema is of draft 4, to which 1.0 is no integer, and the writer's is of a later one"]
    comparison = Comparison(reader, writer)
    try:
        comparison.fits((reader.root,), (writer.root,), "$")
    except (RecursionError, TooLongError):
        return ["$: the schemas are too large to be compared"]
    return comparison.reasons[:REASONS_MAX]


class Comparison:
    """One comparison.

    A pair of schemas that leads back to itself is taken to fit: it does unless something else in it does not. What was
    found under that assumption is forgotten when the assumption fails; what failed under it fails for ever.
    """

    def __init__(self, reader: JsonSchema, writer: JsonSchema) -> None:
        self.reasons: list[str] = []
        self.reader = reader
        self.equality = Equality(reader, writer)
        self._writer = writer
        self._fitting: dict[tuple[tuple[int, ...], ...], None] = {}
        self._failing: set[tuple[tuple[int, ...], ...]] = set()
        self._steps = 0

    def fits(
        self,
        reader: Schemas,
        writer: Schemas,
        path: str,
        *,
        chosen: frozenset[int] = frozenset(),
        whole: bool = True,
    ) -> bool:
        """Return True if the reader accepts all that these schemas of the writer allow together.

        `chosen` are the alternatives of the writer that were taken apart already; `whole` is False for a part of the
        reader that applies to the same value as another, which may know properties that this part does not.
        """
        reader = tuple(_dereferenced(self.reader, one) for one in reader)
        writer = tuple(_dereferenced(self._writer, one) for one in writer)
        pair = (tuple(map(id, reader)), tuple(map(id, writer)), tuple(sorted(chosen)), (whole,))
        if pair in self._fitting:
            return True
        if pair in self._failing:
            return self.refuse(path, "the schemas differ")
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise TooLongError
        known = len(self._fitting)
        self._fitting[pair] = None
        if self._compare(reader, writer, path, chosen, whole=whole):
            return True
        while len(self._fitting) > known:
            self._fitting.popitem()
        self._failing.add(pair)
        return False

    def _compare(self, reader: Schemas, writer: Schemas, path: str, chosen: frozenset[int], *, whole: bool) -> bool:
        written = Written(self._writer, writer)
        if not written.types:
            return True
        values = written.values()
        if values is not None:
            lost = [value for value in values if not all(self.reader.validator.accepts(one, value) for one in reader)]
            return not lost or self.refuse(path, f"the reader does not accept {lost[0]!r}")
        for group in written.groups():
            if group.key not in chosen:
                now = chosen | {group.key}
                fitting = [self.fits(reader, (*writer, one), path, chosen=now, whole=whole) for one in group.parts]
                return all(fitting)
        fitting = [self._part_fits(part, written, path, chosen) for part in flatten(self.reader, reader)]
        known = not whole or self._knows_required(reader, written, path)
        return all(fitting) and known

    def _part_fits(self, part: SubSchema, written: Written, path: str, chosen: frozenset[int]) -> bool:
        """Compare with one schema of the reader, keyword by keyword."""
        if isinstance(part, bool):
            return self.refuse(path, "the reader accepts nothing here")
        if any(self.equality.same(part, one) for one in written.parts):
            return True
        lost = written.types - atoms(part)
        if lost:
            return self.refuse(
                path, f"the type changes: the writer may write {_words(lost)}, which the reader does not take"
            )
        keywords = _Keywords(self, part, written, path, chosen)
        known = part.keys() & self.reader.dialect.known
        fitting = [
            check(keywords) for kinds, words, check in _CHECKS if known & words and (not kinds or kinds & written.types)
        ]
        return all(fitting)

    def _knows_required(self, reader: Schemas, written: Written, path: str) -> bool:
        if "object" not in written.types or not written.required:
            return True
        parts = list(self.reader.all_in_place(reader))
        names = {name for one in parts for name in (*object_of(one.get("properties")), *names_in(one.get("required")))}
        patterns = {pattern for one in parts for pattern in object_of(one.get("patternProperties"))}
        for name in sorted(written.required - names):
            if not any(matches(pattern, name) for pattern in patterns):
                return self.refuse(path, f"the writer requires {name!r}, which the reader does not know")
        return True

    def attempt(self, trial: Callable[[], bool]) -> bool:
        """Return the result of a trial, without the reasons that it adds."""
        before = len(self.reasons)
        fits = trial()
        del self.reasons[before:]
        return fits

    def disjoint(self, written: Written, part: SubSchema, depth: int = 3) -> bool:
        """Return True if a schema of the reader certainly accepts nothing that is written."""
        values = written.values()
        if values is not None:
            return not any(self.reader.validator.accepts(part, value) for value in values)
        flat = flatten(self.reader, (part,))
        if False in flat:
            return True
        parts = [one for one in flat if isinstance(one, dict)]
        if not written.types.intersection(*map(atoms, parts)):
            return True
        if written.types != {"object"} or depth == 0:
            return False
        return any(
            self.disjoint(Written(self._writer, written.under(name)), inner, depth - 1)
            for name in written.required
            for one in parts
            for inner in schemas_in([object_of(one.get("properties")).get(name)])
        )

    def refuse(self, path: str, reason: str) -> bool:
        """Record a reason; returns False."""
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(f"{shown(path)}: {shown(reason)}")
        return False


@dataclass(frozen=True, slots=True)
class _Keywords:
    """Comparison by keyword: one schema of the reader, and what is written where it applies."""

    comparison: Comparison
    part: dict[str, Json]
    written: Written
    path: str
    chosen: frozenset[int]

    # --- values, numbers and texts ------------------------------------------------------------------------------------

    def values(self) -> bool:
        return self._no("the reader takes certain values only, and the writer may write others")

    def numbers(self) -> bool:
        for lower in (True, False):
            for wanted in number_limits(self.part, lower=lower):
                if not _within(self.written.number_limit(lower=lower), wanted, lower=lower):
                    word = "less" if lower else "more"
                    return self._no(f"the writer may write {word} than {wanted.number}, which the reader does not take")
        return True

    def multiple(self) -> bool:
        step = Fraction(repr(self.part["multipleOf"]))
        steps = [Fraction(repr(one)) for one in self.written.has("multipleOf")]
        if "fraction" not in self.written.types:
            steps.append(Fraction(1))
        return any(one % step == 0 for one in steps) or self._no(
            f"the writer may write numbers that are no multiples of {step}"
        )

    def pattern(self) -> bool:
        return self.part["pattern"] in self.written.has("pattern") or self._no(
            "the reader's pattern is not one of the writer's"
        )

    # --- arrays -------------------------------------------------------------------------------------------------------

    def items(self) -> bool:
        written, side = self.written, self.comparison.reader
        most = written.limit("maxItems")
        last = max(prefix_of(side, self.part), written.prefix)
        fits = True
        for index in range(last + 1):
            if most is None or index < most.number:
                schemas = item_schemas(side, self.part, index)
                place = f"{self.path}[{index if index < last else ''}]"
                if schemas and not self.comparison.fits(schemas, written.at(index), place):
                    fits = False
        return fits

    def unique(self) -> bool:
        most = self.written.limit("maxItems")
        if self.part["uniqueItems"] is not True or True in self.written.has("uniqueItems"):
            return True
        return (most is not None and most.number <= 1) or self._no("the writer may write an item twice")

    def contains(self) -> bool:
        return self._has_same("contains", "minContains", "maxContains") or self._no("contains cannot be compared")

    # --- objects ------------------------------------------------------------------------------------------------------

    def required(self) -> bool:
        lost = sorted(names_in(self.part["required"]) - self.written.required)
        return not lost or self._no(f"the reader requires {lost[0]!r}, which the writer may leave out")

    def properties(self) -> bool:
        """Compare the schemas of every property that can be written."""
        written, part = self.written, self.part
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
        written = self.written
        least = max(_size(written.limit("minProperties")) or 0, len(written.required))
        most = _size(written.limit("maxProperties"))
        if not written.patterns and written.extra is None:
            most = len(written.names) if most is None else min(most, len(written.names))
        low, high = limit_of(self.part, "minProperties"), limit_of(self.part, "maxProperties")
        if low is not None and least < low.number:
            return self._no(f"the writer may write fewer than {low.number} properties")
        if high is not None and (most is None or most > high.number):
            return self._no(f"the writer may write more than {high.number} properties")
        return True

    def property_names(self) -> bool:
        if self._has_same("propertyNames"):
            return True
        if self.written.patterns or self.written.extra is not None:
            return self._no("propertyNames cannot be compared")
        (schema,) = schemas_in([self.part["propertyNames"]])
        accepts = self.comparison.reader.validator.accepts
        lost = [name for name in sorted(self.written.names) if not accepts(schema, name)]
        return not lost or self._no(f"the reader does not take the name {lost[0]!r}")

    def dependents(self) -> bool:
        for word in ("dependentRequired", "dependentSchemas", "dependencies"):
            if word not in self.comparison.reader.dialect.known or self._has_same(word):
                continue
            for name, wanted in object_of(self.part.get(word)).items():
                if not self.written.can_have(name):
                    continue
                if isinstance(wanted, list):
                    lost = sorted(names_in(wanted) - self.written.required)
                    if lost:
                        return self._no(f"with {name!r} the reader requires {lost[0]!r}, which may be left out")
                elif not self._in_place(wanted):
                    return self._no(f"what the reader asks with {name!r} cannot be compared")
        return True

    # --- schemas for the same value -----------------------------------------------------------------------------------

    def not_(self) -> bool:
        (schema,) = schemas_in([self.part["not"]])
        return (
            self._has_same("not")
            or self.comparison.disjoint(self.written, schema)
            or self._no("the writer may write what the reader's `not` excludes")
        )

    def if_(self) -> bool:
        """Whatever the condition says, both ways must do."""
        if self._has_same("if", "then", "else"):
            return True
        return all(self._in_place(self.part.get(word, True)) for word in ("then", "else")) or self._no(
            "the reader's if, then and else cannot be compared"
        )

    def unevaluated(self) -> bool:
        return self._no("the reader's unevaluated properties or items cannot be compared")

    def alternatives(self, word: str) -> bool:
        """Return True if what is written fits one alternative; if not all of one type, then type by type."""
        if self._has_same(word):
            return True
        parts = schemas_in(self.part[word])
        if self.comparison.attempt(lambda: self._one_fits(parts, self.written, exactly=word == "oneOf")):
            return True
        kinds = _kinds(self.written.types)
        if len(kinds) > 1:
            apart = [self.written.narrowed(_TYPES[kind]) for kind in kinds]
            if self.comparison.attempt(
                lambda: all(self._one_fits(parts, one, exactly=word == "oneOf") for one in apart)
            ):
                return True
        return self._no(f"no alternative of the reader's {word} certainly takes all of {' or '.join(kinds)}")

    def _one_fits(self, parts: tuple[SubSchema, ...], written: Written, *, exactly: bool) -> bool:
        for index, part in enumerate(parts):
            if self.comparison.fits((part,), written.schemas, self.path, chosen=self.chosen, whole=False):
                others = (*parts[:index], *parts[index + 1 :])
                if not exactly or all(self.comparison.disjoint(written, one) for one in others):
                    return True
        return False

    def _in_place(self, part: Json) -> bool:
        (schema,) = schemas_in([part])
        return self.comparison.attempt(
            lambda: self.comparison.fits((schema,), self.written.schemas, self.path, chosen=self.chosen, whole=False)
        )

    def _place(self, reader: list[Json], writer: tuple[SubSchema, ...], place: str) -> bool:
        schemas = tuple(one for one in schemas_in(reader) if one is not True)
        return not schemas or self.comparison.fits(schemas, writer, f"{self.path}{place}")

    def sizes(self, low: str, high: str) -> bool:
        for lower, word in ((True, low), (False, high)):
            wanted = limit_of(self.part, word)
            if wanted is None or (lower and wanted.number == 0):
                continue
            if not _within(self.written.limit(word), wanted, lower=lower):
                return self._no(f"the writer keeps to no {word} of {wanted.number}")
        return True

    def _has_same(self, *words: str) -> bool:
        """Return True if the writer's schema has the same keywords, so that what is written fits."""
        mine: Json = {word: self.part[word] for word in words if word in self.part}
        return any(
            self.comparison.equality.same(mine, {word: one[word] for word in words if word in one})
            for one in self.written.parts
        )

    def _no(self, reason: str) -> bool:
        return self.comparison.refuse(self.path, reason)


class Equality:
    """Compares parts of one schema with parts of another."""

    def __init__(self, one: JsonSchema, other: JsonSchema) -> None:
        self._one = one
        self._other = other
        self._comparable = one.dialect is other.dialect
        self._steps = 0

    def same(self, one: Json, other: Json) -> bool:
        """Return True if two parts are the same; False when the comparison takes too long."""
        return self._comparable and self._walk(one, other, set())

    def _walk(self, one: Json, other: Json, assumed: set[tuple[int, int]]) -> bool:
        """Compare; a pair that leads back to itself is the same unless something else in it is not."""
        self._steps += 1
        if self._steps > SAME_STEPS_MAX:
            return False
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pair = (id(one), id(other))
            if pair in assumed:
                return True
            assumed.add(pair)
            target, goal = self._one.target(one), self._other.target(other)
            if (target is None) is not (goal is None):
                return False
            if target is not None and not self._walk(target, goal, assumed):
                return False
            return all(
                self._walk(value, other[name], assumed)
                for name, value in one.items()
                if not (name == "$ref" and target is not None)
            )
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(
                self._walk(mine, theirs, assumed) for mine, theirs in zip(one, other, strict=True)
            )
        return type(one) is type(other) and one == other


def _dereferenced(side: JsonSchema, schema: SubSchema) -> SubSchema:
    """Return what a schema that is nothing but a reference refers to."""
    while isinstance(schema, dict) and len(schema) == 1 and (target := side.target(schema)) is not None:
        schema = target
    return schema


def _words(kinds: frozenset[str]) -> str:
    """Return kinds as JSON Schema calls them."""
    return " or ".join(sorted({"number" if kind == "fraction" else kind for kind in kinds}))


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


_NUMBER: Final = {"integer", "fraction"}
_STRING: Final = {"string"}
_ARRAY: Final = {"array"}
_OBJECT: Final = {"object"}
_ANY: Final[set[str]] = set()

_CHECKS: Final[tuple[tuple[set[str], set[str], Callable[[_Keywords], bool]], ...]] = (
    (_ANY, {"enum", "const"}, _Keywords.values),
    (_NUMBER, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}, _Keywords.numbers),
    (_NUMBER, {"multipleOf"}, _Keywords.multiple),
    (_STRING, {"minLength", "maxLength"}, lambda one: one.sizes("minLength", "maxLength")),
    (_STRING, {"pattern"}, _Keywords.pattern),
    (_ARRAY, {"minItems", "maxItems"}, lambda one: one.sizes("minItems", "maxItems")),
    (_ARRAY, {"items", "prefixItems", "additionalItems"}, _Keywords.items),
    (_ARRAY, {"uniqueItems"}, _Keywords.unique),
    (_ARRAY, {"contains"}, _Keywords.contains),
    (_ARRAY, {"unevaluatedItems"}, _Keywords.unevaluated),
    (_OBJECT, {"required"}, _Keywords.required),
    (_OBJECT, {"properties", "patternProperties", "additionalProperties"}, _Keywords.properties),
    (_OBJECT, {"minProperties", "maxProperties"}, _Keywords.property_counts),
    (_OBJECT, {"propertyNames"}, _Keywords.property_names),
    (_OBJECT, {"dependentRequired", "dependentSchemas", "dependencies"}, _Keywords.dependents),
    (_OBJECT, {"unevaluatedProperties"}, _Keywords.unevaluated),
    (_ANY, {"anyOf"}, lambda one: one.alternatives("anyOf")),
    (_ANY, {"oneOf"}, lambda one: one.alternatives("oneOf")),
    (_ANY, {"not"}, _Keywords.not_),
    (_ANY, {"if"}, _Keywords.if_),
)
"""For which kinds of values, which keywords, and what compares them; `type`, `$ref` and `allOf` are handled before."""
