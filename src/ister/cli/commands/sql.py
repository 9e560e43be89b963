"""`ister sql`: one statement of Spark's SQL; rows as a table or one JSON object a line, one sentence for a mistake."""

import asyncio
import json
import math
import re
from base64 import b64encode
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated

import typer
from rich.text import Text

from ister.cli.commands.config import load_config
from ister.cli.options import ConfigOption, DataDirOption, OutputOption, command, command_group, utf8_text
from ister.cli.output import Output, many, notice, preview, print_table, printable, say
from ister.config import Config
from ister.core.errors import BusyError, ClientError
from ister.pipeline.java import cause_line

CELL_COLUMNS = 60
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")
_PLACE_AT_END = re.compile(r"[;.]?\s*(\(line \d+, pos \d+\)|line \d+,? pos \d+)[;.]?\s*$")

app = command_group()


@command(app)
def _sql(
    statement: Annotated[
        str, typer.Argument(metavar="STATEMENT", help="One statement of Spark's SQL.", parser=utf8_text)
    ],
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Rows to show at most.")] = 100,
    file: ConfigOption = None,
    data_dir: DataDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask the lake in SQL.

    A topic's table is namespace.topic, in lower case with - as _. JSON has one object a line, bytes in base64.

    Example: ister sql "SELECT count(*), max(topic_offset) FROM default.orders"
    """
    answer = query(load_config(file, data_dir).config, statement, limit)
    (show_json if output is Output.JSON else show_table)(answer, limit)


class SqlRefusedError(ClientError):
    """Spark rejects the statement."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"Spark refuses the statement: {cause}; `ister sql 'SHOW TABLES IN default'` lists tables")


class SqlFailedError(BusyError):
    """The statement is valid and its execution failed."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"Spark failed at the statement: {cause}; `ister pipeline status` tells of the tables")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a statement, as Python values; `more` if there are others behind the limit."""

    columns: list[str]
    rows: list[tuple[object, ...]]
    more: bool


def query(config: Config, statement: str, limit: int) -> Answer:
    """Run one statement on the lake; the catalog is the default one."""
    from ister.pipeline.session import open_session
    from ister.runtime.identity import require_own_directory

    asyncio.run(require_own_directory(config))
    spark = open_session(config)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # It logs every error a second time, with Java's stack trace.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        spark.sql(f"USE {config.storage.iceberg_config.catalog.name}")
        # One row more than is shown, to know whether there are more.
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
    """Return the sentence of Spark's error, without its codes, its echo of the statement and Java's stack trace."""
    sentence = cause_line(text) or "it does not say why"
    sentence = _STATE.sub("", _CONDITION.sub("", re.sub(r"^(?:[\w.$]+(?:Exception|Error): )+", "", sentence)))
    place = _PLACE.search(sentence)
    sentence = _PLACE_AT_END.sub("", sentence).rstrip(" .;")
    return f"{sentence} (line {place[1]}, column {int(place[2]) + 1})" if place else sentence


def show_table(answer: Answer, limit: int) -> None:
    """Write the rows as a table, and whether there are more rows."""
    if not answer.columns:
        say("Done.")
        return
    headings = [
        f"{'>' if _are_numbers(answer, place) else '<'}{printable(name)}" for place, name in enumerate(answer.columns)
    ]
    rows = [[Text(cell(value), "dim" if value is None else "") for value in row] for row in answer.rows]
    print_table(headings, rows)
    if answer.more:
        say(f"The first {many(limit, 'row')}; there are more, see --limit.")
    else:
        say(f"{many(len(answer.rows), 'row')}.")


def show_json(answer: Answer, limit: int) -> None:
    """Write one JSON object a row, and a notice if there are more rows."""
    names = distinct(answer.columns)
    for row in answer.rows:
        named = {name: as_json(value) for name, value in zip(names, row, strict=True)}
        say(json.dumps(named, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
    if answer.more:
        notice(f"ister: these are the first {many(limit, 'row')}; there are more, see --limit.")


def distinct(columns: list[str]) -> list[str]:
    """Return unique names: the second `a` is `a_2`."""
    found: list[str] = []
    for column in columns:
        name, count = column, 1
        while name in found or (count > 1 and name in columns):
            count += 1
            name = f"{column}_{count}"
        found.append(name)
    return found


def as_json(value: object) -> object:
    """Return a value that JSON can represent: numbers that are not finite, and other types, are strings."""
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
    """Return the text of a table cell, cut if it is long."""
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
    """Return the string for a value that JSON has no type for; bytes in base64."""
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
