"""etcd 3.6, built from its module; everything else is as with the etcd of the wheel, which is 3.5."""

from __future__ import annotations

import json
import signal
from typing import Self
from urllib.request import urlopen

from services.etcd import Etcd
from services.install import RECIPES


class Etcd36(Etcd):
    """One member that is a cluster, of version 3.6. `with Etcd36() as etcd: etcd.endpoint`."""

    def __init__(self, **given: object) -> None:
        super().__init__(**given, binary=RECIPES["etcd"].binary)

    def restart(self, number: int = signal.SIGKILL) -> Self:
        """Kill it and start it again, unless told otherwise.

        On SIGTERM 3.6 waits for watches to end, five seconds and two elections long, and answers nothing meanwhile:
        the leases of two seconds in these tests would be lost, rightly.
        """
        return super().restart(number)

    def version(self) -> str:
        """Return the version that the running server says of itself; needs no TLS and no user."""
        with urlopen(f"http://127.0.0.1:{self.client}/version", timeout=10) as answer:
            return json.load(answer)["etcdserver"]
