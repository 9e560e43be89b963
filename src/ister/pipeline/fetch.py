"""Fetch Spark's jars during set-up, so that the first session need not; where they are there, do nothing."""

from __future__ import annotations

import sys

from ister.config import load
from ister.config.lake import spark_packages
from ister.core.errors import BusyError
from ister.pipeline.session import cache_directory, jar_conf, open_session


def fetch() -> None:
    """Start Spark once with the embedded defaults, which fetches what it needs and keeps it."""
    config = load(None).config
    if "spark.jars" not in jar_conf(spark_packages(config), cache_directory() / "ivy"):
        open_session(config).stop()


if __name__ == "__main__":
    try:
        fetch()
    except BusyError as error:
        # What does not need Spark works without; what does, tries again and says the same.
        sys.stderr.write(f"setup: {error}\n")
