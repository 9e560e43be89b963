"""G1. A copy of a live data directory is refused until it is adopted; then both are served, written and maintained."""

import shutil
import subprocess

from interop.broker import ISTER, Broker
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.lake.catalog import LakeCatalog
from parts.pipeline import assert_exact, produce

TOPIC = "/default/orders"
TIMEOUT_S = 180.0


def ister(*words):
    return subprocess.run([*ISTER, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def run(*words):
    done = ister(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_pipeline(broker):
    run("pipeline", "run", "--once", "--broker", broker.url, "--data-dir", broker.data)


def files_of(broker):
    """Every file of log, objects and tables; metadata.db is the running broker's own."""
    found = [path for part in ("wal", "objects", "warehouse") for path in (broker.data / part).rglob("*")]
    content = {str(path): path.read_bytes() for path in found if path.is_file()}
    return content | {"catalog.db": (broker.data / "catalog.db").read_bytes()}


def assert_table(broker, count):
    lake = LakeCatalog.open(*catalog_properties(load(None, broker.data, {}).config))
    assert_exact(lake.catalog, TOPIC, count)
    lake.close()


def test_a_copy_of_a_live_directory_is_adopted_and_both_go_on():
    with Broker() as original:
        produce(original, TOPIC, [b"both"] * 50)
        run_pipeline(original)
        copy = Broker()
        try:
            shutil.copytree(original.data, copy.data)
            refused = ister("serve", "--no-pipeline", "--data-dir", copy.data)
            assert refused.returncode == 4
            assert "ister adopt" in refused.stderr
            assert "Traceback" not in refused.stderr
            assert ister("sql", "SELECT 1", "--data-dir", copy.data).returncode == 4
            assert "1 table relocated" in run("adopt", "--data-dir", copy.data)

            before = files_of(original)
            copy.start()
            produce(copy, TOPIC, [b"the copy's"] * 30)
            run_pipeline(copy)
            run("lake", "compact", "--data-dir", copy.data)
            run("lake", "expire", "--data-dir", copy.data)
            assert_table(copy, 80)
            assert files_of(original) == before

            produce(original, TOPIC, [b"the original's"] * 20)
            run_pipeline(original)
            assert_table(original, 70)
            assert_table(copy, 80)
        finally:
            copy.__exit__()
