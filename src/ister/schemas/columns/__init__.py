"""Typed `value` columns: shapes, schema evolution, cells; no I/O."""
