"""Protobuf schemas: parsing, compatibility, payloads, columns."""
