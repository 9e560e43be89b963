"""Decide, keyword by keyword, whether a value fits: each keyword becomes one function, made once for a schema."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from ister.core.schemas.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import TypeAlias

    from ister.core.schemas.document import Json
    from ister.core.schemas.json_payload import Compiler

    Check: TypeAlias = "Callable[[Json, Run], str | None]"
    """Returns what is wrong, behind the place it is at (`.name[2]: reason`); None when nothing is."""
    Object: TypeAlias = "dict[str, Json]"

MATCH_STEPS: Final = 32
TEXT_STEP_BYTES: Final = 64
"""So many characters of a text are searched in the time of a step."""


class TooLongError(Exception):
    """More steps than a payload of this size may take."""


class Run:
    """One validation: counts steps down."""

    __slots__ = ("steps",)

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def spend(self, steps: int) -> None:
        """Pay for something."""
        self.steps -= steps
        if self.steps < 0:
            raise TooLongError


def compile_keyword(compiler: Compiler, keyword: str, schema: Object) -> Check | None:
    """Return what checks one keyword of a schema, None when it is a remark or belongs to another one."""
    if keyword not in compiler.schema.dialect.known:
        return None
    if keyword in _BOUNDS:
        return _bound(keyword, schema, compiler.schema.dialect.draft)
    make = _MAKERS.get(keyword)
    return None if make is None else make(compiler, schema[keyword], schema)


def found(pattern: str, text: str, run: Run) -> bool:
    """Tell whether a pattern is in a text, and pay for that."""
    run.spend(MATCH_STEPS + len(text) // TEXT_STEP_BYTES)
    return matches(pattern, text)


def key(value: Json, run: Run) -> Hashable:
    """Return something that is equal for equal values only: 1 is 1.0, and is not true."""
    match value:
        case bool():
            return _Tagged("bool", value)
        case list():
            run.spend(len(value))
            return _Tagged("list", tuple(key(one, run) for one in value))
        case dict():
            run.spend(len(value))
            return _Tagged("dict", frozenset((name, key(one, run)) for name, one in value.items()))
        case _:
            return value


class _Tagged(NamedTuple):
    tag: str
    value: Hashable


_PYTHON: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_WORDS: Final = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def _type(compiler: Compiler, names: Json, _: Object) -> Check:
    words = [names] if isinstance(names, str) else [str(name) for name in names] if isinstance(names, list) else []
    allowed = {kind for word in words for kind in _PYTHON[word]}
    whole = "integer" in words and float not in allowed and compiler.schema.dialect.draft > 4
    wanted = " or ".join(words)

    def check(value: Json, run: Run) -> str | None:  # noqa: ARG001  # every check is called alike
        if type(value) in allowed or (whole and isinstance(value, float) and value.is_integer()):
            return None
        return f": it is of type {_WORDS.get(type(value), 'object')}, not {wanted}"

    return check


def _enum(_: Compiler, values: Json, __: Object) -> Check:
    allowed = {key(one, Run(1 << 30)) for one in values} if isinstance(values, list) else set()

    def check(value: Json, run: Run) -> str | None:
        return None if key(value, run) in allowed else f": it is none of the {len(allowed)} values that it may be"

    return check


def _const(compiler: Compiler, value: Json, schema: Object) -> Check:
    return _enum(compiler, [value], schema)


def _bound(keyword: str, schema: Object, draft: int) -> Check | None:
    """Return what compares a number, or the size of a text, a list or an object, with a limit."""
    limit = schema[keyword]
    if not isinstance(limit, int | float) or isinstance(limit, bool):
        return None  # draft 4 has booleans here, which belong to minimum and maximum
    sized, low, open_end = _BOUNDS[keyword]
    if draft == 4:
        open_end = schema.get("exclusiveMinimum" if low else "exclusiveMaximum") is True and not sized

    def check(value: Json, run: Run) -> str | None:  # noqa: ARG001  # every check is called alike
        if sized:
            if not isinstance(value, sized):
                return None
            number: float = len(value)  # type: ignore[arg-type]
        else:
            if not isinstance(value, int | float) or isinstance(value, bool):
                return None
            number = value
        fits = (number > limit if low else number < limit) or (number == limit and not open_end)
        return None if fits else f": {keyword} {limit} does not hold"

    return check


_BOUNDS: Final[dict[str, tuple[type | None, bool, bool]]] = {
    "minimum": (None, True, False),
    "maximum": (None, False, False),
    "exclusiveMinimum": (None, True, True),
    "exclusiveMaximum": (None, False, True),
    "minLength": (str, True, False),
    "maxLength": (str, False, False),
    "minItems": (list, True, False),
    "maxItems": (list, False, False),
    "minProperties": (dict, True, False),
    "maxProperties": (dict, False, False),
}
"""What is measured (None: the number itself), whether the limit is the lower one, and whether it is left out."""


def _multiple_of(_: Compiler, step: Json, __: Object) -> Check:
    exact = Fraction(repr(step))

    def check(value: Json, run: Run) -> str | None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        if isinstance(value, int) and isinstance(step, int):
            fits = value % step == 0
        else:
            run.spend(8)
            fits = Fraction(repr(value)) % exact == 0  # as it is written: 0.3 is a multiple of 0.1
        return None if fits else f": it is no multiple of {step}"

    return check


def _pattern(_: Compiler, pattern: Json, __: Object) -> Check:
    text = str(pattern)

    def check(value: Json, run: Run) -> str | None:
        return f": it does not match {text!r}" if isinstance(value, str) and not found(text, value, run) else None

    return check


def _unique_items(_: Compiler, wanted: Json, __: Object) -> Check | None:
    if wanted is not True:
        return None

    def check(value: Json, run: Run) -> str | None:
        if not isinstance(value, list):
            return None
        run.spend(len(value))
        return None if len({key(one, run) for one in value}) == len(value) else ": it has an item twice"

    return check


def _required(_: Compiler, names: Json, __: Object) -> Check:
    wanted = [str(name) for name in names] if isinstance(names, list) else []

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, dict):
            run.steps -= len(wanted) >> 3
            for name in wanted:
                if name not in value:
                    return f": it has no {name!r}"
        return None

    return check


def _properties(compiler: Compiler, named: Json, _: Object) -> Check:
    checks = {name: compiler.compile(part) for name, part in _schemas(named).items()}

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, dict):
            for name, one in value.items():
                inner = checks.get(name)
                if inner is not None:
                    wrong = inner(one, run)
                    if wrong is not None:
                        return f".{name}{wrong}"
        return None

    return check


def _pattern_properties(compiler: Compiler, named: Json, _: Object) -> Check:
    checks = [(pattern, compiler.compile(part)) for pattern, part in _schemas(named).items()]

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, dict):
            for name, one in value.items():
                for pattern, inner in checks:
                    if found(pattern, name, run):
                        wrong = inner(one, run)
                        if wrong is not None:
                            return f".{name}{wrong}"
        return None

    return check


def _additional_properties(compiler: Compiler, part: Json, schema: Object) -> Check:
    inner = compiler.compile(_schema(part))
    known = set(_schemas(schema.get("properties")))
    patterns = list(_schemas(schema.get("patternProperties")))

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, dict):
            for name, one in value.items():
                if name not in known and not any(found(pattern, name, run) for pattern in patterns):
                    wrong = inner(one, run)
                    if wrong is not None:
                        return f".{name}{wrong}"
        return None

    return check


def _property_names(compiler: Compiler, part: Json, _: Object) -> Check:
    inner = compiler.compile(_schema(part))

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, dict):
            for name in value:
                wrong = inner(name, run)
                if wrong is not None:
                    return f": its name {name!r}{wrong}"
        return None

    return check


def _items(compiler: Compiler, part: Json, schema: Object) -> Check:
    if isinstance(part, list):
        return _prefix_items(compiler, part, schema)
    prefix = schema.get("prefixItems") if compiler.schema.dialect.draft >= 2020 else None
    return _rest(compiler, part, len(prefix) if isinstance(prefix, list) else 0)


def _additional_items(compiler: Compiler, part: Json, schema: Object) -> Check | None:
    items = schema.get("items")
    return _rest(compiler, part, len(items)) if isinstance(items, list) else None


def _rest(compiler: Compiler, part: Json, start: int) -> Check:
    inner = compiler.compile(_schema(part))

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, list):
            for index in range(start, len(value)):
                wrong = inner(value[index], run)
                if wrong is not None:
                    return f"[{index}]{wrong}"
        return None

    return check


def _prefix_items(compiler: Compiler, parts: Json, _: Object) -> Check:
    checks = [compiler.compile(_schema(part)) for part in parts] if isinstance(parts, list) else []

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, list):
            for index, (one, inner) in enumerate(zip(value, checks, strict=False)):
                wrong = inner(one, run)
                if wrong is not None:
                    return f"[{index}]{wrong}"
        return None

    return check


def _contains(compiler: Compiler, part: Json, schema: Object) -> Check:
    inner = compiler.compile(_schema(part))
    counted = compiler.schema.dialect.draft >= 2019
    least, most = (schema.get("minContains", 1), schema.get("maxContains")) if counted else (1, None)

    def check(value: Json, run: Run) -> str | None:
        if not isinstance(value, list):
            return None
        count = sum(inner(one, run) is None for one in value)
        if count < least or (most is not None and count > most):  # type: ignore[operator]
            return f": {count} of its items are like one that it must contain"
        return None

    return check


def _dependent_required(_: Compiler, named: Json, __: Object) -> Check:
    wanted = {name: _names(names) for name, names in named.items()} if isinstance(named, dict) else {}

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, dict):
            run.steps -= len(wanted) >> 3
            for name, names in wanted.items():
                if name in value:
                    for one in names:
                        if one not in value:
                            return f": it has {name!r} and no {one!r}"
        return None

    return check


def _dependent_schemas(compiler: Compiler, named: Json, _: Object) -> Check:
    checks = [(name, compiler.compile(part)) for name, part in _schemas(named).items()]

    def check(value: Json, run: Run) -> str | None:
        if isinstance(value, dict):
            run.steps -= len(checks) >> 3
            for name, inner in checks:
                if name in value:
                    wrong = inner(value, run)
                    if wrong is not None:
                        return wrong
        return None

    return check


def _dependencies(compiler: Compiler, named: Json, schema: Object) -> Check:
    parts = named if isinstance(named, dict) else {}
    names = _dependent_required(compiler, {k: v for k, v in parts.items() if isinstance(v, list)}, schema)
    schemas = _dependent_schemas(compiler, {k: v for k, v in parts.items() if not isinstance(v, list)}, schema)

    def check(value: Json, run: Run) -> str | None:
        return names(value, run) or schemas(value, run)

    return check


def _all_of(compiler: Compiler, parts: Json, _: Object) -> Check:
    checks = [compiler.compile(_schema(part)) for part in parts] if isinstance(parts, list) else []

    def check(value: Json, run: Run) -> str | None:
        for inner in checks:
            wrong = inner(value, run)
            if wrong is not None:
                return wrong
        return None

    return check


def _any_of(compiler: Compiler, parts: Json, _: Object) -> Check:
    checks = [compiler.compile(_schema(part)) for part in parts] if isinstance(parts, list) else []

    def check(value: Json, run: Run) -> str | None:
        wrong = None
        for inner in checks:
            wrong = inner(value, run)
            if wrong is None:
                return None
        return f": none of {len(checks)} alternatives fits; the last one: {wrong}"

    return check


def _one_of(compiler: Compiler, parts: Json, _: Object) -> Check:
    checks = [compiler.compile(_schema(part)) for part in parts] if isinstance(parts, list) else []

    def check(value: Json, run: Run) -> str | None:
        fits = sum(inner(value, run) is None for inner in checks)
        return None if fits == 1 else f": {fits} of {len(checks)} alternatives fit, and one must"

    return check


def _not(compiler: Compiler, part: Json, _: Object) -> Check:
    inner = compiler.compile(_schema(part))

    def check(value: Json, run: Run) -> str | None:
        return None if inner(value, run) is not None else ": it is what it must not be"

    return check


def _if(compiler: Compiler, part: Json, schema: Object) -> Check:
    condition = compiler.compile(_schema(part))
    then = compiler.compile(_schema(schema.get("then", True)))
    otherwise = compiler.compile(_schema(schema.get("else", True)))

    def check(value: Json, run: Run) -> str | None:
        return then(value, run) if condition(value, run) is None else otherwise(value, run)

    return check


def _schema(part: Json) -> bool | Object:
    assert isinstance(part, bool | dict), "the definition was checked"
    return part


def _schemas(named: Json) -> dict[str, bool | Object]:
    return {name: _schema(part) for name, part in named.items()} if isinstance(named, dict) else {}


def _names(names: Json) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list) else []


_MAKERS: Final[dict[str, Callable[[Compiler, Json, Object], Check | None]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "uniqueItems": _unique_items,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
}
