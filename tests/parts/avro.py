"""Random Avro schemas and values."""

from random import Random

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


class Maker:
    """Makes a schema; the names of types are few, so that those of two schemas meet."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._names: list[str] = []
        self._open: list[str] = []

    def kind(self, depth: int = 3):
        chance = self._chance
        choice = chance.randrange(12)
        if choice <= 3 or depth == 0:
            return chance.choice(PRIMITIVES)
        if choice == 4:
            return {"type": "array", "items": self.kind(depth - 1)}
        if choice == 5:
            return {"type": "map", "values": self.kind(depth - 1)}
        if choice == 6 and self._names:
            return chance.choice(self._names)
        if choice == 7:
            return self._union(depth)
        if choice == 8 and (name := self._new("E")):
            symbols = chance.sample(["A", "B", "C"], chance.randint(1, 3))
            made = {"type": "enum", "name": name, "symbols": symbols}
            return made | ({"default": symbols[0]} if chance.random() < 0.3 else {})
        if choice == 9 and (name := self._new("F")):
            return {"type": "fixed", "name": name, "size": chance.randint(0, 2)}
        if name := self._new("R"):
            return self._record(name, depth)
        return "int"

    def _new(self, letter: str) -> str | None:
        free = [name for name in (f"{letter}1", f"{letter}2", f"{letter}3") if name not in [*self._names, *self._open]]
        if not free:
            return None
        name = self._chance.choice(free[:2])
        if letter == "R":
            self._open.append(name)
        else:
            self._names.append(name)
        return name

    def _record(self, name: str, depth: int):
        fields = []
        for word in self._chance.sample(["a", "b", "c"], self._chance.randint(0, 3)):
            kind = ["null", self._chance.choice(self._open)] if self._chance.random() < 0.15 else self.kind(depth - 1)
            made = {"name": word, "type": kind}
            if self._chance.random() < 0.4 and (default := self._default(kind)) is not ...:
                made["default"] = default
            if self._chance.random() < 0.1:
                made["aliases"] = [self._chance.choice(["a", "b", "c"])]
            fields.append(made)
        self._open.remove(name)
        self._names.append(name)
        return {"type": "record", "name": name, "fields": fields}

    def _union(self, depth: int):
        branches, words = [], set()
        for _ in range(self._chance.randint(1, 3)):
            kind = self.kind(depth - 1)
            word = (
                kind if isinstance(kind, str) else kind[0] if isinstance(kind, list) else kind.get("name", kind["type"])
            )
            if not isinstance(kind, list) and word not in words:
                words.add(word)
                branches.append(kind)
        return branches or ["null", "int"]

    def _default(self, kind):
        simple = {
            "null": None,
            "boolean": True,
            "int": 1,
            "long": 2,
            "float": 0.5,
            "double": 1.5,
            "bytes": "x",
            "string": "s",
        }
        if isinstance(kind, str):
            return simple.get(kind, ...)
        if isinstance(kind, list):
            return self._default(kind[0])
        return {"array": [], "map": {}}.get(kind["type"], ...)


def value(chance: Random, kind, named: dict, depth: int = 5):
    """Return a value of a type; a union's is given with its branch, so that fastavro need not guess."""
    if isinstance(kind, list):
        options = [one for one in kind if one == "null"] if depth <= 0 and "null" in kind else kind
        branch = chance.choice(options)
        name = branch if isinstance(branch, str) else branch.get("name", branch["type"])
        return (
            (name, value(chance, branch, named, depth - 1))
            if name not in PRIMITIVES
            else value(chance, branch, named, depth)
        )
    if isinstance(kind, str) and kind in named:
        kind = named[kind]
    word = kind if isinstance(kind, str) else kind["type"]
    match word:
        case "null":
            return None
        case "boolean":
            return chance.random() < 0.5
        case "int":
            return chance.choice([0, 1, -1, 2**31 - 1, -(2**31)])
        case "long":
            return chance.choice([0, 1, -1, 2**63 - 1, -(2**63)])
        case "float" | "double":
            return chance.choice([0.0, 1.5, -2.0])
        case "string":
            return chance.choice(["", "a", "é"])
        case "bytes":
            return chance.choice([b"", b"a"])
        case "array":
            return [
                value(chance, kind["items"], named, depth - 1) for _ in range(chance.randint(0, 2 if depth > 0 else 0))
            ]
        case "map":
            return {key: value(chance, kind["values"], named, depth - 1) for key in chance.sample("xyz", chance.randint(0, 2 if depth > 0 else 0))}  # fmt: skip
        case "enum":
            return chance.choice(kind["symbols"])
        case "fixed":
            return b"q" * kind["size"]
        case _:
            return {one["name"]: value(chance, one["type"], named, depth - 1) for one in kind["fields"]}


def names(schema, found=None) -> dict:
    """Return the named types of a schema."""
    found = {} if found is None else found
    if isinstance(schema, list):
        for one in schema:
            names(one, found)
    elif isinstance(schema, dict):
        if "name" in schema:
            found[schema["name"]] = schema
        for inner in [schema.get("items"), schema.get("values"), *(one["type"] for one in schema.get("fields", []))]:
            names(inner, found)
    return found
