"""A real Spark session on a real catalog."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ister.config import load, loads
from ister.config.catalog import spark_catalog_conf
from ister.core.errors import BusyError, InvalidConfigError
from ister.pipeline.session import (
    HIDDEN,
    MAINTENANCE,
    TICKS,
    JarsMissingError,
    OtherSessionError,
    differing,
    in_pool,
    jar_conf,
    jar_name,
    open_session,
    session_conf,
)

PACKAGES = ["org.a:b_2.13:1.0", "c:d:2"]


def test_spark_answers(spark):
    assert spark.sql("SELECT 1 AS one").collect()[0].one == 1


def test_a_python_worker_runs_our_interpreter_and_can_import_us(spark):
    def look(batches):
        import pyarrow as pa

        import ister.core.frames.frame

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable], "path": [ister.core.frames.frame.__file__]})

    [row] = spark.range(1).mapInArrow(look, "python string, path string").collect()
    assert row.python == sys.executable
    assert Path(row.path).name == "frame.py"


def test_both_sides_see_one_catalog(spark, catalog):
    catalog.create_namespace_if_not_exists("made_by_python")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ister.made_by_spark")
    seen = {row.namespace for row in spark.sql("SHOW NAMESPACES IN ister").collect()}
    assert {"made_by_python", "made_by_spark"} <= seen
    assert ("made_by_spark",) in catalog.list_namespaces()


def test_times_are_utc_and_nothing_listens_for_browsers(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None


def test_jobs_run_in_the_pool_of_their_thread(spark):
    context = spark.sparkContext
    pools = context._jsc.sc().getAllPools()
    assert {pools.apply(i).name() for i in range(pools.size())} >= {TICKS, MAINTENANCE}
    with in_pool(spark, MAINTENANCE):
        assert context.getLocalProperty("spark.scheduler.pool") == MAINTENANCE
        with in_pool(spark, TICKS):
            spark.range(1).collect()
        assert context.getLocalProperty("spark.scheduler.pool") == MAINTENANCE
    assert context.getLocalProperty("spark.scheduler.pool") is None


def test_secrets_of_the_catalog_are_neither_on_the_command_line_nor_shown(spark):
    spark.conf.set("spark.sql.catalog.ister.token", "CANARY")
    try:
        shown = {row.key: row.value for row in spark.sql("SET").collect()}
        assert shown["spark.sql.catalog.ister.token"] == "*********(redacted)"
    finally:
        spark.conf.unset("spark.sql.catalog.ister.token")
    assert not [name for name, _ in spark.sparkContext.getConf().getAll() if name.startswith("spark.sql.catalog.")]


def test_every_setting_of_a_catalog_is_hidden():
    """K10."""
    text = b"storage: {iceberg_config: {catalog: {type: rest, uri: 'http://h:1', properties: {header.X-Api-Key: hunter2}}}}"
    conf = spark_catalog_conf(loads(text, "f.yml", None, {}).config)
    shown = {name: value for name, value in conf.items() if not re.search(HIDDEN, name)}
    assert shown == {"spark.sql.catalog.ister": "org.apache.iceberg.spark.SparkCatalog"}


def test_settings_on_the_command_line_name_no_catalog_and_bind_to_this_machine(tmp_path):
    conf = session_conf("local[2]", tmp_path)
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert not [name for name in conf if name.startswith("spark.sql.catalog.")]
    assert "spark.driver.host" not in session_conf("spark://m:7077", tmp_path)


def test_jars_that_are_there_are_not_asked_for_again(tmp_path):
    asked = {"spark.jars.packages": ",".join(PACKAGES), "spark.jars.ivy": str(tmp_path)}
    assert jar_conf(PACKAGES, tmp_path) == asked
    (tmp_path / "jars").mkdir()
    first, second = (tmp_path / "jars" / jar_name(package) for package in PACKAGES)
    first.touch()
    assert jar_conf(PACKAGES, tmp_path) == asked, "one of two is not enough"
    second.touch()
    assert jar_conf(PACKAGES, tmp_path) == {"spark.jars": f"{first},{second}"}
    assert first.name == "org.a_b_2.13-1.0.jar"


def test_a_second_session_with_the_same_lake_is_the_first_one(spark, lake_config):
    """M1."""
    assert open_session(lake_config) is spark
    assert open_session(lake_config, master="local[2]") is spark


def test_a_second_session_with_another_lake_or_master_is_refused_and_changes_nothing(spark, lake_config, tmp_path):
    """M1."""
    before = dict(spark.conf.getAll)
    other = load(None, tmp_path, {}).config
    with pytest.raises(
        OtherSessionError, match=r"\(spark\.sql\.catalog\.ister\.uri, .*\.warehouse differ\).*spark\.stop\(\)"
    ):
        open_session(other)
    with pytest.raises(OtherSessionError, match=r"\(spark\.master differ\)"):
        open_session(lake_config, master="local[3]")
    assert spark.conf.getAll == before


def test_a_session_that_somebody_else_started_is_refused_in_one_sentence():
    """M8."""
    ours = {"spark.sql.extensions": "iceberg", "spark.sql.catalog.ister": "c", "spark.sql.catalog.ister.uri": "u"}
    names = differing({"spark.master": "local[4]"}, ours, "spark.sql.catalog.ister")
    assert names == sorted(ours)
    assert str(OtherSessionError(names)).count("\n") == 0
    assert differing(ours | {"spark.sql.extensions": "delta,iceberg", "x": "y"}, ours, "spark.sql.catalog.ister") == []
    more = ours | {"spark.sql.catalog.ister.s3.endpoint": "e", "spark.sql.catalog.isters": "d"}
    assert differing(more, ours, "spark.sql.catalog.ister") == ["spark.sql.catalog.ister.s3.endpoint"]


def test_spark_refuses_the_memory_catalog():
    config = loads(b"storage: {iceberg_config: {catalog: {type: memory}}}", "f.yml", None, {}).config
    with pytest.raises(InvalidConfigError, match="use sql"):
        open_session(config)


OFFLINE = """
import json
from ister.config import load
from ister.pipeline import session
session.spark_packages = lambda config: ["org.nowhere:nothing:1.0"]
try:
    session.open_session(load().config, master="local[1]")
except session.JarsMissingError as error:
    print(json.dumps([str(error), error.jars]))
"""


def test_without_a_network_the_error_names_the_jars_and_where_to_put_them(tmp_path):
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told, jars = json.loads(done.stdout)
    assert jars == ["org.nowhere_nothing-1.0.jar"]
    assert f"run once with a network, or put them into {tmp_path}/ister/ivy/jars" in told
    assert issubclass(JarsMissingError, BusyError)


NO_START = """
import sys
from ister.config import load
from ister.pipeline import session
if "grpc" in sys.argv:
    import grpc
session.spark_packages = lambda config: []
try:
    session.open_session(load().config, master="local[1]")
except session.SparkNotStartedError as error:
    print(error)
"""

JAVA_THAT_ENDS = """#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit 0
exit 7
"""


@pytest.mark.parametrize(("word", "advice"), [("plain", "java -version"), ("grpc", "GRPC_ENABLE_FORK_SUPPORT=false")])
def test_java_that_ends_at_once_is_told_with_what_to_do(tmp_path, word, advice):
    launcher = tmp_path / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(JAVA_THAT_ENDS)
    launcher.chmod(0o755)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_START, word], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark did not start")
    assert advice in done.stdout
