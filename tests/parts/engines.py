"""The engines that a table is for, called alike: each reads a whole table into Arrow."""

from urllib.parse import urlparse

import duckdb
import polars as pl
import pytest


def by_pyiceberg(name, catalog, spark):
    return catalog.load_table(name).scan().to_arrow()


def by_spark(name, catalog, spark):
    return spark.table(".".join([catalog.name, *name])).toArrow()


def by_polars(name, catalog, spark):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        return pl.scan_iceberg(catalog.load_table(name)).collect().to_arrow()


def by_duckdb(name, catalog, spark):
    """Read the live files by DuckDB's own Parquet reader: its extension for Iceberg is downloaded from elsewhere."""
    files = [urlparse(task.file.file_path).path for task in catalog.load_table(name).scan().plan_files()]
    return duckdb.read_parquet(files, hive_partitioning=False).to_arrow_table()


def by_duckdb_handed_arrow(name, catalog, spark):
    """Hand the rows over as Arrow: files of an evolved table differ in their columns, which only Iceberg puts right."""
    return duckdb.from_arrow(catalog.load_table(name).scan().to_arrow()).to_arrow_table()
