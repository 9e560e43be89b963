"""Errors that cross packages, in five families: whose fault it is, and what to do next.

Fields are named so that a program can act on them; the text is for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class IsterError(Exception):
    """The base class; catch a family instead."""

    exit_code: ClassVar[int] = 5
    """The exit code of a process that ends with this error; each family has its own."""


class ClientError(IsterError):
    """The request is wrong; a retry cannot succeed."""

    exit_code = 2


class BusyError(IsterError):
    """The same request may succeed later."""

    exit_code = 3


class FencedError(IsterError):
    """Another process is the owner; stop."""

    exit_code = 4


class CorruptError(IsterError):
    """Stored data is damaged or missing; stop and call an operator."""

    exit_code = 1


class UnknownOutcomeError(IsterError):
    """The outcome is unknown; check before a retry."""

    exit_code = 5


def error_of(exit_code: int, text: str) -> IsterError:
    """Return an error of the family that a child process reported by its exit code."""
    for family in (CorruptError, ClientError, BusyError, FencedError):
        if family.exit_code == exit_code:
            return family(text)
    return UnknownOutcomeError(text)


# --- ClientError ------------------------------------------------------------------------------------------------------


class InvalidRequestError(ClientError):
    """A request with a field that is missing, malformed or out of its bounds."""


class InputError(ClientError):
    """An argument or a file of the user that cannot be used."""

    def __init__(self, given: str, reason: str) -> None:
        self.given, self.reason = given, reason
        super().__init__(f"{given} {reason}")


class NotFoundError(ClientError):
    """The requested thing does not exist."""


class AlreadyExistsError(ClientError):
    """The thing to create exists, or conflicts with what exists."""


class PreconditionError(ClientError):
    """The request contradicts the current state; something else must change first."""


class DeniedError(ClientError):
    """The request is understood and refused."""


class UnknownPlaceError(ClientError):
    """An acknowledgement for a topic or subscription that does not exist; the protocol has its own status for that."""


class UnsupportedError(ClientError):
    """A part of the protocol that the broker does not support."""


class InvalidNameError(ClientError):
    """A topic name that is not `/namespace/topic`."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(
            f"invalid topic name {name[:80]!r}: {reason}; expected /namespace/topic made of letters, digits, '_' and '-'"
        )


class InvalidMessageError(ClientError):
    """A message that cannot be stored."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"invalid message: {field} {reason}")


class InvalidConfigError(ClientError):
    """A setting that contradicts itself or its bounds."""

    def __init__(self, setting: str, reason: str) -> None:
        self.setting, self.reason = setting, reason
        super().__init__(f"invalid setting {setting}: {reason}")


class OffsetOutOfRangeError(ClientError):
    """An offset that this log does not hold."""

    def __init__(self, requested: int, start: int, stop: int) -> None:
        self.requested, self.start, self.stop = requested, start, stop
        super().__init__(f"offset {requested} is outside this log: it holds [{start}, {stop})")


class LogClosedError(ClientError):
    """The log was closed."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(f"log {log} is closed")


class UnknownTopicError(ClientError):
    """No such topic."""

    def __init__(self, topic: str, where: str) -> None:
        self.topic, self.where = topic, where
        super().__init__(f"there is no topic {topic} in {where}; `ister topics` lists what there is")


class UnknownHistoryError(ClientError):
    """Objects of a topic exist that neither metadata nor the disk knows of."""

    def __init__(self, topic: str, store: str) -> None:
        self.topic = topic
        super().__init__(
            f"{store} has objects of topic {topic}, but neither metadata nor the log's directory knows that topic; "
            "run `ister objects rebuild` to get it back, or delete those objects"
        )


class StoreRefusedError(ClientError):
    """The object store refuses the request: wrong credentials, missing bucket, unsupported setting."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store, self.action, self.cause = store, action, cause
        super().__init__(f"{store} refused to {action}: {cause}; check wal_cloud.cloud in the configuration")


class WatchCompactedError(ClientError):
    """The store has compacted these changes; list again, and watch from there."""

    def __init__(self, store: str, after: int) -> None:
        self.store, self.after = store, after
        super().__init__(f"{store} does not remember the changes behind version {after} any more; list again")


# --- BusyError --------------------------------------------------------------------------------------------------------


class DiskFullError(BusyError):
    """No space for these messages; none of them was stored."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(f"no space left for log {log}: nothing was stored; free space and send again, reads go on")


