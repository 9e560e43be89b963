"""Object stores by configuration: parsing of roots, and the mapping of our options to OpenDAL's."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opendal import AsyncOperator, config

from ister.core.errors import InvalidConfigError
from ister.ports.objects.fs import FsStore
from ister.ports.objects.opendal_store import FAILURES, PUBLIC, OpendalStore, Redactor, RetryOptions
from ister.ports.objects.store import key_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.ports.objects.store import CloudStore

SETTING = "wal_cloud.cloud"
USUAL = "fs, memory, s3, gcs, azblob"
EXPECTED = {
    "s3": "s3://bucket/prefix",
    "gcs": "gcs://bucket/prefix",
    "azblob": "container/prefix, without a scheme",
    "fs": "a directory",
    "memory": "a name",
}
SCHEMES = {"s3": ("s3://",), "gcs": ("gcs://", "gs://")}
# Our name of an option, and OpenDAL's. Every other option of the service is passed on as it is.
NAMES = {
    "s3": {
        "access_key": "access_key_id",
        "secret_key": "secret_access_key",
        "anonymous": "skip_signature",
        "virtual_host_style": "enable_virtual_host_style",
    },
    "gcs": {"credentials_json": "credential", "credentials_path": "credential_path", "anonymous": "skip_signature"},
    "azblob": {"anonymous": "skip_signature"},
}
CONTAINER = {"s3": "bucket", "gcs": "bucket", "azblob": "container"}
# What we cannot do without; a service that lacks one of them cannot hold objects that never change.
NEEDED = ("read", "write", "stat", "delete", "list", "list_with_recursive", "write_with_if_not_exists")

_memories: dict[str, AsyncOperator] = {}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Which object store: `options` by our names (docs of wal_cloud.cloud) or by OpenDAL's, empty ones left out."""

    backend: str
    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Root:
    """A root taken apart: `container` is empty where there is none, `prefix` has no slash at its ends.

    For fs, `prefix` is the directory as given.
    """

    container: str
    prefix: str


def parse_root(backend: str, root: str) -> Root:
    """Parse a root for a backend; InvalidConfigError names the expected form."""
    if backend not in EXPECTED:
        return Root("", root)
    rest = root.strip()
    scheme = next((scheme for scheme in SCHEMES.get(backend, ()) if rest.startswith(scheme)), "")
    rest = rest.removeprefix(scheme)
    if not rest or bool(scheme) != (backend in SCHEMES) or (not scheme and "://" in rest):
        _bad_root(backend, root)
    if backend == "fs":
        return Root("", rest)
    container, _, prefix = rest.partition("/") if backend in CONTAINER else ("-", "", rest.removeprefix("/"))
    prefix = prefix.removesuffix("/")
    if key_fault(container) or (prefix and key_fault(prefix)):
        _bad_root(backend, root)
    return Root(container if backend in CONTAINER else "", prefix)


def open_store(settings: StoreSettings, *, retry: RetryOptions | None = None) -> CloudStore:
    """Open a store without a request; raise InvalidConfigError if the settings are invalid."""
    backend, place = settings.backend, parse_root(settings.backend, settings.root)
    given = {name: value for name, value in settings.options.items() if value}
    if backend == "file":
        raise InvalidConfigError(f"{SETTING}.backend", f"is 'file'; a directory is 'fs', the usual are {USUAL}")
    if backend == "fs":
        _check_options(backend, given, frozenset())
        return FsStore(place.prefix)
    redact = Redactor(value for name, value in given.items() if name not in PUBLIC)
    options = _options(backend, place, given)
    name = f"{backend} {settings.root}"
    if backend == "memory":
        operator = _memories.get(place.prefix)
        if operator is None:
            operator = _memories[place.prefix] = AsyncOperator("memory", **options)
    else:
        operator = _operator(backend, options, redact)
    can = operator.capability()
    if lacks := [need for need in NEEDED if not getattr(can, need)]:
        raise InvalidConfigError(f"{SETTING}.backend", f"is {backend!r}, which cannot {', '.join(lacks)}")
    return OpendalStore(operator, service=backend, name=name, redact=redact, retry=retry)


def _bad_root(backend: str, root: str) -> None:
    raise InvalidConfigError(
        f"{SETTING}.root", f"is {root[:200]!r}; for backend {backend} it must be {EXPECTED[backend]}"
    )


def _options(backend: str, place: Root, given: dict[str, str]) -> dict[str, str]:
    names = NAMES.get(backend, {})
    if backend == "s3" and ("access_key" in given) != ("secret_key" in given):
        raise InvalidConfigError(
            f"{SETTING}.access_key", "goes with secret_key: give both, or none for the machine's own identity"
        )
    _check_options(backend, given, names.keys() | ({"project"} if backend == "gcs" else set()))
    options = {names.get(name, name): value for name, value in given.items()}
    if backend == "gcs":
        options.pop("project", None)  # OpenDAL needs none: bucket names are unique without it
        if text := given.get("credentials_json"):
            options["credential"] = _encoded_json(text)
    if backend == "s3":
        options.setdefault("checksum_algorithm", "crc32c")
    if backend in CONTAINER:
        options[CONTAINER[backend]] = place.container
    if place.prefix:
        options["root"] = f"/{place.prefix}" if backend in EXPECTED else place.prefix
    return options


def _check_options(backend: str, given: dict[str, str], ours: frozenset[str] | set[str]) -> None:
    """Refuse unknown options, which OpenDAL would ignore: a misspelt secret, too."""
    theirs = _known_options(backend)
    if backend in EXPECTED:
        theirs -= {"scheme", "root", "bucket", "container"}
    for name in given:
        if theirs and name not in theirs and name not in ours:
            raise InvalidConfigError(
                f"{SETTING}.{name}", f"is no option of {backend}; there are {', '.join(sorted(theirs | ours))}"
            )


def _known_options(backend: str) -> set[str]:
    for kind in vars(config).values():
        names: dict[str, object] = getattr(kind, "__annotations__", {})
        # Text, since these hints name types that are imported for checkers only.
        if f'Literal["{backend}"]' in str(names.get("scheme")).replace("'", '"'):
            return set(names)
    return set()


def _encoded_json(text: str) -> str:
    with suppress(ValueError):
        json.loads(text)
        return base64.b64encode(text.encode()).decode()
    # Outside of the handler: the decoder's error holds the whole text.
    raise InvalidConfigError(f"{SETTING}.credentials_json", "is not JSON")


def _operator(backend: str, options: dict[str, str], redact: Redactor) -> AsyncOperator:
    try:
        return AsyncOperator(backend, **options)
    except FAILURES as error:
        reason = redact.text(type(error).__name__, str(error))
    if "not registered" in reason:
        raise InvalidConfigError(
            f"{SETTING}.backend",
            f"is {backend[:80]!r}; the usual are {USUAL}, and OpenDAL has others such as oss or cos",
        )
    if backend == "s3" and "region" not in options and "region" in reason:
        raise InvalidConfigError(
            f"{SETTING}.region",
            "is missing; give the bucket's region (any, like us-east-1, for a server without regions)",
        )
    raise InvalidConfigError(SETTING, f"is not what {backend} needs: {reason}")
