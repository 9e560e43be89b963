"""fake-gcs-server: Google Cloud Storage on a directory; it checks no credentials and has no XML multipart."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from urllib.request import Request, urlopen

from ister.ports.objects import StoreSettings
from services.server import Server

_numbers = itertools.count()


class FakeGcs(Server):
    health = "/_internal/healthcheck"

    def __init__(self, program: Path) -> None:
        super().__init__()
        self._program = program

    def command(self) -> list[str]:
        place = f"127.0.0.1:{self.port}"
        return [
            str(self._program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port),
            "-public-host", place, "-external-url", f"http://{place}", "-log-level", "error",
            "-backend", "filesystem", "-filesystem-root", str(self.directory / "data"),
        ]  # fmt: skip

    def make_bucket(self) -> str:
        """Make a new bucket and return its name."""
        bucket = f"bucket-{next(_numbers)}"
        request = Request(
            f"{self.endpoint}/storage/v1/b?project=test",
            data=json.dumps({"name": bucket}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=30) as answer:
            assert answer.status == 200, answer.status
        return bucket

    def settings(self, root: str, **options: str) -> StoreSettings:
        """Settings of a store in `root` (bucket, or bucket and prefix); options replace the usual ones."""
        usual = {"endpoint": self.endpoint, "anonymous": "true"}
        return StoreSettings("gcs", f"gs://{root}", usual | options)
