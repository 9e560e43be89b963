"""The pipeline on Spark: what is synced becomes Parquet, and one fenced commit a table; and the upkeep of tables."""
