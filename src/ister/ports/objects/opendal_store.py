"""Object stores through OpenDAL: error mapping, redaction of error texts, and the proof that an object is stored.

Every write is one conditional put of finished bytes. OpenDAL's methods return futures, its exceptions have no common
base, and a cancelled put may still land; nothing of that leaves this module.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, quote_plus

from opendal import AsyncOperator, exceptions
from opendal.layers import RetryLayer, TimeoutLayer

from ister.core.errors import (
    CorruptObjectError,
    IsterError,
    MissingObjectError,
    ObjectExistsError,
    PutUnknownError,
    StoreRefusedError,
    StoreUnavailableError,
)
from ister.ports.objects.store import ObjectInfo, check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from opendal.types import Entry, Metadata

    from ister.core.frames.columns import Frames

    T = TypeVar("T")
    from collections.abc import Iterable, Iterator

FAILURES: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
EXISTS = (exceptions.ConditionNotMatch, exceptions.AlreadyExists)
# Trying again cannot help. A missing bucket is ConfigInvalid on S3, NotFound elsewhere.
REFUSED = (
    exceptions.ConfigInvalid,
    exceptions.PermissionDenied,
    exceptions.Unsupported,
    exceptions.IsADirectory,
    exceptions.NotADirectory,
)
# These list in the order of keys; every other service's listing is sorted here, which holds it in memory.
ORDERED = frozenset({"s3", "gcs", "azblob", "memory"})
NO_BUCKET = "there is no such bucket or container"
# How S3, Azure and GCS distinguish a missing bucket from a missing object; a HEAD response has no text for that.
BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
# How OpenDAL reports that an object ends before the range does, where it has no RangeNotSatisfied: Azure's answer is 416,
# Azurite's a range like 5-4. None of them is proof; the size decides.
SHORT = ("too little data", "status: 416", "content range is invalid")
SLOWEST_BYTES_PER_S = 1 << 20
HIDDEN = "***"
TEXT_MAX = 300
# A server that repeats our request in its answer repeats signatures and tokens that no option holds.
SIGNED = re.compile(r"(authorization|x-amz-security-token|bearer)\b.*", re.IGNORECASE | re.DOTALL)
# Everything else in the options is taken for a secret, since OpenDAL has new services with every release.
PUBLIC = frozenset({
    "endpoint", "region", "project", "profile", "role_arn", "anonymous", "virtual_host_style", "account_name",
    "bucket", "container", "root", "credentials_path", "credential_path", "checksum_algorithm", "skip_signature",
    "allow_anonymous", "enable_virtual_host_style", "default_storage_class", "server_side_encryption", "datadir",
    "table", "scope", "user", "username", "tree", "database", "collection",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """Timeouts and retries of requests to a store."""

    attempt_s: float = 30.0  # one request, and one more second for every MiB it sends
    retries: int = 4
    pause_s_min: float = 0.2
    pause_s_max: float = 5.0

    def attempt(self, count: int) -> float:
        """Return the timeout of one request with that many bytes."""
        return self.attempt_s + count / SLOWEST_BYTES_PER_S

    def whole(self, count: int) -> float:
        """Return the timeout of a call with all its attempts: OpenDAL limits each wait for bytes, but not their sum."""
        return (self.retries + 1) * (self.attempt(count) + self.pause_s_max)


class OpendalStore:
    """A service of OpenDAL as an object store."""

    def __init__(
        self,
        operator: AsyncOperator,
        *,
        service: str,
        name: str,
        redact: Redactor | None = None,
        retry: RetryOptions | None = None,
    ) -> None:
        self._bare = operator
        self._retry = retry or RetryOptions()
        self._operator = self._with_retries(0)
        self._name = name
        self._redact = redact or Redactor(())
        self._ordered = service in ORDERED
        can = operator.capability()
        self._can_match = can.read_with_if_match
        self._can_start_after = can.list_with_start_after

    @property
    def name(self) -> str:
        """Where it is, for people: backend and root, no secrets."""
        return self._name

    async def put_if_absent(self, key: str, data: Frames) -> ObjectInfo:
        """Store finished bytes under a new name, and return once the store has proved that it holds them."""
        check_key(self._name, key)
        view = memoryview(data).cast("B")
        failure: IsterError
        try:
            async with asyncio.timeout(self._retry.whole(len(view))):
                # The stub says bytes; any buffer is taken, and copied once.
                await self._with_retries(len(view)).write(key, view, if_not_exists=True)  # type: ignore[arg-type]
        except EXISTS:
            failure = ObjectExistsError(self._name, key)
        except TimeoutError:
            failure = PutUnknownError(self._name, key, "no answer in time")
        except FAILURES as error:
            if isinstance(error, exceptions.NotFound):  # nothing else can be missing where a new name is put
                failure = StoreRefusedError(self._name, f"put {key}", NO_BUCKET)
            elif isinstance(error, REFUSED):
                failure = StoreRefusedError(self._name, f"put {key}", self._text(error))
            else:  # an earlier attempt may have landed
                failure = PutUnknownError(self._name, key, self._text(error))
        else:
            return await self._verify(key, view)
        raise failure  # not in the handler: the service's own text, which may hold secrets, would hang on as context

    async def make_durable(self, key: str, data: Frames) -> None:  # noqa: ARG002  # the port has it
        """Do nothing: what a remote store shows, it keeps."""
        check_key(self._name, key)

    async def read(self, key: str, start: int, stop: int, *, etag: str = "") -> bytes:
        """Return exactly the bytes [start, stop)."""
        check_key(self._name, key)
        if not 0 <= start <= stop:
            raise StoreRefusedError(self._name, f"read {key}", f"[{start}, {stop}) is no range")
        size = stop - start
        if not size:  # services disagree about an empty range; what may be known without one is that it is there
            return await self._read_nothing(key, stop, etag)
        match = etag if etag and self._can_match else None
        try:
            data = await self._ask(
                f"read {key}", size, lambda: self._operator.read(key, offset=start, size=size, if_match=match)
            )
        except _ShortError:
            data = b""
        except _MissingError:
            raise MissingObjectError(key, self._name) from None
        except _OtherError:
            return await self._read_unmatched(key, start, stop, etag)
        if len(data) != size:
            raise await self._explain_short(key, start, stop)
        return data

    async def stat(self, key: str) -> ObjectInfo | None:
        """Return an object's size and etag, None if it does not exist. A missing bucket may look the same."""
        found = await self._look(key)
        return None if found is None else ObjectInfo(key, found.content_length, found.etag or "")

    async def list(self, prefix: str, *, after: str = "") -> AsyncGenerator[ObjectInfo]:
        """Yield the objects in key order, page by page."""
        check_prefix(self._name, prefix)
        async with aclosing(self._entries(prefix, after)) as found:
            if not self._ordered:
                for info in sorted([info async for info in found]):
                    yield info
                return
            last = ""
            async for info in found:
                if info.key < last:
                    cause = f"it gave {info.key} behind {last}, out of order"
                    raise StoreRefusedError(self._name, f"list {prefix}", cause)
                last = info.key
                yield info

    async def delete(self, key: str) -> None:
        """Delete an object; no error if it does not exist."""
        check_key(self._name, key)
        try:
            await self._ask(f"delete {key}", 0, lambda: self._operator.delete(key))
        except _MissingError:
            return

    async def close(self) -> None:
        """Do nothing: OpenDAL closes idle connections."""

    def _with_retries(self, count: int) -> AsyncOperator:
        """Return the operator with a time limit on each attempt, and attempts around it; the order matters."""
        limit = self._retry.attempt(count)
        return self._bare.layer(TimeoutLayer(timeout=limit, io_timeout=limit)).layer(
            RetryLayer(
                max_times=self._retry.retries,
                factor=2.0,
                jitter=True,
                min_delay=self._retry.pause_s_min,
                max_delay=self._retry.pause_s_max,
            )
        )

    async def _verify(self, key: str, view: memoryview) -> ObjectInfo:
        """Compare what the store holds with what was sent: by the store's own MD5, else by reading it all back.

        S3 checks a CRC32C on the way in, but servers that speak S3 need not; its etag is an MD5 unless the bucket
        encrypts with keys of its own, and then we read back.
        """
        try:
            found = await self._look(key)
            if found is None:
                raise PutUnknownError(self._name, key, "it was taken, but it is not there")
            if found.content_length != len(view):
                # Perhaps a proxy answered: the caller checks again before it reports damage.
                cause = f"{len(view)} bytes were put, the store has {found.content_length}"
                raise PutUnknownError(self._name, key, cause)
            info = ObjectInfo(key, len(view), found.etag or "")
            digest = await asyncio.to_thread(lambda: hashlib.md5(view, usedforsecurity=False))
            if info.etag.strip('"') == digest.hexdigest():
                return info
            if found.content_md5 == base64.b64encode(digest.digest()).decode():
                return info
            back = await self.read(key, 0, len(view))
        except (StoreUnavailableError, StoreRefusedError, MissingObjectError, CorruptObjectError) as error:
            raise PutUnknownError(self._name, key, f"it was taken, but could not be verified: {error}") from None
        if back != view:
            raise PutUnknownError(self._name, key, "the store gives other bytes than were put")
        return info

    async def _look(self, key: str) -> Metadata | None:
        check_key(self._name, key)
        try:
            found = await self._ask(f"look at {key}", 0, lambda: self._operator.stat(key))
        except _MissingError:
            return None
        return None if found.is_dir else found

    async def _read_nothing(self, key: str, stop: int, etag: str) -> bytes:
        found = await self.stat(key)
        if found is None:
            raise MissingObjectError(key, self._name)
        if etag and found.etag and found.etag != etag:
            raise CorruptObjectError(key, -1, -1, f"it is not the one with etag {etag}")
        if stop > found.size:
            raise CorruptObjectError(key, found.size, -1, f"it has {found.size} bytes, byte {stop} was asked for")
        return b""

    async def _read_unmatched(self, key: str, start: int, stop: int, etag: str) -> bytes:
        """Read an object whose etag the store reports as different, if `stat` returns this one.

        Some servers refuse the etag that they returned themselves; those are not asked to compare again.
        """
        await self._read_nothing(key, stop, etag)
        self._can_match = False
        return await self.read(key, start, stop)

    async def _explain_short(self, key: str, start: int, stop: int) -> IsterError:
        """Distinguish a short object, which is damage, from a short response, which is transient."""
        found = await self.stat(key)
        if found is None:
            return MissingObjectError(key, self._name)
        if found.size < stop:
            reason = f"it has {found.size} bytes, [{start}, {stop}) was asked for"
            return CorruptObjectError(key, found.size, -1, reason)
        return StoreUnavailableError(self._name, f"read {key}", "the answer was cut short")

    async def _entries(self, prefix: str, after: str) -> AsyncGenerator[ObjectInfo]:
        action = f"list {prefix}"
        start = after if after and self._can_start_after else None
        try:
            lister = await self._ask(action, 0, lambda: self._operator.list(prefix, recursive=True, start_after=start))
            entries = aiter(lister)
            while True:
                entry: Entry = await self._ask(action, 0, lambda: anext(entries))
                path = entry.path
                if path.startswith(prefix) and path > after and not path.endswith("/"):
                    yield ObjectInfo(path, entry.metadata.content_length, entry.metadata.etag or "")
        except StopAsyncIteration:
            return
        except _MissingError:
            # Where there are directories, there is none of that name; where there are none, the bucket is missing.
            if self._ordered:
                raise StoreRefusedError(self._name, action, NO_BUCKET) from None

    async def _ask(self, action: str, count: int, call: Callable[[], Awaitable[T]]) -> T:
        failure: IsterError
        try:
            async with asyncio.timeout(self._retry.whole(count)):
                return await call()
        except TimeoutError:
            failure = StoreUnavailableError(self._name, action, "no answer in time")
        except FAILURES as error:
            failure = self._map_error(action, error)
        raise failure  # not in the handler: see put_if_absent

    def _map_error(self, action: str, error: Exception) -> IsterError:
        text = self._text(error)
        kind: type[StoreRefusedError | StoreUnavailableError] = StoreUnavailableError
        match error:
            case exceptions.NotFound() if any(code in str(error) for code in BUCKET_CODES):
                return StoreRefusedError(self._name, action, NO_BUCKET)
            case exceptions.NotFound():
                kind = _MissingError
            case exceptions.ConditionNotMatch():
                kind = _OtherError
            case exceptions.RangeNotSatisfied():
                kind = _ShortError
            case exceptions.Unexpected() if any(sign in str(error) for sign in SHORT):
                kind = _ShortError
            case _ if isinstance(error, REFUSED):
                kind = StoreRefusedError
        return kind(self._name, action, text)

    def _text(self, error: Exception) -> str:
        return self._redact.text(type(error).__name__, str(error))


