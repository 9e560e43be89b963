"""Avro schemas: parsing, compatibility, payloads, columns."""
