"""Ports of loopback for servers that tests stop and start again; no two workers of a run choose the same."""

import os
import re

from ister.cli.demo import broker as ports

_WORKER = int("0" + re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_given: set[int] = set()


def free_ports(count):
    """Return ports that nobody listens on, and that were not given before; nor was the one above, which goes with each.

    A broker's pipeline has its metrics one above the broker's.
    """
    steady = ports.steady_ports()
    share = len(steady) // _WORKERS
    among = steady[_WORKER * share : (_WORKER + 1) * share]
    found = []
    while len(found) < count:
        [port] = ports.free_ports(1, among)
        if not _given & {port, port + 1}:
            found.append(port)
            _given.update((port, port + 1))
    return found
