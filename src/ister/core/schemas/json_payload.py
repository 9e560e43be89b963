"""Decide whether a payload is valid under a JSON Schema, in a number of steps that its size bounds.

The library does not do this, for three reasons. It takes 10 to 20 µs for each value, and a broker has that for a whole
message. It takes a year for forty brackets under a schema whose items are `allOf` itself and itself. And its regular
expressions backtrack. So a schema is compiled to functions once; the tests hold them against the library.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NoReturn

from ister.core.errors import InvalidMessageError
from ister.core.schemas.document import shown
from ister.core.schemas.json_keywords import Run, TooLongError, compile_keyword
from ister.core.schemas.json_unevaluated import compile_unevaluated

if TYPE_CHECKING:
    from ister.core.schemas.document import Json
    from ister.core.schemas.json_keywords import Check
    from ister.core.schemas.json_schema import JsonSchema, SubSchema

STEPS_SPARE: Final = 100_000
STEPS_PER_BYTE: Final = 4


class PayloadValidator:
    """Validates payloads against one schema."""

    def __init__(self, schema: JsonSchema) -> None:
        self._compiler = Compiler(schema)
        self._root = self._compiler.compile(schema.root)

    def check(self, payload: bytes) -> None:
        """Raise InvalidMessageError unless a payload is JSON and valid."""
        try:
            value: Json = json.loads(payload.decode(), parse_constant=_no_constant)
        except RecursionError:
            raise InvalidMessageError("payload", "is not JSON that can be used: it is nested too deeply") from None
        except ValueError as error:
            raise InvalidMessageError("payload", f"is not JSON: {shown(str(error))}") from None
        reason = _judge(self._root, value, STEPS_SPARE + STEPS_PER_BYTE * len(payload))
        if reason is not None:
            raise InvalidMessageError("payload", f"is not of its JSON Schema: {shown(f'${reason}')}")

    def accepts(self, part: SubSchema, value: Json, *, unsure: bool) -> bool:
        """Tell whether a part of the schema takes a value; `unsure` is the answer when that takes too long."""
        try:
            return self._compiler.compile(part)(value, Run(STEPS_SPARE)) is None
        except _UNSURE:
            return unsure


class Compiler:
    """Makes functions of the parts of one schema, each once."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self._compiled: dict[int, Check] = {}

    def compile(self, part: SubSchema) -> Check:
        """Return what checks a value against a part."""
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
        """Return what checks against a part that may not be compiled yet: schemas lead in circles."""

        def check(value: Json, run: Run) -> str | None:
            return self.compile(target)(value, run)

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


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _never(value: Json, run: Run) -> str | None:  # noqa: ARG001  # every check is called alike
    return ": there may be nothing here"


def _always(value: Json, run: Run) -> str | None:  # noqa: ARG001  # every check is called alike
    return None
