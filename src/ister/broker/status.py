"""Mapping of errors to gRPC status codes and texts without paths, addresses or stacks (S20).

An error's own text is for the operator: it may name a file, a bucket or another process. A client gets it only where the
table says OWN. An error that is not in the table is mapped like its nearest base class that is, so a new error never
exposes its own text by accident.
"""

from __future__ import annotations

from typing import Final

from grpc import StatusCode

from ister.core import errors
from ister.core.errors import IsterError
from ister.transport.service import INTERNAL_TEXT

TEXT_BYTES_MAX: Final = 1024
"""A status text is a header; clients accept 8 KiB of headers, and percent-encoding may triple it."""

OWN: Final = "{own}"
"""The error's own text is written for clients."""

STATUSES: Final[dict[type[IsterError], tuple[StatusCode, str]]] = {
    IsterError: (StatusCode.INTERNAL, INTERNAL_TEXT),
    # The request is wrong: clients do not retry.
    errors.ClientError: (
        StatusCode.INVALID_ARGUMENT,
        "the request cannot be served as it is; the broker's log says why",
    ),
    errors.InvalidRequestError: (StatusCode.INVALID_ARGUMENT, OWN),
    errors.InvalidNameError: (StatusCode.INVALID_ARGUMENT, OWN),
    errors.InvalidMessageError: (StatusCode.INVALID_ARGUMENT, OWN),
    errors.NotFoundError: (StatusCode.NOT_FOUND, OWN),
    errors.UnknownTopicError: (StatusCode.NOT_FOUND, "topic {topic} does not exist; create it first"),
    errors.AlreadyExistsError: (StatusCode.ALREADY_EXISTS, OWN),
    errors.PreconditionError: (StatusCode.FAILED_PRECONDITION, OWN),
    errors.DeniedError: (StatusCode.PERMISSION_DENIED, OWN),
    errors.UnknownPlaceError: (StatusCode.INTERNAL, OWN),
    errors.UnsupportedError: (StatusCode.UNIMPLEMENTED, OWN),
    errors.OffsetOutOfRangeError: (StatusCode.OUT_OF_RANGE, OWN),
    errors.InvalidConfigError: (
        StatusCode.FAILED_PRECONDITION,
        "the broker's configuration does not allow this; its log says which setting",
    ),
    errors.UnknownHistoryError: (
        StatusCode.FAILED_PRECONDITION,
        "topic {topic} has objects that the broker's metadata does not know; its operator can run `ister objects rebuild`",
    ),
    # Client errors of the broker towards its stores: the request was valid and may succeed later.
    errors.LogClosedError: (StatusCode.UNAVAILABLE, "the topic is being closed; look it up again and retry"),
    errors.StoreRefusedError: (
        StatusCode.UNAVAILABLE,
        "the object store refuses the broker; its operator must see to it, then try again",
    ),
    errors.WatchCompactedError: (StatusCode.UNAVAILABLE, "the broker is catching up with its metadata; try again"),
    # Busy: clients back off and retry.
    errors.BusyError: (StatusCode.UNAVAILABLE, "the broker cannot do this now; try again later"),
    errors.LimitError: (StatusCode.RESOURCE_EXHAUSTED, OWN),
    errors.DrainingError: (StatusCode.UNAVAILABLE, OWN),
    errors.DiskFullError: (
        StatusCode.RESOURCE_EXHAUSTED,
        "no space is left on the broker's disk: nothing was stored; free space and send again, reads go on",
    ),
    errors.PoisonedError: (
        StatusCode.UNAVAILABLE,
        "the topic takes no messages since a write failed; the broker's operator must check the disk, then reopen it",
    ),
    errors.ResourceExhaustedError: (
        StatusCode.UNAVAILABLE,
        "the broker is out of file descriptors or memory for the moment; no stored data is damaged, try again later",
    ),
    errors.StoreUnavailableError: (
        StatusCode.UNAVAILABLE,
        "the object store does not answer the broker; nothing was changed, try again later",
    ),
    errors.MetadataUnavailableError: (
        StatusCode.UNAVAILABLE,
        "the broker's metadata store does not answer; nothing was changed, try again",
    ),
    # Another owner: clients look the topic up again.
    errors.FencedError: (StatusCode.UNAVAILABLE, "another process owns this now; look the topic up again and retry"),
    errors.LockedError: (StatusCode.UNAVAILABLE, "another process owns this topic; look it up again and retry"),
    errors.ObjectExistsError: (
        StatusCode.UNAVAILABLE,
        "the object store has an object of that name already; another broker may own this topic, look it up again",
    ),
    errors.LeaseLostError: (
        StatusCode.UNAVAILABLE,
        "the broker lost its lease and may not be the owner any more; look the topic up again and retry",
    ),
    errors.OtherOwnerError: (StatusCode.UNAVAILABLE, "another broker owns this topic now; look it up again and retry"),
    errors.TopicTakenError: (StatusCode.UNAVAILABLE, OWN),
    # Stored data is damaged: an operator must act.
    errors.CorruptError: (
        StatusCode.DATA_LOSS,
        "stored data is damaged or missing; the broker's operator must restore it, its log says what",
    ),
    errors.CorruptLogError: (
        StatusCode.DATA_LOSS,
        "the topic's log is damaged{place}; the broker's operator must restore it (`ister wal verify` says which file)",
    ),
    errors.MissingFileError: (
        StatusCode.DATA_LOSS,
        "a part of the topic's log is missing{place}; the broker's operator must restore it (`ister wal verify` says which)",
    ),
    errors.CorruptCursorsError: (
        StatusCode.DATA_LOSS,
        "the progress of the topic's subscriptions is damaged; the broker's operator must restore it from a copy",
    ),
    errors.UnknownFormatError: (
        StatusCode.DATA_LOSS,
        "the topic holds a message that a newer release has written; the broker's operator must use that release",
    ),
    errors.CorruptObjectError: (
        StatusCode.DATA_LOSS,
        "an object of the topic is damaged{place}; the broker's operator must restore it (`ister objects verify`)",
    ),
    errors.MissingObjectError: (
        StatusCode.DATA_LOSS,
        "an object of the topic is missing; the broker's operator must restore it (`ister objects verify`)",
    ),
    errors.MissingOffsetsError: (
        StatusCode.DATA_LOSS,
        "messages of the topic are missing{place}; the broker's operator must restore the log or the objects from a copy",
    ),
    errors.ForeignObjectError: (
        StatusCode.DATA_LOSS,
        "an object with a name of this topic holds other messages; does another cluster use the broker's bucket?",
    ),
    errors.CorruptMetadataError: (
        StatusCode.DATA_LOSS,
        "the broker's metadata is damaged; its operator must restore it from a copy, its log says which key",
    ),
    # Unknown outcome: clients do not retry on their own.
    errors.UnknownOutcomeError: (StatusCode.UNKNOWN, "this may or may not have happened; look before sending it again"),
    errors.WriteFailedError: (
        StatusCode.UNKNOWN,
        "the log could not be written: this is not acknowledged and may or may not be there after a restart of the broker",
    ),
    errors.SyncFailedError: (
        StatusCode.UNKNOWN,
        "the log could not be synced: this is not acknowledged and may or may not be there after a restart of the broker",
    ),
    errors.CursorsNotSavedError: (
        StatusCode.UNKNOWN,
        "this progress could not be saved and may be lost; acknowledge again once the broker's disk is well",
    ),
    errors.PutUnknownError: (
        StatusCode.UNKNOWN,
        "the object store did not say whether it stored an object; look before sending it again",
    ),
    errors.MetadataUnknownError: (
        StatusCode.UNKNOWN,
        "the metadata store did not say whether this change happened; look before sending it again",
    ),
    errors.LevelNotReachedError: (
        StatusCode.UNKNOWN,
        "topic {topic}: all below offset {offset} is in the log, not yet at the topic's level; do not send it again",
    ),
    errors.NotYetInTierError: (
        StatusCode.UNKNOWN,
        "topic {topic}: all below offset {offset} is in the log, not yet in {tier}; do not send it again",
    ),
}


def status_of(error: Exception) -> tuple[StatusCode, str]:
    """Return the status code and text of an error."""
    for kind in type(error).__mro__:
        if kind in STATUSES:
            code, words = STATUSES[kind]
            text = str(error) if words is OWN else words.format_map({**vars(error), "place": _place(error)})
            # Truncated to what a header holds; what UTF-8 cannot encode is escaped.
            return code, text.encode(errors="backslashreplace")[:TEXT_BYTES_MAX].decode(errors="ignore")
    return StatusCode.INTERNAL, INTERNAL_TEXT


def _place(error: Exception) -> str:
    """Return the offsets that the error concerns, as text."""
    start = getattr(error, "expected_offset", getattr(error, "start", -1))
    stop = getattr(error, "stop", -1)
    if start < 0:
        return ""
    return f" at offset {start}" if stop <= start else f": offsets [{start}, {stop})"
