"""The loader: file, environment and data directory become one validated Config with the origin of each value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, NamedTuple, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError

from ister.config.keys import DATA_DIR, OPTION_NAME, TEXT_MAX
from ister.config.models import BACKEND_OF, SAME_KEYS, Config, store_root
from ister.config.problems import PROBLEMS_MAX, ConfigError, Problem, nearest, reason
from ister.config.validators import UNUSABLE, path_problem, uri_path_problem
from ister.config.yaml_tree import FILE_BYTES_MAX, Entries, Items, Node, Refused, Scalar, read_tree, show_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.config.keys import Clash

Key = tuple[str, ...]
Data = dict[str, "Data | list[str] | str | None"]

HINTS = {
    "broker.host": "write broker_host at the top of the file",
    "broker.ports": "write broker_port, admin_port and prom_port at the top of the file",
    "broker.advertised_listeners": "write advertised_listeners at the top of the file",
    "meta_store": "there is no Raft here; wal_cloud.metadata says where metadata is kept",
    "meta_store_host": "write wal_cloud.metadata.etcd_endpoint",
    "meta_store_port": "write wal_cloud.metadata.etcd_endpoint",
    "load_manager": "there is one broker, so there is nothing to balance; take it out",
    "auth.tls": "TLS comes in a later release; take it out",
    "auth.jwt": "tokens come in a later release; take it out",
    "auth.super_admins": "roles come in a later release; take it out",
    "policies.max_dispatch_rate": "write max_subscription_dispatch_rate, which holds for each subscription",
}
"""Next steps for keys of Danube's own files that are elsewhere here, or not supported; by the path of the key."""

_PIECE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]{0,254})\})?")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: a line of the file, perhaps with variables; the data directory; or the default."""

    kind: str
    line: int = 0
    variables: tuple[str, ...] = ()

    def at(self, source: str) -> str:
        """Return the text to display."""
        match self.kind:
            case "file":
                return f"{source}:{self.line}"
            case "environment":
                return f"{', '.join(f'${name}' for name in self.variables)} ({source}:{self.line})"
        return self.kind


DEFAULT = Origin("default")
FROM_DATA_DIR = Origin("--data-dir")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, its file (empty: none), and the origins of values that are not defaults."""

    config: Config
    source: str
    given: Mapping[str, Origin]
    data_dir: Path | None

    @property
    def home(self) -> Path:
        """The data directory: `--data-dir`, or the parent of the log's directory."""
        return self.data_dir or self.config.wal_cloud.wal.dir.parent

    def origin(self, key: str) -> Origin:
        """Return the origin of the value of a key like `wal_cloud.wal.dir`."""
        return self.given.get(key, DEFAULT)


