"""Typed `value` columns: what shape a schema gives them, how that shape grows, how payloads become rows of it; no I/O."""
