"""Names of topics, clients, subscriptions and log files, validated before use in a path, object key, table or log line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ister.core.errors import InvalidNameError, InvalidRequestError

NAME_BYTES_MAX = 255
NAME_CHARS_MAX = 255
_NAME = re.compile(r"/([A-Za-z0-9_-]+)/([A-Za-z0-9_-]+)", re.ASCII)
_PARTITION = re.compile(r"(.+)-part-(0|[1-9][0-9]*)", re.ASCII)
RESERVED_SUFFIXES = ("tmp", "aside")
"""What is added to the names of log files that are being written, and of those that were set aside."""


def log_file_name_problem(text: str) -> str | None:
    """Return why log files cannot be named after a text, None when they can."""
    stem, _, suffix = text.rpartition(".")
    if not (stem and suffix) or text.startswith(".") or re.search(r"[\x00-\x1f\x7f/]", text):
        return "must be a plain name with an extension; write it like wal.log"
    if suffix in RESERVED_SUFFIXES:
        return f"must not end in .{suffix}, which marks files that are not part of the log; write it like wal.log"
    return None


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """`/namespace/topic`, parsed.

    Only `parse` makes one from text. Neither part can hold a separator or a dot, so two names never share a path.
    """

    namespace: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Accept exactly `/namespace/topic`; refuse everything else by reason."""
        if len(text) > NAME_BYTES_MAX:
            raise InvalidNameError(text, f"it has {len(text)} characters, more than {NAME_BYTES_MAX}")
        match = _NAME.fullmatch(text)
        if match is None:
            raise InvalidNameError(text, "it does not have that form")
        return cls(match[1], match[2])

    def __post_init__(self) -> None:
        if _NAME.fullmatch(str(self)) is None or len(str(self)) > NAME_BYTES_MAX:
            raise InvalidNameError(str(self), "it does not have that form")

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.topic}"

    def path_parts(self) -> tuple[str, str]:
        """Return the directories below a root that belong to this topic and no other."""
        return (self.namespace, self.topic)


def partition_of(name: TopicName) -> tuple[TopicName, int] | None:
    """Return the base and the number of a partition, None for a topic that is none."""
    match = _PARTITION.fullmatch(name.topic)
    return None if match is None else (TopicName(name.namespace, match[1]), int(match[2]))


def check_name(field: str, name: str) -> None:
    """Raise InvalidRequestError if a producer, consumer or subscription name is empty, too long or not printable."""
    if not name:
        raise InvalidRequestError(f"{field} is missing")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidRequestError(f"{field} has {len(name)} characters, more than {NAME_CHARS_MAX}")
    if not name.isprintable():
        raise InvalidRequestError(f"{field} has characters that cannot be printed")
