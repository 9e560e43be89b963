"""JSON Schemas: parsing, compatibility, payloads, columns."""
