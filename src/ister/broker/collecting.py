"""Keep Python's collector of garbage from walking, again and again, what stays for ever: everyone waits while it does."""

from __future__ import annotations

import gc
import time
from typing import Final

from ister.broker.memory import give_back

LONG_S: Final = 0.01
"""A full collection that takes this long walks over things that stay: what was imported with the first message, say."""
TIMES_MAX: Final = 16
"""How often what survives such a collection is set aside. Circles among it are never collected: it must come to an end."""


class Collecting:
    """Sets aside what there is at the start, and what full collections turn out to walk over in vain."""

    def __init__(self) -> None:
        self._began = 0.0
        self._left = TIMES_MAX

    def pause(self) -> None:
        """Collect nothing until `start`: what starting makes stays, and walking over it was a fifth of its time."""
        gc.disable()

    def start(self) -> None:
        """Collect, and set aside what is left."""
        gc.enable()
        gc.collect()
        gc.freeze()
        give_back()
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Leave the collector alone."""
        gc.enable()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:  # the oldest; the others are short
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > LONG_S and self._left:
            self._left -= 1
            gc.freeze()
