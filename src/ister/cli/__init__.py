"""The command line: real files, clocks and processes are put together here and nowhere else."""

from ister.cli.app import main

__all__ = ["main"]
