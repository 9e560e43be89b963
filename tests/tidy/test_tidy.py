"""The habits of this codebase, checked."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted(path for path in (ROOT / "src").rglob("*.py") if not path.name.endswith("_pb2.py"))  # by people
TRACKED = [
    ROOT / name
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
]
TEXTS = [
    path
    for path in TRACKED
    if path.suffix in {".py", ".md", ".toml", ".lock", ""} and path.is_file() and path.name != "LICENSE"
]
LINES_MAX = 900
"""One file holds one idea, whole; a class is never cut in pieces to stay below a limit."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_source_file_fits_in_a_head(path):
    assert len(path.read_text().splitlines()) <= LINES_MAX


def test_every_source_file_begins_by_saying_what_it_decides():
    assert [path for path in SOURCES if not path.read_text().startswith('"""')] == []


def test_there_are_no_drawers_for_things_without_a_name():
    assert [path for path in SOURCES if re.search(r"util|helper|common|manager|misc", path.name)] == []


def test_nothing_is_left_to_do_in_a_comment():
    found = [
        path for path in TEXTS if path != Path(__file__) and re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text())
    ]
    assert found == []


def test_s16_no_pickle_eval_or_shell_touches_data():
    forbidden = re.compile(r"\b(pickle|marshal|shelve)\b|\beval\(|\bexec\(|shell=True|os\.system")
    assert [path for path in SOURCES if forbidden.search(path.read_text())] == []


def test_nothing_waits_with_wait_for():
    """I6: in Python 3.11 it swallows a cancellation that comes as its future is done; `asyncio.timeout` does not."""
    assert [path for path in SOURCES if re.search(r"\bwait_for\(", path.read_text())] == []


def test_the_lock_holds_names_versions_and_hashes_and_no_addresses():
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert re.search(r"^(?!#)(-i|--index|--find|--extra|file:)", lock, re.MULTILINE) is None
    for block in re.split(r"\n(?=[a-z0-9])", lock):
        if not block.startswith("#"):
            assert re.match(r"[a-z0-9._-]+==\S+", block), block[:80]
            assert "--hash=sha256:" in block, block[:80]


def test_no_path_of_a_machine_is_written_down():
    for path in TEXTS:
        if path != Path(__file__):
            assert re.search(r"/home/\w|/root/|/work/|/Users/\w", path.read_text()) is None, path


def test_every_ignored_lint_and_every_dependency_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)
    for name in project["project"]["dependencies"]:
        line = next(line for line in text.splitlines() if f'"{name}"' in line)
        assert "#" in line, line
    ignores = text.split("ignore = [")[1].split("]")[0]
    for line in filter(None, map(str.strip, ignores.splitlines())):
        assert "# " in line, line


def test_every_noqa_has_its_reason():
    for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]:
        for line in path.read_text().splitlines():
            if "# noqa" in line and path != Path(__file__):
                assert re.search(r"# noqa: [A-Z0-9, ]+  # \S|type: ignore\[[a-z-]+\]  # noqa: [A-Z0-9, ]+$", line), (
                    f"{path.name}: {line.strip()}"
                )


def test_the_make_targets_that_the_docs_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"`make ([a-z-]+)", path.read_text()):
            assert target in targets, f"{path.name} names make {target}"


def test_the_links_in_the_docs_lead_somewhere():
    for path in [path for path in TRACKED if path.suffix == ".md"]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_every_test_that_the_fault_table_names_exists():
    table = (ROOT / "docs" / "faults.md").read_text()
    cited = set(re.findall(r"`[\w/.]*::?(test_\w+)", table)) | set(re.findall(r"`(test_\w+)`", table))
    assert cited, "the table names its tests"
    assert cited - names_of_tests() == set()


def test_every_sentence_of_the_guarantees_names_its_tests():
    promised, _, rest = (ROOT / "docs" / "guarantees.md").read_text().partition("## What is not promised")
    notes = dict(re.findall(r"^\[\^(\d+)\]: (.+)$", rest, re.MULTILINE))
    assert set(re.findall(r"\[\^(\d+)\]", promised)) == notes.keys()
    names = names_of_tests()
    for note in notes.values():
        cited = re.findall(r"`(\w+)`", note)
        assert cited, note
        assert set(cited) <= names, note
    lines = promised.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|---") and not following.startswith("|---"):
            assert "[^" in line, line
    prose = re.sub(r"`[^`]*`|\*\*[^*]+\*\*", "", promised)
    assert re.findall(r"[^\n]*[.!?](?!\[\^)(?=\s|$)", prose) == []


def names_of_tests():
    texts = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return set(re.findall(r"^(?:async )?def (test_\w+)", texts, re.MULTILINE))
