"""A producer's clock: write the time to stdout a thousand times a second, independent of the reader."""

import os
import struct
import time

STAMP = struct.Struct("<Q")
PERIOD_NS = 1_000_000

if __name__ == "__main__":
    due = time.monotonic_ns()
    while True:
        due += PERIOD_NS
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        try:
            os.write(1, STAMP.pack(time.monotonic_ns()))
        except BrokenPipeError:
            break
