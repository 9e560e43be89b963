"""What the machine can do at all with a table's files: pyarrow reads them, and nothing is checked. Imports nothing of ours."""

from __future__ import annotations

import time

import pyarrow.parquet as pq


def scan(paths: list[str]) -> tuple[float, int]:
    """Read each file to a table; returns seconds and rows."""
    began = time.perf_counter()
    rows = sum(pq.read_table(path).num_rows for path in paths)
    return time.perf_counter() - began, rows
