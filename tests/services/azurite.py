"""Azurite, Microsoft's own Azure Blob Storage for tests; it checks the key of its account."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
from email.utils import formatdate
from pathlib import Path
from urllib.request import Request, urlopen

from ister.ports.objects import StoreSettings
from services.server import Server

ACCOUNT = "testaccount"
KEY = base64.b64encode(b"a key of thirty-two bytes or so!").decode()
API = "2021-12-02"
_numbers = itertools.count()


class Azurite(Server):
    health_statuses = frozenset({400, 403})  # who asks without a name is refused, by a server that is there

    def __init__(self, program: Path) -> None:
        super().__init__()
        self._program = program

    def command(self) -> list[str]:
        return [
            "node", str(self._program), "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
            "--location", str(self.directory / "data"), "--silent", "--skipApiVersionCheck", "--disableTelemetry",
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}

    def make_container(self) -> str:
        """Make a new container and return its name."""
        container = f"container-{next(_numbers)}"
        date = formatdate(usegmt=True)
        # Eleven headers that we do not send, ours, and the place; the account is in it twice, as host and as path.
        text = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{API}\n/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": API,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        }
        place = f"{self.endpoint}/{ACCOUNT}/{container}?restype=container"
        with urlopen(Request(place, method="PUT", headers=headers), timeout=30) as answer:
            assert answer.status == 201, answer.status
        return container

    def settings(self, root: str, **options: str) -> StoreSettings:
        """Settings of a store in `root` (container, or container and prefix); options replace the usual ones."""
        usual = {"endpoint": f"{self.endpoint}/{ACCOUNT}", "account_name": ACCOUNT, "account_key": KEY}
        return StoreSettings("azblob", root, usual | options)
