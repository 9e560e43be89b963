"""Configurations as text, and their problems."""

from pathlib import Path

import pytest

from ister.config import (
    ConfigError,
    loads,
)

DATA = Path(__file__).parent / "data"


def read(text, environ=None, data_dir=None):
    return loads(text.encode(), "f.yml", data_dir, environ or {})


def problems(text, environ=None):
    with pytest.raises(ConfigError) as caught:
        read(text, environ)
    return caught.value.lines


def section(path, text):
    """Put lines into a section, each part of the path in a line of its own."""
    lines, indent = [], ""
    for part in path.split("."):
        lines.append(f"{indent}{part}:")
        indent += "  "
    return "\n".join([*lines, *(indent + line for line in text.splitlines())]) + "\n"