class _MissingError(StoreRefusedError):
    """There is no such object."""


# Only a read has an etag and a range: as an error of any other call, these are transient.
class _OtherError(StoreUnavailableError):
    """The object has another etag."""


class _ShortError(StoreUnavailableError):
    """There are fewer bytes than requested."""


class Redactor:
    """Takes secrets out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._pattern = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None

    def __repr__(self) -> str:
        return "Redactor(***)"

    def hide(self, text: str) -> str:
        """Return the text with every secret replaced."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    def text(self, kind: str, full: str) -> str:
        """Reduce an OpenDAL error to its headline and root cause; the rest is requests, headers and addresses."""
        headline, _, body = full.partition("\n")
        status = re.search(r"status: (\d+)", body)
        reason = headline.partition("=> ")[2] or (f"{kind}, HTTP status {status[1]}" if status else kind)
        # As S3 and Azure put it, and GCS: AzblobError { code: "X", …, GcsErrorResponse { error: GcsError { code: 403, …
        if code := re.match(r'(?:\w+ \{ error: )?\w+ \{ code: "?(\w+)"?, message: "([^"]*)"', reason):
            reason = f"{code[1]}: {code[2]}"
        source = re.search(r"^Source:\n +(.+)$", body, re.MULTILINE)
        cause = f" ({source[1]})" if source else ""
        return SIGNED.sub(HIDDEN, self.hide(f"{reason}{cause}"))[:TEXT_MAX]


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret: plain, as part of an address, and the values inside its JSON."""
    if secret.lower() in {"", "true", "false"}:
        return
    yield from {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1], json.dumps(secret)[1:-1]}
    yield base64.b64encode(secret.encode(errors="replace")).decode()
    if secret.lstrip().startswith("{"):
        try:
            fields = json.loads(secret)
        except ValueError:
            return
        for name, value in fields.items():
            if isinstance(value, str) and re.search(r"key|secret|token|password", name):
                yield from _forms(value)
