"""What make check insists on, CI insists on too: format, lint, types, import rules."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "format", "--check", "."], ["ruff", "check", "."], ["mypy"], ["lint-imports", "--no-logo"]],
    ids=["format", "lint", "types", "imports"],
)
def test_the_tool_has_nothing_to_say(command):
    ran = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
