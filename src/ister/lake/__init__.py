"""Iceberg: a topic's table, its data files and the commit that fences."""
