"""A YAML parser with line numbers and limits for hostile files.

Only plain data is accepted: no tags (nothing is constructed), no anchors and aliases (nothing multiplies), no second
document. Values stay text; the models convert them, so that 0123 is a valid password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from ister.config.problems import PROBLEMS_MAX, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_BYTES_MAX = 1 << 20
NODES_MAX = 5_000
# PyYAML's time for a token grows with the nesting: a megabyte of "[" would take hours.
DEPTH_MAX = 16


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as text; None is YAML's null."""

    line: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its line and its value."""

    key: str
    line: int
    value: Node


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping with unique keys."""

    line: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A node whose problem is already reported."""

    line: int


Node = Scalar | Items | Entries | Refused


@dataclass(slots=True)
class Tree:
    """The parsed file and its problems."""

    root: Node
    problems: list[Problem] = field(default_factory=list)


def read_tree(data: bytes) -> Tree:
    """Parse a whole file; never raises."""
    if len(data) > FILE_BYTES_MAX:
        return _refused(Problem(0, "", f"is larger than {FILE_BYTES_MAX >> 20} MiB; this is no configuration"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return _refused(Problem(line, "", "is not UTF-8 text; save the file as UTF-8"))
    builder = _Builder()
    try:
        return Tree(builder.document(yaml.parse(text, Loader=yaml.SafeLoader)), builder.problems)
    except _StopError as stop:
        problem = stop.problem
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problem = Problem(line, "", "holds a character that YAML does not allow; take it out")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = Problem(mark.line + 1 if mark else 0, "", f"is not YAML: {_without_content(error)}; check the line")
    except (yaml.YAMLError, ValueError, OverflowError):  # PyYAML lets chr() fail for \UFFFFFFFF
        problem = Problem(builder.line, "", "is not YAML; check the text behind this line")
    return _refused(*builder.problems, problem)


class _StopError(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__()


class _Builder:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.line = 1
        self._nodes = 0

    def document(self, events: Iterator[yaml.Event]) -> Node:
        root: Node = Entries(1, ())
        documents = 0
        for event in events:
            self.line = _line(event)
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        self._stop("a second document (---) begins here; keep one")
                case yaml.NodeEvent():
                    root = self._node(event, events, (), 1)
        return root

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], path: tuple[str, ...], depth: int) -> Node:
        line = self.line = _line(event)
        self._nodes += 1
        if self._nodes > NODES_MAX:
            self._stop(f"has more than {NODES_MAX:,} values; this is no configuration")
        if depth > DEPTH_MAX:
            self._stop(f"is nested deeper than {DEPTH_MAX} levels; this is no configuration")
        sound = self._is_plain_data(event, path)
        node: Node
        match event:
            case yaml.SequenceStartEvent():
                items = []
                while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                    items.append(self._node(inner, events, path, depth + 1))
                node = Items(line, tuple(items))
            case yaml.MappingStartEvent():
                node = self._mapping(line, events, path, depth)
            case yaml.ScalarEvent():
                is_null = event.style is None and event.value in {"", "~", "null", "Null", "NULL"}
                node = Scalar(line, None if is_null else event.value)
            case _:
                node = Refused(line)
        return node if sound else Refused(line)

    def _mapping(self, line: int, events: Iterator[yaml.Event], path: tuple[str, ...], depth: int) -> Entries:
        entries: dict[str, Entry] = {}
        while not isinstance(inner := next(events), yaml.MappingEndEvent):
            key = self._node(inner, events, path, depth + 1)
            name = key.text if isinstance(key, Scalar) else None
            value = self._node(next(events), events, (*path, show_key(name or "")), depth + 1)
            if name is None:
                if not isinstance(key, Refused):
                    self._report(key.line, path, "has a key that is not a plain word; write it like key: value")
            elif name in entries:
                inside = (*path, show_key(name))
                self._report(key.line, inside, f"stands here and in line {entries[name].line}; keep one of them")
            else:
                entries[name] = Entry(name, key.line, value)
        return Entries(line, tuple(entries.values()))

    def _is_plain_data(self, event: yaml.Event, path: tuple[str, ...]) -> bool:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent):
            self._report(line, path, "is an alias (*name), which is not taken; write the value out")
            return False
        if getattr(event, "anchor", None) is not None:
            self._report(line, path, "has an anchor (&name), which is not taken; write the value out")
            return False
        if getattr(event, "tag", None) is not None:
            self._report(line, path, "has a tag (!...), which is not taken; write the plain value")
            return False
        return True

    def _report(self, line: int, path: tuple[str, ...], what: str) -> None:
        self.problems.append(Problem(line, ".".join(path), what))
        if len(self.problems) >= PROBLEMS_MAX:
            self._stop("has too many problems; the rest is left out")

    def _stop(self, what: str) -> None:
        raise _StopError(Problem(self.line, "", what))


def show_key(key: str) -> str:
    """Return a key for messages; one that is not a word may be a misplaced secret, so it is not repeated."""
    return key if re.fullmatch(r"[A-Za-z_<][\w.<-]{0,63}", key, re.ASCII) else "(a key that is no word)"


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _refused(*problems: Problem) -> Tree:
    return Tree(Refused(1), list(problems))


def _without_content(error: yaml.MarkedYAMLError) -> str:
    # Quoted parts of PyYAML's messages come from the file, except its names of tokens, like '<block end>'.
    text = str(error.problem or "it cannot be read")
    return re.sub(r"'(?!<[a-z ]+>')[^']{2,}'|\"[^\"]{2,}\"", "something else", text)
