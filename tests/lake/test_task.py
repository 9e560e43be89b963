"""A Spark worker between two tasks: what it need not do again."""

import gc
import importlib
import os
import subprocess
import sys
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from ister.lake import parquet
from ister.lake.columns import table_rows
from ister.pipeline import task
from ister.pipeline.task import Reach, WriteJob, ease_reuse, write_splits
from parts.lake import messages

REACH = Reach({}, "memory", "none", {})


def archives():
    return [place for place, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive of modules on the path, as Spark's own are on a worker's."""
    with ZipFile(tmp_path / "archive.zip", "w") as file:
        file.writestr("of_an_archive/__init__.py", "")
        file.writestr("of_an_archive/one.py", "value = 1")
        file.writestr("of_an_archive/two.py", "value = 2")
    monkeypatch.syspath_prepend(tmp_path / "archive.zip")
    yield
    for name in [name for name in sys.modules if name.startswith("of_an_archive")]:
        del sys.modules[name]


@pytest.fixture
def unfrozen():
    gc.unfreeze()
    task._freeze_imports.cache_clear()
    yield
    gc.unfreeze()


def test_a_finder_of_an_archive_is_forgotten_after_a_task_and_found_again(archive, unfrozen):
    assert importlib.import_module("of_an_archive.one").value == 1
    assert len(archives()) >= 2, "one for the archive, and one for its package"
    assert list(write_splits(WriteJob(REACH, 1 << 20, {}), iter([]))) == []
    assert archives() == []
    assert importlib.import_module("of_an_archive.two").value == 2


def test_what_was_imported_is_no_garbage_and_what_comes_later_may_be(unfrozen):
    ease_reuse()
    frozen = gc.get_freeze_count()
    assert frozen
    later = [[] for _ in range(1000)]
    ease_reuse()
    assert gc.get_freeze_count() <= frozen
    del later


def test_a_reused_worker_of_spark_keeps_no_finder_of_archives(spark):
    def look(batches):
        import pyarrow as pa

        for _ in batches:
            found = [type(finder).__name__ for finder in sys.path_importer_cache.values()]
            yield pa.RecordBatch.from_pydict(
                {"archives": [found.count("zipimporter")], "frozen": [gc.get_freeze_count()]}
            )
        ease_reuse()

    rows = [spark.range(0, 1, 1, 1).mapInArrow(look, "archives long, frozen long").collect()[0] for _ in range(3)]
    assert rows[-1].frozen > 0, "the worker of the task before"
    assert rows[-1].archives < 10


def test_files_of_equal_columns_with_other_field_ids_are_described_by_their_own():
    """Arrow calls two schemas equal whose field ids differ."""
    schema = table_rows(messages(0, 1), 0).schema
    first = schema.field(0)
    other = schema.set(0, first.with_metadata({b"PARQUET:field_id": b"99"}))
    assert other == schema
    ids, others = (parquet._columns(one.serialize().to_pybytes()).ids for one in (schema, other))
    assert ids[first.name] != 99
    assert others[first.name] == 99


FILLS = """
import resource, sys
from pathlib import Path
import json
from parts.lake import TOPIC, lake_of, messages
from ister.schemas import SchemaType
from ister.schemas.schema import parse
from ister.schemas.decode import shape_of
from ister.lake.evolve import evolve
from ister.lake.parquet import write_files
from ister.lake.columns import table_rows
from ister.pipeline.typed_values import Typed, Values

columns = {f"c{index}": {"type": "integer"} for index in range(900)}
items = {"type": "object", "properties": columns}
schema = {"type": "object", "properties": {"l": {"type": "array", "items": items}}}
definition = json.dumps(schema).encode()
directory = Path(sys.argv[1])
table = lake_of(directory).table(TOPIC, 1)
table.claim(1)
evolve(table, [shape_of(parse(SchemaType("json_schema"), definition))])
values = Values(Typed(table.schema.model_dump_json(), ((1, 1, "json_schema", definition),), (1, 1)))
payload = b'{"l":[' + b",".join([b"{}"] * 1100) + b"]}"
rows = table_rows(messages(0, 24, payload=[payload] * 24), 0)

def used_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

before = used_bytes()
written = write_files({}, table.location, values.add_to(rows), partition=0, name="x", target_bytes=1 << 27)
print(sum(one.rows for one in written), used_bytes() - before)
"""


def test_a_task_needs_no_more_memory_than_for_what_is_built_at_once(tmp_path):
    """K3: 80 KB of messages are 190 MB of columns."""
    path = os.pathsep.join(sys.path)
    found = subprocess.run(
        [sys.executable, "-c", FILLS, str(tmp_path)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}, timeout=300,
    )  # fmt: skip
    rows, used = map(int, found.stdout.split()[-2:])
    assert rows == 24
    assert used < 200 << 20, used
