"""The command line."""

from ister.cli.app import main

__all__ = ["main"]
