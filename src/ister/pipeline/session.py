"""The Spark session of a process: Java, jars, the lake's catalog, and settings that keep it small and quiet."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ister.config import load
from ister.config.catalog import lake_environment, require_shared_catalog, spark_catalog_conf, spark_packages
from ister.core.errors import BusyError, ClientError
from ister.pipeline.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from ister.config import Config

LOCAL = "local[*]"
TICKS = "ticks"
MAINTENANCE = "maintenance"
"""The scheduler's pools (pools.xml). Jobs that ask for none are in Spark's default one, which weighs as little as maintenance."""

# With 512m, compacting 5 million rows of 500 files (0.9 GB) runs out of memory; micro-batches alone need less.
DRIVER_MEMORY = "768m"
HIDDEN = (
    "(?i)secret|pass|token|credential|access[.-]?key|account[.-]?key|private[.-]?key|sas|auth|"
    r"^spark\.sql\.catalog\.[^.]+\."
)
"""Names of settings whose values Spark redacts; all of `catalog.properties` is secret."""
HERE = Path(__file__).parent
EXTENSIONS = "spark.sql.extensions"
NAMED_MAX = 4
"""How many settings an error lists."""


class JarsMissingError(BusyError):
    """Spark's jars are missing and could not be fetched."""

    def __init__(self, jars: Sequence[str], directory: str, cause: str) -> None:
        self.jars, self.directory, self.cause = tuple(jars), directory, cause
        super().__init__(
            f"Spark did not start, probably because the jars {', '.join(jars)} could not be fetched ({cause}); "
            f"run once with a network, or put them into {directory}"
        )


class SparkNotStartedError(BusyError):
    """Java ended before Spark was ready."""

    def __init__(self, advice: str) -> None:
        self.advice = advice
        super().__init__(f"Spark did not start: Java ended at once, and its own message stands above; {advice}")


class OtherSessionError(ClientError):
    """A Spark session with other settings runs in this process."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        super().__init__(
            f"a Spark session with other settings runs in this process ({', '.join(names[:NAMED_MAX])}{more} differ), and "
            "tables would be read from and written to its catalog: stop it first with spark.stop(), or use another process"
        )


AFTER_GRPC = (
    "this process uses gRPC, whose handlers may have ended the child that was to become Java: start Spark before the first "
    "gRPC call, or set GRPC_ENABLE_FORK_SUPPORT=false before Python starts"
)
BY_HAND = "run `java -version`, and check JAVA_HOME, the free memory and the free space in the temporary directory"


def cache_directory() -> Path:
    """Return the directory of jars and the launcher shim."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ister"


def jar_name(coordinate: str) -> str:
    """Return the file name that Spark's resolver gives to `group:artifact:version`."""
    group, artifact, version = coordinate.split(":")
    return f"{group}_{artifact}-{version}.jar"


