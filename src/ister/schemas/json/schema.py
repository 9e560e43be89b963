"""JSON Schemas: every subschema well formed, every reference resolved within the definition, nothing fetched.

The form is checked here and then against the dialect's metaschema, which sees only what is bounded in size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from ister.schemas.document import Json, canonical, fingerprint_of, load_json, refused, shown
from ister.schemas.json.dialects import DIALECTS, FormError, check_forms, parts
from ister.schemas.json.validate import LARGE_PATTERNS_MAX, PayloadValidator, is_large
from ister.schemas.kinds import SchemaType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Self

    from ister.core.errors import InvalidRequestError
    from ister.schemas.json.dialects import Dialect

SubSchema: TypeAlias = "bool | dict[str, Json]"

SCHEMAS_MAX: Final = 3_000
INPLACE_DEPTH_MAX: Final = 40
"""References and alternatives that apply to one value, one in another."""
INPLACE_COST_MAX: Final = 5_000
"""Subschemas that apply to one value, each counted as often as it is reached."""

_IN_PLACE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)
_NOT_SUPPORTED: Final = ("$dynamicRef", "$recursiveRef")


class JsonSchema:
    """A JSON Schema whose references are resolved."""

    type: Final = SchemaType.JSON_SCHEMA

    def __init__(
        self,
        root: SubSchema,
        dialect: Dialect,
        fingerprint: str,
        targets: dict[int, SubSchema],
        schemas: Collection[SubSchema],
    ) -> None:
        self.root = root
        self.dialect = dialect
        self.fingerprint = fingerprint
        self._targets = targets  # by the identity of what refers to them; all of it lives as long as the root
        costs = _Costs(self)
        for one in schemas:
            costs.of(one)
        self.validator = PayloadValidator(self, schemas)

    @classmethod
    def parse(cls, definition: bytes) -> Self:
        """Read a definition, or raise InvalidRequestError."""
        document = load_json(SchemaType.JSON_SCHEMA, definition)
        name = fingerprint_of(canonical(document).encode())
        dialect = _dialect_of(document)
        parser = _Parser(dialect)
        try:
            root = parser.read(document)
            return cls(root, dialect, name, parser.targets, list(parser.checked.values()))
        except FormError as error:
            raise _wrong(f"it {error}") from None

    def check(self, payload: bytes) -> None:
        """Raise InvalidMessageError unless a payload is JSON and valid."""
        self.validator.check(payload)

    def target(self, schema: SubSchema) -> SubSchema | None:
        """Return what a schema refers to, None when it refers to nothing."""
        return self._targets.get(id(schema))

    def in_place(self, schema: SubSchema) -> Iterator[SubSchema]:
        """Yield the subschemas that apply to the same value as this one, always or at times, without `not`."""
        if isinstance(schema, bool):
            return
        target = self.target(schema)
        if target is not None:
            yield target
            if self.dialect.draft <= 7:  # what stands beside a reference does not count
                return
        for keyword, _, part in parts(schema, self.dialect):
            if keyword in _IN_PLACE and isinstance(part, bool | dict):
                yield part

    def all_in_place(self, schemas: Iterable[SubSchema]) -> Iterator[dict[str, Json]]:
        """Yield these and the subschemas that apply to the same value as they do, each once."""
        work, seen = list(schemas), set()
        while work:
            part = work.pop()
            if isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                yield part
                work += self.in_place(part)


def _dialect_of(document: Json) -> Dialect:
    if not isinstance(document, dict) or "$schema" not in document:
        return DIALECTS[0]
    uri = document["$schema"]
    for dialect in DIALECTS:
        if isinstance(uri, str) and uri.removesuffix("#") == dialect.uri:
            return dialect
    raise _wrong(f"its $schema {uri!r} is none of {', '.join(one.uri for one in DIALECTS)}")


class _Parser:
    """Checks every subschema once, and resolves every reference."""

    def __init__(self, dialect: Dialect) -> None:
        self.targets: dict[int, SubSchema] = {}
        self._dialect = dialect
        self.checked: dict[int, dict[str, Json]] = {}
        self._patterns: dict[str, bool] = {}

    def read(self, document: Json) -> SubSchema:
        root = self._check(document, "$")
        for place, reason in self._dialect.metaschema_errors(document):
            raise _wrong(f"{shown(place)}: {reason}")
        self._resolve(document)
        return root

    def _check(self, document: Json, path: str) -> SubSchema:
        """Check that something is a schema, and so are all of its subschemas."""
        work = [(document, path)]
        while work:
            part, place = work.pop()
            if isinstance(part, bool):
                continue
            if not isinstance(part, dict):
                raise _wrong(f"{shown(place)} is no schema")
            if id(part) in self.checked:
                continue
            self.checked[id(part)] = part
            if len(self.checked) > SCHEMAS_MAX:
                raise _wrong(f"it is made of more than {SCHEMAS_MAX} schemas")
            try:
                work += [(one, f"{place}.{name}") for name, one in self._check_one(part)]
            except FormError as error:
                raise _wrong(f"{shown(place)} {error}") from None
        assert isinstance(document, bool | dict)
        return document

    def _check_one(self, schema: dict[str, Json]) -> Iterator[tuple[str, Json]]:
        dialect = self._dialect
        check_forms(schema, dialect)
        if (other := schema.get("$schema")) is not None and str(other).removesuffix("#") != dialect.uri:
            raise FormError(f"is of another dialect, {other}")
        for keyword in _NOT_SUPPORTED:
            if keyword in schema and keyword in dialect.known:
                raise FormError(f"has a {keyword}, which is not supported")
        for keyword, place, part in parts(schema, dialect):
            if isinstance(part, bool) and dialect.draft == 4 and not keyword.startswith("additional"):
                raise FormError(f"has a boolean for a schema at {keyword}, which draft 4 does not know")
            yield place, part
        patterns = schema.get("patternProperties")
        for pattern in (schema.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
            if isinstance(pattern, str) and pattern not in self._patterns:
                self._patterns[pattern] = is_large(pattern)
        if sum(self._patterns.values()) > LARGE_PATTERNS_MAX:
            raise FormError(f"is one too many of those with a large pattern: {LARGE_PATTERNS_MAX} may have one")

    def _resolve(self, document: Json) -> None:
        """Resolve every reference; targets that no keyword has led to are checked as well."""
        references = _References(document, self._dialect)
        work = list(self.checked.values())
        while work:
            schema = work.pop()
            if isinstance(reference := schema.get("$ref"), str):
                found, base = references.find(schema, reference)
                known = len(self.checked)
                self.targets[id(schema)] = self._check(found, reference)
                references.add(found, base)
                if len(self.checked) > known:
                    work += list(self.checked.values())[known:]


class _References:
    """The parts of a definition by their addresses and anchors."""

    def __init__(self, document: Json, dialect: Dialect) -> None:
        self._dialect = dialect
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Json] = {"": document}
        self._anchors: dict[tuple[str, str], Json] = {}
        self.add(document, "")

    def add(self, document: Json, base: str) -> None:
        """Add the names of a schema and of its subschemas."""
        work = [(document, base)]
        while work:
            part, around = work.pop()
            if isinstance(part, dict) and id(part) not in self._bases:
                inner = self._base(part, around)
                self._bases[id(part)] = inner
                work += [(one, inner) for _, _, one in parts(part, self._dialect)]

    def find(self, schema: dict[str, Json], reference: str) -> tuple[Json, str]:
        """Return what a reference of a schema leads to, and the address that it is under; FormError when to nothing."""
        base = self._bases[id(schema)]
        if reference.startswith("#"):
            uri, fragment = base, reference[1:]
        else:
            uri, fragment = _defrag(base, reference)
        fragment = unquote(fragment)
        missing = FormError(f"refers to {reference[:80]!r}, which is not in it; nothing is fetched from elsewhere")
        if uri not in self._resources:
            raise missing
        if fragment and not fragment.startswith("/"):
            if (uri, fragment) not in self._anchors:
                raise missing
            return self._anchors[uri, fragment], uri
        found = self._resources[uri]
        for step in fragment.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise missing
            uri = self._bases.get(id(found), uri)
        return found, uri

    def _base(self, part: dict[str, Json], base: str) -> str:
        """Return the address of a schema, and note its names."""
        draft = self._dialect.draft
        name = part.get("id" if draft == 4 else "$id")
        if draft <= 7 and "$ref" in part:
            name = None  # what stands beside a reference does not count
        if isinstance(name, str):
            uri, fragment = _defrag(base, name)
            if draft <= 7 and fragment:
                self._anchors[uri, fragment] = part
            if not name.startswith("#"):
                base = uri
                self._resources[uri] = part
        anchor = part.get("$anchor")
        if isinstance(anchor, str) and draft >= 2019:
            self._anchors[base, anchor] = part
        return base


def _defrag(base: str, reference: str) -> tuple[str, str]:
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        raise FormError(f"has {reference[:80]!r}, which is no address") from None
    return uri, fragment


class _Cost(NamedTuple):
    """How many subschemas apply to one value, and how deeply they are nested."""

    schemas: int
    depth: int


class _Costs:
    """Counts what applies to one value, so that no value costs without bounds, and refuses what refers to itself."""

    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._known: dict[int, _Cost] = {}
        self._open: set[int] = set()

    def of(self, schema: SubSchema) -> _Cost:
        if isinstance(schema, bool):
            return _Cost(1, 1)
        if (known := self._known.get(id(schema))) is not None:
            return known
        if id(schema) in self._open:
            raise _wrong("it refers to itself without coming nearer to an end")
        if len(self._open) == INPLACE_DEPTH_MAX:
            raise _wrong(f"more than {INPLACE_DEPTH_MAX} references or alternatives are nested")
        self._open.add(id(schema))
        inner = [self.of(one) for one in self._schema.in_place(schema)]
        if isinstance(negated := schema.get("not"), bool | dict):
            inner.append(self.of(negated))
        self._open.discard(id(schema))
        cost = _Cost(1 + sum(one.schemas for one in inner), 1 + max((one.depth for one in inner), default=0))
        if cost.schemas > INPLACE_COST_MAX:
            raise _wrong(f"more than {INPLACE_COST_MAX} subschemas apply to one value")
        if cost.depth > INPLACE_DEPTH_MAX:
            raise _wrong(f"more than {INPLACE_DEPTH_MAX} references or alternatives are nested")
        self._known[id(schema)] = cost
        return cost


def _wrong(reason: str) -> InvalidRequestError:
    return refused(SchemaType.JSON_SCHEMA, reason)
