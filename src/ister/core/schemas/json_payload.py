"""Decide whether a payload is valid under a JSON Schema, in a number of steps that its size bounds.

The library does not do this, for three reasons. It takes 10 to 20 µs for each value, and a broker has that for a whole
message. It takes a year for forty brackets under a schema whose items are `allOf` itself and itself. And its regular
expressions backtrack. So a schema is compiled to functions once; the tests hold them against the library.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ister.core.errors import InvalidMessageError
from ister.core.schemas.document import finite_float, no_constant, shown
from ister.core.schemas.json_keywords import Run, TooLongError, compile_keyword
from ister.core.schemas.json_unevaluated import compile_unevaluated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ister.core.schemas.document import Json
    from ister.core.schemas.json_keywords import Check
    from ister.core.schemas.json_schema import JsonSchema, SubSchema

STEPS_SPARE: Final = 100_000
STEPS_PER_BYTE: Final = 4


class PayloadValidator:
    """Validates payloads against one schema. Immutable once made, since threads share it: `schemas` are all subschemas."""

    def __init__(self, schema: JsonSchema, schemas: Iterable[SubSchema]) -> None:
        self._schema = schema
        self._compiler = Compiler(schema)
        self._compiler.compile_all((schema.root, *schemas))
        self._root = self._compiler.compiled(schema.root)

    def check(self, payload: bytes) -> None:
        """Raise InvalidMessageError unless a payload is JSON and valid."""
        try:
            value: Json = json.loads(payload.decode(), parse_constant=no_constant, parse_float=finite_float)
        except RecursionError:
            raise InvalidMessageError("payload", "is not JSON that can be used: it is nested too deeply") from None
        except ValueError as error:
            raise InvalidMessageError("payload", f"is not JSON: {shown(str(error))}") from None
        reason = _judge(self._root, value, STEPS_SPARE + STEPS_PER_BYTE * len(payload))
        if reason is not None:
            raise InvalidMessageError("payload", f"is not of its JSON Schema: {shown(f'${reason}')}")

    def accepts(self, part: SubSchema, value: Json, *, unsure: bool) -> bool:
        """Tell whether a part of the schema takes a value; `unsure` is the answer when that takes too long."""
        compiler = self._compiler
        if not compiler.knows(part):  # a comparison may meet what is no subschema in this dialect
            compiler = Compiler(self._schema)
            compiler.compile_all((part,))
        try:
            return compiler.compiled(part)(value, Run(STEPS_SPARE)) is None
        except _UNSURE:
            return unsure


class Compiler:
    """Makes functions of the parts of one schema, each once: `compile_all` first, and only then are values checked."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self._compiled: dict[int, Check] = {}
        self._referred: list[SubSchema] = []

    def compile_all(self, parts: Iterable[SubSchema]) -> None:
        """Compile some parts and everything that they refer to."""
        self._referred += parts
        while self._referred:
            self.compile(self._referred.pop())

    def knows(self, part: SubSchema) -> bool:
        """Return True if a part is compiled."""
        return isinstance(part, bool) or id(part) in self._compiled

    def compiled(self, part: SubSchema) -> Check:
        """Return the function of a part that was compiled."""
        if isinstance(part, bool):
            return _always if part else _never
        return self._compiled[id(part)]

    def compile(self, part: SubSchema) -> Check:
        """Return what checks a value against a part, once `compile_all` is done."""
        if isinstance(part, bool):
            return _always if part else _never
        known = self._compiled.get(id(part))
        if known is not None:
            return known
        checks: list[Check] = []

        def check(value: Json, run: Run) -> str | None:
            run.steps -= 1
            if run.steps < 0:
                raise TooLongError
            for one in checks:
                wrong = one(value, run)
                if wrong is not None:
                    return wrong
            return None

        self._compiled[id(part)] = check
        target = self.schema.target(part)
        if target is not None:
            checks.append(self._refer(target))
            if self.schema.dialect.draft <= 7:
                return check
        for keyword in part:
            one = compile_keyword(self, keyword, part) or compile_unevaluated(self, keyword, part)
            if one is not None:
                checks.append(one)
        return check

    def _refer(self, target: SubSchema) -> Check:
        """Return what checks against a part that is compiled later: schemas lead in circles."""
        self._referred.append(target)

        def check(value: Json, run: Run) -> str | None:
            return self.compiled(target)(value, run)

        return check


_UNSURE: Final = (TooLongError, RecursionError, UnicodeEncodeError)


def _judge(check: Check, value: Json, steps: int) -> str | None:
    try:
        return check(value, Run(steps))
    except TooLongError:
        return ": it takes too long to check"
    except RecursionError:
        return ": it is nested too deeply"
    except UnicodeEncodeError:
        return ": it holds half a character"


def _never(value: Json, run: Run) -> str | None:  # noqa: ARG001  # every check is called alike
    return ": there may be nothing here"


def _always(value: Json, run: Run) -> str | None:  # noqa: ARG001  # every check is called alike
    return None
