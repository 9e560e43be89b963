"""Memory goes back to the system: what a start left in holes, and every large buffer."""

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this machine's C library cannot give memory back"
)

SETTING = """
import re
from pathlib import Path
from ister.broker.process import map_large_buffers, trim_heap

def mb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000
"""


def in_a_process(code: str) -> tuple[float, float]:
    said = subprocess.run([sys.executable, "-c", SETTING + code], capture_output=True, text=True, check=True)
    held, kept = map(float, said.stdout.split())
    return held, kept


def test_memory_that_a_start_left_in_holes_is_given_back():
    held, kept = in_a_process("""
before = mb()
blocks = [bytes(3000) for _ in range(30_000)]
del blocks[1:-1]  # the last one keeps the heap from shrinking by itself
held = mb() - before
trim_heap()
print(held, mb() - before)
""")
    assert held > 60, "there was nothing to give back"
    assert kept < held / 2


@pytest.mark.parametrize("mapped", [False, True])
def test_large_buffers_leave_no_holes(mapped):
    held, kept = in_a_process(f"""
{"map_large_buffers()" if mapped else ""}
bytes(bytearray(b"x") * (16 << 20))  # freed: glibc takes the next ones from the heap, unless it was told
before = mb()
large, small = [], []
for _ in range(20):
    large.append(bytearray(b"x") * (4 << 20))
    small.append(bytes(3000))
held = mb() - before
large.clear()
print(held, mb() - before)
""")
    assert held > 80
    assert (kept < 5) is mapped, "and without asking for it they do: the test can tell"
