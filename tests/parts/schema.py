"""Schemas made at random from a seed, and values that a writer with such a schema would write.

Plain generators: they make a thousand pairs of schemas in the time that Hypothesis takes for ten, and a seed that fails can
be given again.
"""

import json
import re
from random import Random

NAMES = ["a", "b", "c"]
PATTERNS = ["^a", "b$", "^[0-9]+$", "x"]
SCALARS = [
    None,
    True,
    False,
    -4,
    -1,
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    12,
    0.5,
    1.0,
    2.5,
    -3.5,
    1e9,
    "",
    "a",
    "b",
    "ab",
    "abc",
    "12",
]
KINDS = ["null", "boolean", "integer", "number", "string", "array", "object"]


def definition(schema) -> bytes:
    return json.dumps(schema).encode()


def some(chance: Random, options, least: int = 0, most: int = 3) -> list:
    options = list(options)
    return chance.sample(options, min(len(options), chance.randint(least, most)))


def value(chance: Random, depth: int = 3):
    """Return a small JSON value."""
    kind = chance.randrange(6)
    if depth and kind == 0:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    if depth and kind <= 2:
        return {name: value(chance, depth - 1) for name in some(chance, [*NAMES, "d", "x1"])}
    return chance.choice(SCALARS)


class JsonMaker:
    """Makes JSON Schemas of one dialect."""

    def __init__(self, chance: Random, draft: int = 2020) -> None:
        self._chance = chance
        self._draft = draft
        self.place = "$defs" if draft >= 2019 else "definitions"

    def schema(self):
        """Return a whole schema, with two parts that others refer to."""
        made = self._object(3)
        made[self.place] = {"one": self.part(2), "two": self.part(2)}
        return made

    def part(self, depth: int, *, refs: bool = True):
        chance = self._chance
        kind = chance.randrange(8)
        if kind == 0 and self._draft > 4:
            return chance.random() < 0.7
        if kind == 1 and refs:
            return {"$ref": f"#/{self.place}/{chance.choice(['one', 'two'])}"}
        if kind <= 3 or depth == 0:
            return chance.choice([{"type": "string"}, {"type": "integer"}, {"type": "object"}, {"type": ["null", "number"]}, {}])  # fmt: skip
        return self._object(depth, refs=refs)

    def _object(self, depth: int, *, refs: bool = True):
        made = {}
        for word in some(self._chance, self._words(), 0, 4):
            made[word] = self._keyword(word, depth - 1, refs=refs)
        return made

    def _words(self):
        words = [
            "type",
            "type",
            "enum",
            "minimum",
            "maximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "pattern",
            "minItems",
        ]
        words += ["maxItems", "uniqueItems", "required", "minProperties", "maxProperties", "properties", "properties"]
        words += ["patternProperties", "additionalProperties", "items", "allOf", "anyOf", "oneOf", "not"]
        words += ["exclusiveMinimum", "exclusiveMaximum"]
        words += ["const", "contains", "propertyNames"] if self._draft > 4 else []
        words += ["if", "then", "else"] if self._draft >= 7 else []
        words += ["prefixItems"] if self._draft >= 2020 else ["additionalItems"]
        if self._draft >= 2019:
            words += ["dependentRequired", "minContains", "maxContains", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"]  # fmt: skip
        else:
            words += ["dependencies"]
        return dict.fromkeys(words)

    def _keyword(self, word: str, depth: int, *, refs: bool):
        chance = self._chance

        def part():
            return self.part(depth, refs=refs)

        match word:
            case "type":
                return chance.choice(KINDS) if chance.random() < 0.7 else some(chance, KINDS, 1, 3)
            case "enum":
                return [*{json.dumps(one): one for one in (value(chance, 2) for _ in range(3))}.values()]
            case "const":
                return value(chance, 2)
            case "exclusiveMinimum" | "exclusiveMaximum" if self._draft == 4:
                return chance.random() < 0.5
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
                return chance.choice([-3, -1, 0, 1, 2, 3, 8, 0.5, 2.5])
            case "multipleOf":
                return chance.choice([1, 2, 3, 4])
            case "pattern":
                return chance.choice(PATTERNS)
            case "uniqueItems":
                return chance.random() < 0.7
            case "required":
                return some(chance, NAMES, 1, 2)
            case "properties":
                return {name: part() for name in some(chance, NAMES, 1, 3)}
            case "patternProperties":
                return {pattern: part() for pattern in some(chance, PATTERNS, 1, 2)}
            case "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" | "additionalItems":
                return part() if chance.random() < 0.5 or self._draft == 4 else chance.random() < 0.5
            case "items" if self._draft < 2020 and chance.random() < 0.5:
                return [part() for _ in range(chance.randint(1, 2))]
            case "allOf" | "anyOf" | "oneOf" | "prefixItems":
                return [part() for _ in range(chance.randint(1, 3))]
            case "dependentRequired":
                return {name: some(chance, NAMES, 0, 2) for name in some(chance, NAMES, 0, 2)}
            case "dependentSchemas":
                return {name: part() for name in some(chance, NAMES, 0, 2)}
            case "dependencies":
                return {name: part() if chance.random() < 0.5 else some(chance, NAMES, 1, 2) for name in some(chance, NAMES, 0, 2)}  # fmt: skip
            case "items" | "not" | "contains" | "propertyNames" | "if" | "then" | "else":
                return part()
            case _:
                return chance.randint(0, 3)


def json_pair(chance: Random):
    """Return two JSON Schemas, mostly one made of the other by small changes."""
    maker = JsonMaker(chance)
    one = maker.schema()
    if chance.randrange(10) == 0:
        return one, maker.schema()
    other = json.loads(json.dumps(one))
    places = list(_places(other))
    for _ in range(chance.randint(1, 3)):
        place = chance.choice(places)
        act = chance.randrange(4)
        if act == 0 and place:
            place.pop(chance.choice(sorted(place)))
        elif act == 1:
            for word, made in maker._object(2, refs=False).items():
                place.setdefault(word, made)
        else:
            _widen(place)
    for name in ("one", "two"):
        other.setdefault("$defs", {}).setdefault(name, True)
    return (one, other) if chance.randrange(3) == 0 else (other, one)


def _places(schema):
    """Give every subschema of a schema that is an object."""
    if not isinstance(schema, dict):
        return
    yield schema
    for word, value in schema.items():
        if word in {"properties", "patternProperties", "dependentSchemas", "$defs"}:
            for inner in value.values():
                yield from _places(inner)
        elif word not in {"enum", "const", "dependentRequired"}:
            for inner in value if isinstance(value, list) else [value]:
                yield from _places(inner)


def _widen(schema):
    for word in ("minimum", "minLength", "minItems"):
        if word in schema:
            schema[word] = max(0, schema[word] - 1)
    for word in ("maximum", "maxLength", "maxItems"):
        if word in schema:
            schema[word] += 1
    if isinstance(schema.get("type"), str):
        schema["type"] = ["null", "string"] if schema["type"] == "null" else [schema["type"], "null"]
    if "enum" in schema:
        schema["enum"].append("more")


def is_written(schema, parts, value) -> bool:
    """Tell whether a writer would write a value that is valid: it has only properties that parts that hold name."""
    holding = _holding(schema, parts, value)
    if isinstance(value, list):
        return all(is_written(schema, [one for part in holding for one in _items(part, at)], inner) for at, inner in enumerate(value))  # fmt: skip
    if not isinstance(value, dict):
        return True
    for name, inner in value.items():
        named, here = False, []
        for part in holding:
            found = [part["properties"][name]] if name in part.get("properties", {}) else []
            found += [one for pattern, one in part.get("patternProperties", {}).items() if re.search(pattern, name)]
            if not found:
                more = [part.get(word) for word in ("additionalProperties", "unevaluatedProperties")]
                found = [one for one in more if isinstance(one, dict)]
            here += found
            asked = [*part.get("required", []), *(one for names in part.get("dependentRequired", {}).values() for one in names)]  # fmt: skip
            named = named or bool(found) or name in asked
        if not named or not is_written(schema, here, inner):
            return False
    return True


def _holding(schema, parts, value):
    """Return the schemas that hold for a value, those that they lead to included."""

    def holds(part) -> bool:
        return schema.validator.accepts(part, value)

    found, work = [], list(parts)
    while work:
        part = work.pop()
        if not isinstance(part, dict) or any(part is one for one in found):
            continue
        found.append(part)
        work += [schema.target(part), *part.get("allOf", [])]
        work += [one for word in ("anyOf", "oneOf") for one in part.get(word, []) if holds(one)]
        if "if" in part:
            work += [part["if"], part.get("then")] if holds(part["if"]) else [part.get("else")]
        if isinstance(value, dict):
            work += [one for name, one in part.get("dependentSchemas", {}).items() if name in value]
    return found


def _items(part, at):
    prefix = part.get("prefixItems", [])
    return [prefix[at]] if at < len(prefix) else [part.get("items", True)]
