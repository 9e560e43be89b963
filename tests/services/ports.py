"""Ports of loopback for servers that tests stop and start again; no two workers of a run choose the same."""

import os
import re

from ister.cli import ports

_WORKER = int("0" + re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_given: set[int] = set()


def free_ports(count):
    """Return ports that nobody listens on, and that were not given before."""
    among = ports.steady_ports()[_WORKER::_WORKERS]
    found = []
    while len(found) < count:
        found += [port for port in ports.free_ports(1, among) if port not in _given]
        _given.update(found)
    return found
