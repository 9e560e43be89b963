"""Compatibility of JSON Schemas: whether a reader accepts everything that a writer with another schema can write.

The rules are those of logic, with one assumption (json/writable.py) and one rule of the protocol's on top: **a property
that the writer requires must be known to the reader.** By logic a reader could ignore it. This makes backward refuse that
a required property is removed, and forward that one is added, as the protocol has both.

What cannot be decided is refused, with its place: a schema that is refused can be registered under another mode, one that
was accepted wrongly breaks readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ister.schemas.document import shown
from ister.schemas.json.compare_keywords import unfit_keywords
from ister.schemas.json.validate import TooLongError, matches
from ister.schemas.json.writable import Written, atoms, flatten, names_in, object_of, schemas_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from ister.schemas.document import Json
    from ister.schemas.json.schema import JsonSchema, SubSchema

    Schemas: TypeAlias = tuple[SubSchema, ...]

STEPS_MAX: Final = 20_000
SAME_STEPS_MAX: Final = 200_000
REASONS_MAX: Final = 20


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
        self.sameness = Sameness(reader, writer)
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
        reader = tuple(_behind(self.reader, one) for one in reader)
        writer = tuple(_behind(self._writer, one) for one in writer)
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
            lost = [value for value in values if not all(self.reads(one, value) for one in reader)]
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
        if any(self.sameness.same(part, one) for one in written.parts):
            return True
        lost = written.types - atoms(part)
        if lost:
            return self.refuse(
                path, f"the type changes: the writer may write {_words(lost)}, which the reader does not take"
            )
        return unfit_keywords(self, part, written, path, chosen) == 0

    def _knows_required(self, reader: Schemas, written: Written, path: str) -> bool:
        if "object" not in written.types or not written.required:
            return True
        names, patterns = self._known_names(reader)
        for name in sorted(written.required - names):
            if not any(matches(pattern, name) for pattern in patterns):
                return self.refuse(path, f"the writer requires {name!r}, which the reader does not know")
        return True

    def _known_names(self, reader: Schemas) -> tuple[set[str], set[str]]:
        names: set[str] = set()
        patterns: set[str] = set()
        work = list(reader)
        seen: set[int] = set()
        while work:
            part = work.pop()
            if isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                names.update(object_of(part.get("properties")), names_in(part.get("required")))
                patterns.update(object_of(part.get("patternProperties")))
                work += self.reader.in_place(part)
        return names, patterns

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

    def reads(self, part: SubSchema, value: Json) -> bool:
        """Return True if a schema of the reader accepts a value."""
        return self.reader.validator.accepts(part, value)

    def refuse(self, path: str, reason: str) -> bool:
        """Note a reason; returns False."""
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(f"{shown(path)}: {shown(reason)}")
        return False


class Sameness:
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


def _behind(side: JsonSchema, schema: SubSchema) -> SubSchema:
    """Return what a schema that is nothing but a reference refers to."""
    while isinstance(schema, dict) and len(schema) == 1 and (target := side.target(schema)) is not None:
        schema = target
    return schema


def _words(kinds: frozenset[str]) -> str:
    """Return kinds as JSON Schema calls them."""
    return " or ".join(sorted({"number" if kind == "fraction" else kind for kind in kinds}))
