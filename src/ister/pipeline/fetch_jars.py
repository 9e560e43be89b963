"""Download of Spark's jars during set-up, so that the first session need not."""

from __future__ import annotations

import sys

from ister.config import load
from ister.config.catalog import spark_packages
from ister.core.errors import BusyError
from ister.pipeline.session import cache_directory, jar_conf, open_session


def fetch() -> None:
    """Start Spark once with the embedded defaults, which caches its jars, unless they are cached."""
    config = load(None).config
    if "spark.jars" not in jar_conf(spark_packages(config), cache_directory() / "ivy"):
        open_session(config).stop()


if __name__ == "__main__":
    try:
        fetch()
    except BusyError as error:
        # Commands without Spark work; the others try again and report the same.
        sys.stderr.write(f"setup: {error}\n")
