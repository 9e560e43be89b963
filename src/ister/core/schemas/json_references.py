"""Decide what a reference in a JSON Schema leads to: by an address, an anchor or a path, and only within the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urljoin

from ister.core.schemas.json_forms import FormError, parts

if TYPE_CHECKING:
    from ister.core.schemas.document import Json
    from ister.core.schemas.json_forms import Dialect


class References:
    """The parts of a definition by all the names that they have."""

    def __init__(self, document: Json, dialect: Dialect) -> None:
        self._dialect = dialect
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Json] = {"": document}
        self._anchors: dict[tuple[str, str], Json] = {}
        self.add(document, "")

    def add(self, document: Json, base: str) -> None:
        """Learn the names of a schema and of all that it is made of."""
        work = [(document, base)]
        while work:
            part, around = work.pop()
            if isinstance(part, dict) and id(part) not in self._bases:
                inner = self._base(part, around)
                self._bases[id(part)] = inner
                work += [(one, inner) for _, _, one in parts(part, self._dialect)]

    def find(self, schema: dict[str, Json], reference: str) -> tuple[Json, str]:
        """Return what a reference of a schema leads to, and the address that it is under; FormError when to nothing."""
        base = self._bases[id(schema)]
        if reference.startswith("#"):
            uri, fragment = base, reference[1:]
        else:
            uri, fragment = _defrag(base, reference)
        fragment = unquote(fragment)
        missing = FormError(f"refers to {reference[:80]!r}, which is not in it; nothing is fetched from elsewhere")
        if uri not in self._resources:
            raise missing
        if fragment and not fragment.startswith("/"):
            if (uri, fragment) not in self._anchors:
                raise missing
            return self._anchors[uri, fragment], uri
        found = self._resources[uri]
        for step in fragment.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise missing
            uri = self._bases.get(id(found), uri)
        return found, uri

    def _base(self, part: dict[str, Json], base: str) -> str:
        """Return the address of a schema, and note its names."""
        draft = self._dialect.draft
        name = part.get("id" if draft == 4 else "$id")
        if draft <= 7 and "$ref" in part:
            name = None  # what stands beside a reference does not count
        if isinstance(name, str):
            uri, fragment = _defrag(base, name)
            if draft <= 7 and fragment:
                self._anchors[uri, fragment] = part
            if not name.startswith("#"):
                base = uri
                self._resources[uri] = part
        anchor = part.get("$anchor")
        if isinstance(anchor, str) and draft >= 2019:
            self._anchors[base, anchor] = part
        return base


def _defrag(base: str, reference: str) -> tuple[str, str]:
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        raise FormError(f"has {reference[:80]!r}, which is no address") from None
    return uri, fragment
