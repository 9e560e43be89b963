"""What the tests of faults share: drivers in processes of their own, and what must hold of a table whatever happened."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from parts.pipeline import assert_exact, rows_of, table_of

DRIVER = Path(__file__).parents[1] / "lake" / "driver.py"
READY_S = 120.0


def some(word, count, start=0):
    """Return payloads that are all different."""
    return [f"{word} {n}".encode() for n in range(start, start + count)]


class Driver:
    """A driver.py: `ask` it, or `begin` something and wait for it, or kill it."""

    def __init__(self, home, broker, tmp_path, *, master="local[2]"):
        self._is_new = True
        self._said = (tmp_path / f"driver-{os.urandom(4).hex()}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(home), f"{broker.data}/objects", broker.target, master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        if self._is_new:  # it says so itself
            try:
                self.answer()
            except BaseException:
                self.kill()
                raise
            self._is_new = False
        return self

    def __exit__(self, *_):
        self.kill()

    def begin(self, what, **arguments):
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        assert select.select([self.process.stdout], [], [], READY_S)[0], f"no answer; it said:\n{self.said[-4000:]}"
        line = self.process.stdout.readline()
        assert line, f"the driver ended; it said:\n{self.said[-4000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer
        return answer

    @property
    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def ask(self, what, **arguments):
        self.begin(what, **arguments)
        return self.answer()

    @property
    def said(self):
        self._said.seek(0)
        return self._said.read()

    def kill(self):
        """End it and its Java as a power cut would; Spark's Python workers end when they notice."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(READY_S)
            self.process.stdin.close()
            self.process.stdout.close()
            self._said.close()


def wait_until(is_so, drivers):
    """Wait until something is so that these drivers bring about."""
    deadline = time.monotonic() + READY_S
    while not is_so():
        for driver in drivers:
            assert driver.process.poll() is None, f"the driver ended; it said:\n{driver.said[-4000:]}"
            assert time.monotonic() < deadline, f"it did not come to pass; the driver said:\n{driver.said[-4000:]}"
        time.sleep(0.02)  # between two looks


def wait_for(path, driver):
    """Wait until a driver has come to the step at which it stops."""
    wait_until(path.exists, [driver])


def assert_all(catalog, topic, payloads):
    """Insist that a table has every message once, with what was sent; producers send many at once, in any order."""
    assert_exact(catalog, topic, len(payloads))
    assert sorted(rows_of(catalog, topic)["payload"].to_pylist()) == sorted(payloads)


def appends_of(catalog, topic):
    """Return what each snapshot of a table appended, oldest first: epoch, from, upto; the rows of a claim are none."""
    snapshots = catalog.load_table(table_of(catalog, topic).identifier).snapshots()
    found = [one.summary.additional_properties for one in snapshots]
    return [
        (int(one["ister.epoch"]), json.loads(one["ister.from"])["0"], json.loads(one["ister.upto"])["0"])
        for one in found
        if "ister.from" in one
    ]


def files_of(catalog, topic):
    """Return the data files that a table has now, and those that lie beside each other on the disk."""
    table = catalog.load_table(table_of(catalog, topic).identifier)
    live = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    there = {str(path) for path in Path(table.location().removeprefix("file://")).rglob("data/**/*.parquet")}
    return live, there
