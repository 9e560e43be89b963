"""Iceberg's own REST catalog, which keeps tables in a bucket of MinIO and its list of them in SQLite."""

from __future__ import annotations

from pathlib import Path

from services.minio import PASSWORD, USER, Minio
from services.server import Server


class IcebergRest(Server):
    health = "/v1/config"

    def __init__(self, program: Path, minio: Minio) -> None:
        super().__init__()
        self._library = program.parent
        self._minio = minio
        self.bucket = minio.make_bucket()

    @property
    def warehouse(self) -> str:
        return f"s3://{self.bucket}/warehouse"

    def command(self) -> list[str]:
        return ["java", "-Xmx512m", "-cp", f"{self._library}/*", "org.apache.iceberg.rest.RESTCatalogServer"]

    def environment(self) -> dict[str, str]:
        return {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_WAREHOUSE": self.warehouse,
            "CATALOG_URI": f"jdbc:sqlite:file:{self.directory}/catalog.db",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": self._minio.endpoint,
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_CLIENT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_REGION": "us-east-1",
        }
