"""What every test shares: quiet logs, counts that depend on the run, and an account of where the time went."""

from __future__ import annotations

import logging
import os
import sys
from collections import defaultdict

# Before anything imports gRPC: its handlers for fork() end one in three children that Spark's launcher forks from a
# process with live channels, and some tests have both.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import pytest
import structlog

from parts.counts import LONG

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@pytest.fixture(autouse=True)
def _quick_reads(monkeypatch):
    """Read a damaged object again at once: only the number of reads matters to a test."""
    checked = sys.modules.get("ister.ports.objects.checked")  # a test that reads no object need not import it
    if checked is not None:
        monkeypatch.setattr(checked, "PAUSE_S", 0.001)


@pytest.fixture
def count(request):
    """Return the number of trials for this run, and have it printed at the end: count(short, long)."""

    def choose(short: int, long: int) -> int:
        return long if LONG else short

    return choose


@pytest.fixture
def tell(record_property):
    """Have a line about what a test has done printed at the end of the run."""

    def say(fault: str, text: str) -> None:
        record_property("told", f"{fault}: {text}")

    return say


def pytest_terminal_summary(terminalreporter):
    seconds: dict[str, float] = defaultdict(float)
    told = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            seconds[report.nodeid.split("::", maxsplit=1)[0]] += report.duration
            if report.when == "call":
                told += [text for name, text in report.user_properties if name == "told"]
    if told:
        terminalreporter.section("what was tried")
        for line in sorted(told):
            terminalreporter.write_line(line)
    terminalreporter.section("where the time went")
    for path, spent in sorted(seconds.items(), key=lambda item: -item[1])[:12]:
        terminalreporter.write_line(f"{spent:7.1f} s  {path}")
