"""Run the tests and say where the time went; make test calls this, make test-long with ISTER_TEST_LONG=1."""

import sys
import time

import pytest

if __name__ == "__main__":
    began = time.monotonic()
    code = pytest.main(["-q", "-n", "2", "--dist", "worksteal", "tests", *sys.argv[1:]])
    print(f"make test: {time.monotonic() - began:.0f} s in all")
    sys.exit(code)
