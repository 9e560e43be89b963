"""Redaction of a service's error text: its headline and its root cause, without secrets."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
