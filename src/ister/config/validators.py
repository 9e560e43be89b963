"""Validators of text settings; no message repeats the text, because it could be a misplaced secret."""

import re
from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

from ister.config.problems import nearest
from ister.core.names import log_file_name_problem

BACKENDS = ("s3", "gcs", "azblob", "fs", "memory")
"""The stores with keys of their own; other OpenDAL services take `root` and `options`."""

UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters and lone surrogates."""

EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared, not bound
"""Wildcard addresses to listen on."""

_OTHER_NAMES = {"azure": "azblob", "gs": "gcs", "file": "fs", "local": "fs", "mem": "memory", "minio": "s3"}
_SCHEMES = {"s3": ("s3://",), "gcs": ("gcs://", "gs://"), "azblob": ("",)}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_SERVICE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*"
)
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,200}")
_PATTERN = re.compile(r"/[A-Za-z0-9_*-]{1,200}/[A-Za-z0-9_*-]{1,255}")
_CATALOG_NAME = re.compile(r"(?!(?i:spark_catalog)$)[A-Za-z][A-Za-z0-9_]{0,63}")  # needs no quotes in SQL
_POSTGRES = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?/[A-Za-z0-9_-]{1,63}")
_PREFIX = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
_LOOKS_SECRET = re.compile(r"key|secret|token|pass|credential|sas|auth|connection_string|delegation", re.IGNORECASE)


def is_host(text: str) -> bool:
    """Return True for an IP address, with or without the brackets of an IPv6 address, and for a valid host name."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in bare or bare.rpartition(".")[2].isdigit():  # no top-level domain is a number
        try:
            return (ip_address(bare).version == 6) == (":" in bare)
        except ValueError:
            return False
    return bare == text and _HOST_NAME.fullmatch(text) is not None


def path_problem(text: str) -> str | None:
    """Return why a text is not a path, or would be misread as one."""
    if not text.strip():
        return "must not be empty; give a path, or leave it out for the default"
    if text.startswith("~"):
        return "begins with ~, which is not expanded here; write ${HOME}/... in its place"
    if "\n" in text or "\r" in text:
        return "must be one line; give a path"
    if UNUSABLE.search(text):
        return "holds characters that cannot be used; give a path of plain characters"
    return None


def uri_path_problem(text: str) -> str | None:
    """Return why a local path cannot be part of a URI: Spark, PyIceberg and SQLAlchemy decode these characters differently."""
    if found := next((character for character in "%#?" if character in text), None):
        return f"holds {found}, which stands for something else in the address of a table or catalog; choose another directory"
    return None


def path_text(value: object) -> object:
    """Validate a path."""
    if isinstance(value, str) and (problem := path_problem(value)):
        raise ValueError(problem)
    return value


def file_name(text: str) -> str:
    """Validate the name of log files: a plain name with an extension."""
    if problem := log_file_name_problem(text):
        raise ValueError(problem)
    return text