class PoisonedError(BusyError):
    """A write or a sync failed earlier; the log refuses appends until it is opened again."""

    def __init__(self, log: str, cause: str) -> None:
        self.log, self.cause = log, cause
        super().__init__(
            f"log {log} takes no more messages: {cause}; check the disk, then open the log again "
            "(opening copies every message that was not yet synced to a new file)"
        )


class ResourceExhaustedError(BusyError):
    """The process or the machine has run out of file descriptors, memory or threads; no stored data is damaged."""

    def __init__(self, action: str, cause: str) -> None:
        self.action, self.cause = action, cause
        super().__init__(
            f"could not {action} ({cause}): the process or the machine is out of file descriptors or memory; no stored "
            "data is damaged, try again later, and raise the limit (ulimit -n) if this happens often"
        )


class StoreUnavailableError(BusyError):
    """The object store is unreachable or does not answer; nothing was changed."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store, self.action, self.cause = store, action, cause
        super().__init__(f"{store} could not {action}: {cause}; nothing was changed, try again later")


class MetadataUnavailableError(BusyError):
    """The metadata store is unreachable or does not answer; nothing was changed."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store, self.action, self.cause = store, action, cause
        super().__init__(f"metadata in {store} could not {action}: {cause}; nothing was changed, try again")


class LimitError(BusyError):
    """A configured limit is reached."""


class DrainingError(BusyError):
    """The broker is stopping, or the topic is being closed; look it up again."""


# --- FencedError ------------------------------------------------------------------------------------------------------


class LockedError(FencedError):
    """Another process owns this directory."""

    def __init__(self, directory: str, holder: str) -> None:
        self.directory, self.holder = directory, holder
        super().__init__(f"directory {directory} is owned by {holder}; one log has one writer")


class ObjectExistsError(FencedError):
    """An object of that name exists."""

    def __init__(self, store: str, key: str) -> None:
        self.store, self.key = store, key
        super().__init__(f"{store} has an object {key} already; objects are never replaced")


class LeaseLostError(FencedError):
    """The lease has expired; another process may be the owner."""

    def __init__(self, store: str) -> None:
        self.store = store
        super().__init__(f"the lease in {store} is lost; another process may be the owner now")


class TopicTakenError(FencedError):
    """Another process changed a topic's record at the same moment."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic} was opened or deleted by another process at the same moment; try again")


class OtherOwnerError(FencedError):
    """Another owner described an object of this topic."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"metadata key {key} was written by another owner of this topic; this one stops uploading")


class CursorTakenError(FencedError):
    """Another owner writes the cursors of this topic."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"metadata key {key} was written by another owner of this topic; this one saves no more cursors"
        )


# --- CorruptError -----------------------------------------------------------------------------------------------------


class CorruptLogError(CorruptError):
    """Damage in synced bytes, which is loss, not a torn tail."""

    def __init__(self, file: str, byte: int, expected_offset: int, reason: str) -> None:
        self.file, self.byte, self.expected_offset, self.reason = file, byte, expected_offset, reason
        super().__init__(
            f"{file} is corrupt at byte {byte}, where offset {expected_offset} should be: {reason}; "
            "nothing was changed, restore this file from a copy"
        )


class MissingFileError(CorruptError):
    """A log file between two others is missing or cannot be read."""

    def __init__(self, file: str, start: int, stop: int, reason: str) -> None:
        self.file, self.start, self.stop, self.reason = file, start, stop, reason
        super().__init__(f"offsets [{start}, {stop}) cannot be served: {file} {reason}; restore it and open again")


class CorruptCursorsError(CorruptError):
    """The cursor file is damaged or cannot be read."""

    def __init__(self, file: str, reason: str) -> None:
        self.file, self.reason = file, reason
        super().__init__(
            f"{file} holds the subscriptions' progress and cannot be used: {reason}; nothing was changed, restore it "
            "from a copy, or remove it to let every subscription start anew"
        )


class UnknownFormatError(CorruptError):
    """A frame written by a newer release."""

    def __init__(self, file: str, byte: int, kind: int, version: int) -> None:
        self.file, self.byte, self.kind, self.version = file, byte, kind, version
        super().__init__(
            f"{file} has a frame of kind {kind}, version {version} at byte {byte}, which this release cannot read; "
            "use the release that wrote it"
        )


class CorruptObjectError(CorruptError):
    """An object's bytes differ from those that were put."""

    def __init__(self, key: str, byte: int, expected_offset: int, reason: str) -> None:
        self.key, self.byte, self.expected_offset, self.reason = key, byte, expected_offset, reason
        place = f" at byte {byte}" if byte >= 0 else ""
        offset = f", where offset {expected_offset} should be" if expected_offset >= 0 else ""
        super().__init__(f"object {key} is damaged{place}{offset}: {reason}; restore it from a copy")


