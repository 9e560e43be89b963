"""A MinIO of one drive: S3 with conditional puts, secrets that are checked, and versions."""

from __future__ import annotations

import itertools
from pathlib import Path

import boto3
from botocore.config import Config

from ister.ports.objects import StoreSettings
from services.fault_proxy import FaultProxy
from services.server import Server

USER, PASSWORD = "testkey", "testsecret"
_numbers = itertools.count()


class Minio(Server):
    health = "/minio/health/ready"

    def __init__(self, program: Path) -> None:
        super().__init__()
        self._program = program

    def command(self) -> list[str]:
        return [
            str(self._program), "server", "--quiet", "--address", f"127.0.0.1:{self.port}",
            "--certs-dir", str(self.directory / "certs"), str(self.directory / "data"),
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {
            "MINIO_ROOT_USER": USER,
            "MINIO_ROOT_PASSWORD": PASSWORD,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }

    def make_bucket(self, *, versions: bool = False) -> str:
        """Make a new bucket and return its name."""
        bucket = f"bucket-{next(_numbers)}"
        client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=USER,
            aws_secret_access_key=PASSWORD, config=Config(retries={"max_attempts": 8, "mode": "standard"}),
        )  # fmt: skip
        try:
            client.create_bucket(Bucket=bucket)
            if versions:
                client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        finally:
            client.close()
        return bucket

    def settings(self, root: str, **options: str) -> StoreSettings:
        """Settings of a store in `root` (bucket, or bucket and prefix); options replace the usual ones."""
        usual = {"endpoint": self.endpoint, "region": "us-east-1", "access_key": USER, "secret_key": PASSWORD}
        return StoreSettings("s3", f"s3://{root}", usual | options)


class ClosingProxy(FaultProxy):
    """The fault proxy before a server that would keep its connections; the header is not part of S3's signature."""

    async def _forward(self, request: bytes) -> bytes:
        head, line, rest = request.partition(b"\r\n")
        return await super()._forward(head + line + b"Connection: close\r\n" + rest)