def _matching(pattern: re.Pattern[str], problem: str) -> Callable[[str], str]:
    """Return a validator that accepts whole matches of a pattern."""

    def validate(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(problem)
        return text

    return validate


key_prefix = _matching(
    _PREFIX, "must begin with / and have no empty part and no / at its end; write it like /danube-data"
)
namespace = _matching(
    _NAMESPACE, "must be made of letters, digits, _ and -, at most 200 of them; write it like default"
)
topic_pattern = _matching(_PATTERN, "must be /namespace/topic, where * stands for anything; write it like /default/*")
bucket = _matching(_BUCKET, "must be the bucket's name alone; write it like danube-data")
catalog_name = _matching(_CATALOG_NAME, "must be made of letters, digits and _, a letter first, and not spark_catalog")
auth_mode = _matching(
    re.compile("none"), "must be none: TLS and tokens come in a later release; until then listen on loopback only"
)


def service(text: str) -> str:
    """Validate the name of an OpenDAL service; a misspelt one of ours is refused."""
    if text in BACKENDS:
        return text
    meant = _OTHER_NAMES.get(text.lower()) or nearest(text.lower(), BACKENDS, 0.75)
    if meant is not None:
        raise ValueError(f"is no known store; did you mean {meant}?")
    if _SERVICE.fullmatch(text) is None:
        raise ValueError(f"must be {', '.join(BACKENDS)}, or the name of another OpenDAL service in lower case")
    return text


def endpoint(text: str) -> str:
    """Validate the address of a store, without credentials: they have keys of their own, which are redacted."""
    try:
        parts = urlsplit(text)
        sound = (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and ".." not in parts.netloc and parts.port != 0
        )
    except ValueError:
        raise ValueError("is no address; write it like https://host:port") from None
    if not sound or any(c.isspace() for c in text):
        raise ValueError("must begin with http:// or https:// and name a host; write it like https://host:port")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or a password; there are keys for credentials")
    if parts.query or parts.fragment:
        raise ValueError("must not hold a query (? or #); write it like https://host:port")
    return text


def host_port(text: str) -> str:
    """Validate one endpoint of etcd."""
    if "://" in text:
        raise ValueError("is written without http:// or https://; give host:port, and etcd_ca for TLS")
    match = _HOST.fullmatch(text)
    if match is None or not is_host(match[1]) or not 1 <= int(match[2]) <= 65535:
        raise ValueError(
            "must be host:port, several with commas between them or as a list; write it like 127.0.0.1:2379"
        )
    return text


def listen_host(text: str) -> str:
    """Validate a name or address to listen on; an IPv6 address with or without brackets."""
    if not is_host(text):
        raise ValueError(
            "must be a host name or an IP address alone; write it like 127.0.0.1 (the port has its own key)"
        )
    return text.strip("[]")


def listener(text: str) -> str:
    """Validate an advertised address and make it absolute: `host:port` is `http://host:port`."""
    url = text if "://" in text else f"http://{text}"
    scheme, _, place = url.partition("://")
    match = _HOST.fullmatch(place.removesuffix("/"))
    if scheme not in {"http", "https"} or match is None or not is_host(match[1]) or not 1 <= int(match[2]) <= 65535:
        raise ValueError("must be an address with a port and nothing behind it; write it like http://host:6650")
    return f"{scheme}://{match[0]}"


def none_word(value: object) -> object:
    """Convert the word none to None."""
    return None if isinstance(value, str) and value.strip().lower() in {"none", "off"} else value


def split_words(value: object) -> object:
    """Split "a,b" into a list."""
    return split_endpoints(value) if value != "" else []


def split_endpoints(value: object) -> object:
    """Split "a:1,b:2" into a list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def root_problem(backend: str, root: str) -> str | None:
    """Return the problem of a root for this store, None when it is valid."""
    if not root.strip() or "\n" in root:
        return "must not be empty"
    if backend in _SCHEMES:
        schemes = _SCHEMES[backend]
        form = f"{schemes[0]}{'container' if backend == 'azblob' else 'bucket'}/prefix"
        scheme = next((scheme for scheme in schemes if root.startswith(scheme)), None)
        bucket, *parts = root.removeprefix(scheme or "").rstrip("/").split("/")
        if scheme is None or _BUCKET.fullmatch(bucket) is None:
            return f"must be like {form} with backend {backend}"
        if any(part in {"", ".", ".."} for part in parts):
            return "must not have empty parts, . or .. in its prefix"
        return None
    if "://" in root:
        return f"must be a {'directory' if backend == 'fs' else 'path'}, not an address with ://"
    return path_problem(root) if backend == "fs" else None


def catalog_uri(text: str) -> str:
    """Validate the address of a catalog, without credentials: they have keys of their own, which are redacted."""
    scheme, _, rest = text.partition("://")
    if "@" in rest.partition("/")[0]:
        raise ValueError("must not hold a user or a password; there are keys for credentials")
    if UNUSABLE.search(text) or any(c.isspace() and c != " " for c in text) or (scheme != "sqlite" and " " in text):
        raise ValueError("holds characters that cannot be used; write it like http://host:8181 or sqlite:///file")
    return text


def catalog_uri_problem(kind: str, uri: str) -> str | None:
    """Return the problem of an address for this kind of catalog, None when it is valid."""
    scheme, _, rest = uri.partition("://")
    match kind:
        case "rest" | "glue":
            sound = scheme in {"http", "https"} and bool(rest.strip("/"))
            return None if sound else f"must begin with http:// or https:// with a {kind} catalog"
        case "sql" if scheme == "sqlite":
            if not rest.startswith("/") or not rest.strip("/") or "?" in rest:
                return "must name a file: sqlite:///relative/file or sqlite:////absolute/file"
            return path_problem(rest[1:]) or uri_path_problem(rest[1:])
        case "sql" if scheme == "postgresql":
            return None if _POSTGRES.fullmatch(rest) else "must be like postgresql://host:port/database"
        case "sql":
            return "must be sqlite:///file or postgresql://host:port/database with a sql catalog"
    return "belongs to another type of catalog: memory is nowhere; take it out"


def warehouse(text: str) -> str:
    """Validate the location of tables."""
    scheme, mark, rest = text.partition("://")
    if mark and (scheme not in {"s3", "gs", "abfss", "file"} or not rest.strip("/")):
        raise ValueError("must be a directory, or begin with s3://, gs:// or abfss:// and name a place there")
    problem = path_problem(text) or (uri_path_problem(rest if mark else text) if scheme == "file" or not mark else None)
    if problem:
        raise ValueError(problem)
    return text


def looks_secret(key: str, value: str = "") -> bool:
    """Return True if an option is redacted: by its key, or because it is an address with a password."""
    return _LOOKS_SECRET.search(key) is not None or re.search(r"://[^/\s]*@", value) is not None


def reachable_host(host: str) -> str:
    """Return a host to listen on as clients on this machine can use it; a wildcard address becomes loopback."""
    if host in EVERYWHERE:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
