"""Schemas of six types: parsing, compatibility, payload checks, columns; no I/O.

The names and values that everyone uses are here; `ister.schemas.schema` parses definitions, and costs more to import.
"""

from ister.schemas.kinds import Compatibility, SchemaType, TopicSchema, ValidationPolicy

__all__ = ["Compatibility", "SchemaType", "TopicSchema", "ValidationPolicy"]