def jar_conf(packages: Sequence[str], ivy: Path) -> dict[str, str]:
    """Return the settings for Spark's jars: cached files if there are, else Maven coordinates.

    Files are preferred because the resolver takes a second or two, and may use the network.
    """
    jars = [ivy / "jars" / jar_name(package) for package in packages]
    if all(jar.is_file() for jar in jars):
        return {"spark.jars": ",".join(str(jar) for jar in jars)}
    return {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": str(ivy)}


def session_conf(master: str, cache: Path) -> dict[str, str]:
    """Return Spark's settings except jars and catalog; none is secret, because they appear on a command line."""
    found = {
        "spark.app.name": "ister",
        "spark.master": master,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(HERE / 'log4j2.properties').as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": HIDDEN,
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (HERE / "pools.xml").as_uri(),
        EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(cache / "spark-warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A DataFrame of an Arrow table has a partition for each batch; below the threshold Spark repartitions its rows.
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.python.worker.reuse": "true",
    }
    if master.startswith("local"):
        # Only this process connects to it.
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return found


def open_session(config: Config, *, master: str | None = None) -> SparkSession:
    """Start Spark with the lake of this configuration, on all cores unless `master` is given.

    That takes seconds, and minutes where jars must be fetched first. A process has one session: one that runs with the same
    catalog is returned, and OtherSessionError raised for any other, because Spark keeps the catalog that it has opened.
    """
    require_shared_catalog(config, "Spark")
    running = running_session()
    if running is not None:
        wanted = {EXTENSIONS: session_conf(LOCAL, cache_directory())[EXTENSIONS]} | spark_catalog_conf(config)
        catalog = f"spark.sql.catalog.{config.storage.iceberg_config.catalog.name}"
        names = differing(running.conf.getAll, wanted | ({} if master is None else {"spark.master": master}), catalog)
        if names:
            raise OtherSessionError(names)
        return running
    return _start(config, master or LOCAL)


def running_session() -> SparkSession | None:
    """Return the Spark session of this process, None if there is none."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or pyspark.SparkContext._active_spark_context is None:  # noqa: SLF001  # else Spark would be started
        return None
    from pyspark.sql import SparkSession  # noqa: PLC0415  # it is loaded already

    return SparkSession.builder.getOrCreate()


def differing(present: Mapping[str, str], wanted: Mapping[str, str], catalog: str) -> list[str]:
    """Return the settings that are not as wanted, sorted; of the catalog also those that are not wanted at all.

    A session may have more extensions.
    """
    extra = {name for name in present if name == catalog or name.startswith(f"{catalog}.")}
    return sorted(
        name
        for name in {*wanted, *extra}
        if present.get(name) != wanted.get(name)
        and not (name == EXTENSIONS and wanted[name] in present.get(name, "").split(","))
    )


def activate(spark: SparkSession) -> None:
    """Make this session the one of the calling thread.

    `df.write` and `writeStream` look for the data source `danube` in the session of their thread, and a thread that was
    started in Python has none: call this first in it.
    """
    jvm = spark._jvm  # noqa: SLF001  # PySpark has no call for it
    assert jvm is not None, "a session has one"
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001  # the same


def _start(config: Config, master: str) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415  # half a second, and only a pipeline needs it
    from pyspark.sql import SparkSession  # noqa: PLC0415  # the same

    cache = cache_directory()
    ivy = cache / "ivy"
    packages = spark_packages(config)
    _prepare_environment(config, master, cache)
    builder = SparkSession.builder
    for name, value in (session_conf(master, cache) | jar_conf(packages, ivy)).items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        missing = [name for name in map(jar_name, packages) if not (ivy / "jars" / name).is_file()]
        if not missing:
            raise SparkNotStartedError(AFTER_GRPC if "grpc" in sys.modules else BY_HAND) from error
        raise JarsMissingError(missing, str(ivy / "jars"), "its own message stands above") from None
    # Not before the start: those settings appear on Java's command line, which every user of the machine can read.
    for name, value in spark_catalog_conf(config).items():
        spark.conf.set(name, value)
    return spark


@contextmanager
def in_pool(spark: SparkSession, pool: str) -> Iterator[None]:
    """Run the jobs of this thread in one of the scheduler's pools, TICKS or MAINTENANCE."""
    context = spark.sparkContext
    before = context.getLocalProperty("spark.scheduler.pool")
    context.setLocalProperty("spark.scheduler.pool", pool)
    try:
        yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", before)  # type: ignore[arg-type]  # None means the default one


def _prepare_environment(config: Config, master: str, cache: Path) -> None:
    """Set the environment of Java and the Python workers: JAVA_HOME, the interpreter, the object store's credentials."""
    os.environ["JAVA_HOME"] = str(find_java(cache))
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # a cluster's workers may have theirs elsewhere
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.update(lake_environment(config))


def fetch_jars() -> None:
    """Start Spark once with the embedded defaults, which caches its jars, unless they are cached."""
    config = load(None).config
    if "spark.jars" not in jar_conf(spark_packages(config), cache_directory() / "ivy"):
        open_session(config).stop()


if __name__ == "__main__":  # during set-up, so that the first session need not fetch them
    try:
        fetch_jars()
    except BusyError as error:
        # Commands without Spark work; the others try again and report the same.
        sys.stderr.write(f"setup: {error}\n")
