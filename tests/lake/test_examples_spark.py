"""The examples on Spark and the notebook's tour run as a user runs them: in a process of their own, on a real broker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.broker import Broker
from parts.counts import LONG

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_CELLS = "import json, sys; names = {}; [exec(cell, names) for cell in json.load(sys.stdin)]"


@pytest.fixture(scope="module")
def broker():
    with Broker() as found:
        yield found


def lines_of(command, broker, stdin=""):
    environment = os.environ | {"ISTER_BROKER": broker.url, "ISTER_DATA_DIR": str(broker.data)}
    environment.pop("ISTER_PIPELINE_TOKEN", None)
    done = subprocess.run(
        [sys.executable, *command],
        input=stdin,
        env=environment,
        cwd=broker.directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def example(name, broker):
    return lines_of([EXAMPLES / name, "--broker", broker.url, "--data-dir", broker.data], broker)


@pytest.mark.skipif(not LONG, reason="the tour below does the same; make test-long runs the scripts, too")
def test_a_batch_aggregation(broker):
    assert example("spark_batch.py", broker) == [
        "anna: 100 orders, 450 euros",
        "ben: 100 orders, 450 euros",
        "clara: 100 orders, 450 euros",
    ]


@pytest.mark.skipif(not LONG, reason="the tour below does the same; make test-long runs the scripts, too")
def test_a_windowed_stream_into_a_table_and_a_write_back(broker):
    assert example("spark_stream.py", broker) == [
        *(f"12:0{minute} sensor-{number}: 30 readings, 2{number}.0 °C" for minute in range(4) for number in range(2)),
        'alarm 0: {"sensor":"sensor-0","celsius":99.0}',
    ]


def test_the_tour_runs_cell_by_cell(broker):
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "a notebook is committed without what it printed"
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    said = "\n".join(lines_of(["-c", RUN_CELLS], broker, json.dumps(code)))
    assert " |-- topic_offset: long (nullable = false)" in said
    assert "|sensor-0|     150|   99.0|" in said
    assert "|2023-11-15 12:03:00|sensor-1|      30|   21.0|" in said
    assert "12:04:00" not in said, "its minute is not over"
    assert said.count('{"sensor":"sensor-0","celsius":99.0}') == 1
