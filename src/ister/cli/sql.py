"""Ask the lake in Spark's SQL: a table for people, one object a line for programs, one sentence for a mistake."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, notice, preview, printable, say, tables
from ister.core.errors import BusyError, ClientError
from ister.pipeline.java import cause_line

if TYPE_CHECKING:
    from ister.config import Config

CELL_COLUMNS = 60
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")
_PLACE_AT_END = re.compile(r"[;.]?\s*(\(line \d+, pos \d+\)|line \d+,? pos \d+)[;.]?\s*$")


class SqlRefusedError(ClientError):
    """Spark does not understand the statement, or cannot do what it says."""

    def __init__(self, said: str) -> None:
        self.said = said
        super().__init__(f"Spark refuses the statement: {said}; `ister sql 'SHOW TABLES IN default'` lists tables")


class SqlFailedError(BusyError):
    """The statement was understood and its execution failed."""

    def __init__(self, said: str) -> None:
        self.said = said
        super().__init__(f"Spark failed at the statement: {said}; `ister pipeline status` tells of the tables")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a statement, as Python values; `more` tells that there are others behind the limit."""

    columns: list[str]
    rows: list[tuple[object, ...]]
    more: bool


def ask(config: Config, statement: str, limit: int) -> Answer:
    """Run one statement on the lake; the catalog is the default one."""
    from ister.pipeline.session import open_session  # noqa: PLC0415  # Spark takes its time

    spark = open_session(config)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415  # Spark is there by now
    from pyspark.errors import PySparkException  # noqa: PLC0415  # the same
    from pyspark.logger import PySparkLogger  # noqa: PLC0415  # the same

    # It tells every mistake once more, with Java's stack.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        spark.sql(f"USE {config.storage.iceberg_config.catalog.name}")
        # One more than is shown tells whether there is more.
        found = spark.sql(statement).limit(limit + 1).toArrow()
    except PySparkException as error:
        raise SqlRefusedError(sentence_of(str(error))) from None
    except Py4JError as error:
        raise SqlFailedError(sentence_of(str(error))) from None
    finally:
        spark.stop()
    columns = [column.to_pylist(maps_as_pydicts="lossy") for column in found.slice(0, limit).columns]
    rows = [tuple(values) for values in zip(*columns, strict=True)]
    return Answer(list(found.column_names), rows, found.num_rows > limit)


def sentence_of(text: str) -> str:
    """Return the sentence in what Spark says, without its codes, its echo of the statement and Java's stack."""
    said = cause_line(text) or "it does not say why"
    said = _STATE.sub("", _CONDITION.sub("", re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", said)))
    place = _PLACE.search(said)
    said = _PLACE_AT_END.sub("", said).rstrip(" .;")
    return f"{said} (line {place[1]}, column {int(place[2]) + 1})" if place else said


def show_table(answer: Answer, limit: int) -> None:
    """Write the rows as a table, and whether there are more."""
    if not answer.columns:
        say("Done.")
        return
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    numbers = [_are_numbers(answer, place) for place in range(len(answer.columns))]
    for name, is_number in zip(answer.columns, numbers, strict=True):
        table.add_column(printable(name), justify="right" if is_number else "left", overflow="fold")
    for row in answer.rows:
        table.add_row(*(Text(cell(value), "dim" if value is None else "") for value in row))
    console.print(table)
    if answer.more:
        say(f"The first {many(limit, 'row')}; there are more, see --limit.")
    else:
        say(f"{many(len(answer.rows), 'row')}.")


def show_json(answer: Answer, limit: int) -> None:
    """Write one object a line; whether there are more is said to stderr."""
    names = distinct(answer.columns)
    for row in answer.rows:
        named = {name: as_json(value) for name, value in zip(names, row, strict=True)}
        say(json.dumps(named, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
    if answer.more:
        notice(f"ister: these are the first {many(limit, 'row')}; there are more, see --limit.")


def distinct(columns: list[str]) -> list[str]:
    """Return names of which none is there twice: the second `a` is `a_2`."""
    found: list[str] = []
    for column in columns:
        name, count = column, 1
        while name in found or (count > 1 and name in columns):
            count += 1
            name = f"{column}_{count}"
        found.append(name)
    return found


def as_json(value: object) -> object:
    """Return a value as JSON has it: numbers that are not finite, and what JSON has no form for, are texts."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
        case list():
            return [as_json(one) for one in value]
        case dict():
            return {name if isinstance(name, str) else plain(name): as_json(one) for name, one in value.items()}
    return plain(value)


def cell(value: object) -> str:
    """Show a value to people, however long it is."""
    match value:
        case None:
            return "NULL"
        case bytes():
            return preview(value, CELL_COLUMNS)
        case bool():
            return str(value).lower()
        case dict() | list():
            return preview(json.dumps(as_json(value), ensure_ascii=False).encode(), 2 * CELL_COLUMNS)
        case datetime():
            return value.isoformat(sep=" ")
    return printable(str(value))


def plain(value: object) -> str:
    """Write as JSON text what JSON has no form for; bytes in base64."""
    match value:
        case bytes():
            return b64encode(value).decode("ascii")
        case date():
            return value.isoformat()
        case Decimal() | timedelta():
            return str(value)
    return repr(value)


def _are_numbers(answer: Answer, place: int) -> bool:
    values = [row[place] for row in answer.rows if row[place] is not None]
    return bool(values) and all(isinstance(value, int | float | Decimal) and value is not True for value in values)