class MissingObjectError(CorruptError):
    """A described object does not exist."""

    def __init__(self, key: str, store: str) -> None:
        self.key, self.store = key, store
        super().__init__(f"object {key} is missing from {store}; restore it from a copy")


class MissingOffsetsError(CorruptError):
    """Offsets that must exist are in no tier."""

    def __init__(self, start: int, stop: int, reason: str = "neither the log nor an object has them") -> None:
        self.start, self.stop, self.reason = start, stop, reason
        super().__init__(
            f"offsets [{start}, {stop}) are missing: {reason}; restore the log or the objects from a copy, and if the "
            "metadata was lost, run `ister objects rebuild`"
        )


class ForeignObjectError(CorruptError):
    """An object of this topic's name has other messages than the log."""

    def __init__(self, key: str, reason: str) -> None:
        self.key, self.reason = key, reason
        super().__init__(
            f"object {key} is not a copy of this log: {reason}; nothing was changed and nothing more is uploaded: "
            "see whether another cluster uses this bucket, or move that object away"
        )


class CorruptMetadataError(CorruptError):
    """A value in the metadata store is not valid."""

    def __init__(self, key: str, reason: str) -> None:
        self.key, self.reason = key, reason
        super().__init__(f"metadata key {key} cannot be used: {reason}; restore it from a copy of the metadata")


# --- UnknownOutcomeError ----------------------------------------------------------------------------------------------


class WriteFailedError(UnknownOutcomeError):
    """A write failed in a way that leaves the end of the file unknown."""

    def __init__(self, log: str, cause: str) -> None:
        self.log, self.cause = log, cause
        super().__init__(
            f"log {log} could not be written ({cause}): these messages are not acknowledged and may or may not be there "
            "after the log is opened again"
        )


class SyncFailedError(UnknownOutcomeError):
    """The disk refused to sync; the message is written but may not survive."""

    def __init__(self, log: str, cause: str) -> None:
        self.log, self.cause = log, cause
        super().__init__(
            f"log {log} could not be synced ({cause}): these messages are not acknowledged and may or may not be there "
            "after the log is opened again; it is not retried, because a second sync would lie"
        )


class LevelNotReachedError(UnknownOutcomeError):
    """Messages are stored in the log, and have not reached the topic's level yet: do not send them again."""

    level: str
    """The level that is still to come, as in the policy ack_level."""

    def __init__(self, topic: str, offset: int, text: str) -> None:
        self.topic, self.offset = topic, offset
        """Every message below this offset is in the log."""
        super().__init__(text)


class Behind(NamedTuple):
    """Messages [start, stop) of a topic that are in the log only."""

    topic: str
    start: int
    stop: int


LATER_TIERS = {
    "cloud": ("an object", "they are uploaded once that is mended"),
    "lake": ("the table", "they are committed once the pipeline gets to them"),
}
"""The tier that a level waits for, and what brings messages there."""


class NotYetInTierError(LevelNotReachedError):
    """Messages are in the log and synced, and not yet in the later tier that their topic's level waits for."""

    def __init__(self, level: str, behind: Sequence[Behind], cause: str) -> None:
        self.level = level
        self.behind = tuple(behind)
        self.cause = cause
        self.tier, then = LATER_TIERS[level]
        ranges = "; ".join(f"topic {topic}: messages [{start}, {stop})" for topic, start, stop in behind)
        super().__init__(
            behind[0].topic,
            behind[0].stop,
            f"{ranges} are in the log and synced, but not yet in {self.tier} ({cause}); do not send them again, {then}",
        )


class CursorsNotSavedError(UnknownOutcomeError):
    """The cursor file could not be written."""

    def __init__(self, file: str, cause: str) -> None:
        self.file, self.cause = file, cause
        super().__init__(
            f"{file} could not be saved ({cause}): this progress may or may not be there after a restart; "
            "acknowledge again once the disk is well"
        )


class PutUnknownError(UnknownOutcomeError):
    """An object may or may not have been stored."""

    def __init__(self, store: str, key: str, cause: str) -> None:
        self.store, self.key, self.cause = store, key, cause
        super().__init__(f"{store} did not say whether it stored {key} ({cause}); look before putting it again")


class MetadataUnknownError(UnknownOutcomeError):
    """A change of metadata may or may not have happened."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store, self.action, self.cause = store, action, cause
        super().__init__(f"metadata in {store} may or may not have done this: {action} ({cause}); look before acting")