def load(path: Path | None = None, data_dir: Path | None = None, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Read and validate a configuration; without a file everything is embedded, in the data directory.

    ConfigError has every problem. OSError when the file cannot be read.
    """
    if path is None:
        return loads(b"", "the defaults", data_dir, environ, is_file=False)
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    return loads(content, str(path), data_dir, environ)


def loads(
    content: bytes,
    source: str,
    data_dir: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    is_file: bool = True,
) -> Loaded:
    """Validate the content of a file."""
    place = "" if data_dir is None else str(data_dir)
    if data_dir is not None and (problem := path_problem(place) or uri_path_problem(place)):
        raise ConfigError(source, [Problem(0, "--data-dir", problem)])
    loader = _Loader(environ)
    data = loader.parse(content)
    loader.copy_synonyms(data)
    loader.set_paths(data, data_dir)
    config = loader.validate(data)
    if config is None or loader.problems:
        found = sorted(set(loader.problems), key=lambda problem: (problem.line, problem.key))
        raise ConfigError(source, found[:PROBLEMS_MAX])
    given = {".".join(key): origin for key, origin in loader.origins.items()}
    return Loaded(config, source if is_file else "", MappingProxyType(given), data_dir)


class _Loader:
    """One pass over a file: collects the data of the models, its origins and every problem."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self.origins: dict[Key, Origin] = {}
        self._environ = environ
        self._lines: dict[Key, int] = {}
        self._reported: set[Key] = set()
        self._written_as: dict[Key, Key] = {}

    def parse(self, content: bytes) -> Data:
        """Collect the file's values, as far as it can be parsed."""
        tree = read_tree(content)
        self.problems += tree.problems
        return self._section(Config, tree.root, ())

    def copy_synonyms(self, data: Data) -> None:
        """Copy the keys of `storage.iceberg_config` for log and store to `wal_cloud`, where these are not set."""
        for key, ours in SAME_KEYS.items():
            self._copy(data, _key(key), _key(ours), _text(data, _key(key)))
        store: Key = ("storage", "iceberg_config", "object_store")
        kind, bucket, root = (_text(data, (*store, name)) for name in ("type", "bucket", "root"))
        if kind not in BACKEND_OF:
            return
        self._copy(data, (*store, "type"), ("wal_cloud", "cloud", "backend"), BACKEND_OF[kind])
        if bucket is not None or root is not None:
            place = (*store, "root" if bucket is None else "bucket")
            self._copy(data, place, ("wal_cloud", "cloud", "root"), store_root(kind, bucket or "", root or ""))

    def _copy(self, data: Data, key: Key, ours: Key, value: str | None) -> None:
        if value is None or key in self._reported or ours in self._reported:
            return
        section = _section_of(data, ours)
        if section.get(ours[-1]) is None:
            section[ours[-1]] = value
            self.origins[ours] = self.origins[key]
            self._written_as[ours] = key

    def set_paths(self, data: Data, data_dir: Path | None) -> None:
        """Set paths that the file does not set: in the data directory, or beside the log."""
        origin = DEFAULT if data_dir is None else FROM_DATA_DIR
        given = _text(data, ("wal_cloud", "wal", "dir"))
        base = data_dir or (Path(given).parent if given is not None and path_problem(given) is None else DATA_DIR)

        def put(path: str, value: str) -> None:
            key = _key(path)
            section = _section_of(data, key)
            if section.get(key[-1]) is None and key not in self._reported:
                section[key[-1]] = f"./{value}" if value.startswith("~") else value  # ./~x is a valid directory
                self.origins[key] = origin

        put("wal_cloud.wal.dir", str(base / "wal"))
        cloud = _section_of(data, ("wal_cloud", "cloud", "root"))
        has_bucket = (backend := cloud.get("backend", "fs")) in {"s3", "gcs", "azblob"}
        if backend == "fs":
            put("wal_cloud.cloud.root", str(base / "objects"))
        elif not has_bucket:
            cloud.setdefault("root", "memory" if backend == "memory" else "/")
        metadata = _section_of(data, ("wal_cloud", "metadata", "sqlite_path"))
        etcd = metadata.get("etcd_endpoint") is not None or ("wal_cloud", "metadata", "etcd_endpoint") in self._reported
        if not etcd and not _is_true(metadata.get("in_memory")):
            put("wal_cloud.metadata.sqlite_path", str(base / "metadata.db"))
        catalog = "storage.iceberg_config.catalog"
        kind = _section_of(data, _key(f"{catalog}.type")).get("type", "sql")
        if kind == "sql":
            put(f"{catalog}.uri", f"sqlite:///{'./' * str(base).startswith('~')}{base / 'catalog.db'}")
        # A bucket holds the tables too; a REST service chooses the location.
        if kind in {"sql", "glue", "memory"} and not has_bucket:
            put(f"{catalog}.warehouse", str(base / "warehouse"))

    def validate(self, data: Data) -> Config | None:
        """Validate the data; refused values are removed, so that a second validation finds contradictions."""
        for _ in range(2):
            try:
                return Config.model_validate(data)
            except ValidationError as error:
                details = error.errors(include_url=False, include_input=False)
            # A list whose items were refused is then too short: of one key, the most exact problem is reported.
            refused: set[Key] = set()
            for detail in sorted(details, key=lambda detail: detail["type"] == "too_short"):
                location = tuple(str(part) for part in detail["loc"])
                if detail["type"] == "clash":
                    for clash in detail["ctx"]["clashes"]:
                        self._report_clash(location, clash)
                elif (key := self._known(location)) not in refused:
                    refused.add(key)
                    self._report(key, f"{reason(detail)}{self._variables(key)}")
                    _remove(data, key)
        return None

    def _section(self, model: type[BaseModel], node: Node, key: Key) -> Data:
        data: Data = {}
        match node:
            case Entries():
                for entry in node.entries:
                    if entry.key in model.model_fields:
                        self._field(model, (*key, entry.key), entry.line, entry.value, data)
                    else:
                        self._report_unknown(model, key, entry.key, entry.line)
            case Scalar(text=None) | Refused():
                pass
            case _:
                what = "must be a section, with keys indented below it; write key: value with a space behind the colon"
                self._lines.setdefault(key, node.line)
                self._report(key, what if key else f"the file {what}")
        return data

    def _field(self, model: type[BaseModel], key: Key, line: int, node: Node, data: Data) -> None:
        self._lines[key] = line
        name = key[-1]
        field = model.model_fields[name]
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            data[name] = self._section(inner, node, key)
        elif get_origin(inner) is Mapping:
            data[name] = self._options(node, key)
        elif isinstance(node, Refused):
            self._reported.add(key)
        elif isinstance(node, Items) and _takes_list(field.annotation):
            self.origins[key] = Origin("file", line)
            texts = [self._value(item, key) for item in node.items]
            if key not in self._reported:
                data[name] = [text for text in texts if text is not None]
        elif isinstance(node, Scalar) and node.text is None:
            self.origins[key] = Origin("file", line)
            if field.default is not None and NoneType in get_args(inner):
                data[name] = None
            elif field.default is not None:
                self._report(key, "has no value; give one, or leave the line out for the default")
        elif (text := self._value(node, key)) is not None:
            data[name] = None if text.strip().lower() == "none" and _takes_word_none(inner) else text

    def _options(self, node: Node, key: Key) -> Data:
        data: Data = {}
        match node:
            case Entries():
                for entry in node.entries:
                    inside = (*key, show_key(entry.key))
                    self._lines[inside] = entry.line
                    if re.fullmatch(OPTION_NAME, entry.key) is None:
                        self._report(inside, "is no name of an option; use letters, digits and _")
                    elif (text := self._value(entry.value, inside)) is not None:
                        data[entry.key] = text
            case Scalar(text=None) | Refused():
                pass
            case _:
                self._report(key, "must be a section, with the options indented below it; write name: value")
        return data

    def _value(self, node: Node, key: Key) -> str | None:
        if isinstance(node, Refused):
            self._reported.add(key)
            return None
        if not isinstance(node, Scalar) or node.text is None:
            self._report(key, "must be one value; write it behind the colon, in quotes if it holds special characters")
            return None
        filled = fill(node.text, self._environ)
        line = self._lines[key]
        variables = (*self.origins[key].variables, *filled.names) if key in self.origins else filled.names
        self.origins[key] = Origin("environment" if variables else "file", line, variables)
        for problem in filled.problems:
            self._report(key, problem)
        return None if filled.problems else filled.text

    def _report_unknown(self, model: type[BaseModel], key: Key, word: str, line: int) -> None:
        if len(self.problems) >= PROBLEMS_MAX:  # the search for the nearest key is slow
            return
        names = list(model.model_fields)
        meant = nearest(word, names)
        if (known := HINTS.get(".".join((*key, word)))) is not None:
            hint = known
        elif meant is not None:
            hint = f"did you mean {meant}?"
            self._reported.add((*key, meant))
        elif elsewhere := [path for path in _all_keys(Config, ()) if path[-1] == word]:
            hint = f"it belongs to {'.'.join(elsewhere[0][:-1]) or 'the top of the file'}"
        else:
            hint = f"known here: {', '.join(names)}"
        self.problems.append(Problem(line, ".".join((*key, show_key(word))), f"is not a known key; {hint}"))

    def _report_clash(self, section: Key, clash: Clash) -> None:
        key, other = (*section, *_key(clash.key)), (*section, *_key(clash.other))
        if key in self._reported or other in self._reported:
            return
        line = self._lines.get(self._written_as.get(other, other), 0)
        where = f" ({clash.other} is in line {line})" if line else ""
        self._report(key, f"{clash.reason}{where}")

    def _report(self, key: Key, what: str) -> None:
        self._reported.add(key)
        key = self._written_as.get(key, key)
        line = next((self._lines[key[:n]] for n in range(len(key), -1, -1) if key[:n] in self._lines), 0)
        self.problems.append(Problem(line, ".".join(key), what))

    def _variables(self, key: Key) -> str:
        names = self.origins[key].variables if key in self.origins else ()
        return f" (its value is from {', '.join(f'${name}' for name in names)})" if names else ""

    def _known(self, location: Key) -> Key:
        # pydantic's locations also have list items and validators; ours end at the key.
        for n in range(len(location), 0, -1):
            if location[:n] in self._lines or location[:n] in self.origins:
                return location[:n]
        return tuple(show_key(part) for part in location[:4])


class Filled(NamedTuple):
    """A value after substitution, the names of its variables, and its problems."""

    text: str
    names: tuple[str, ...]
    problems: tuple[str, ...]


def fill(text: str, environ: Mapping[str, str]) -> Filled:
    """Substitute `${NAME}` from the environment, not recursively; `$${` stands for `${`."""
    parts: list[str] = []
    names: dict[str, None] = {}
    problems: dict[str, None] = {}
    size = at = 0
    for match in _PIECE.finditer(text):
        name = match[1]
        piece = "${"
        if name is not None:
            names[name] = None
            if (found := environ.get(name)) is None:
                problems[f"needs the environment variable {name}, which is not set; set it"] = None
                found = ""
            piece = found
        elif match[0] == "${":
            problems["has ${ without a name and } behind it; write ${NAME}, or $${ for the characters ${"] = None
        parts += (text[at : match.start()], piece)
        at = match.end()
        size += len(piece)
        if size > TEXT_MAX:  # a short file could otherwise repeat a long variable and exhaust memory
            break
    filled = "".join((*parts, text[at : at + TEXT_MAX + 1]))
    if len(filled) > TEXT_MAX:
        problems[f"is longer than {TEXT_MAX:,} characters; shorten it"] = None
        filled = ""
    if UNUSABLE.search(filled):
        problems["holds characters that cannot be used in a value; take them out"] = None
    return Filled(filled, tuple(names), tuple(problems))


def _key(path: str) -> Key:
    return tuple(path.split("."))


def _text(data: Data, key: Key) -> str | None:
    found: object = data
    for part in key:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def _section_of(data: Data, key: Key) -> Data:
    """Return the section that a key belongs to, made where the file has none."""
    for part in key[:-1]:
        inner = data.setdefault(part, {})
        assert isinstance(inner, dict)
        data = inner
    return data


def _remove(data: Data, key: Key) -> None:
    inner: object = data
    for part in key[:-1]:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(key[-1], None)


def _is_true(value: object) -> bool:
    return isinstance(value, str) and value.lower() in {"true", "yes", "on", "1", "t", "y"}


def _takes_list(annotation: object) -> bool:
    return get_origin(annotation) is tuple or any(_takes_list(part) for part in get_args(annotation))


def _takes_word_none(annotation: object) -> bool:
    """Return True if the word none means "not set": not where it is one of the values, or could be a secret."""
    parts = list(_parts(annotation))
    return NoneType in parts and SecretStr not in parts and "none" not in parts


def _parts(annotation: object) -> Iterator[object]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _all_keys(model: type[BaseModel], key: Key) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        yield (*key, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _all_keys(field.annotation, (*key, name))
