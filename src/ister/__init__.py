"""Ister: Danube's storage system in Python."""

__version__ = "0.1.0"
