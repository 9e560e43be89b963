"""Every error Ister raises: whose fault it is, and what to do now.

Five families, one per answer to "what now?". Fields are named so that a program can act on them; the text is for people.
"""

from __future__ import annotations


class IsterError(Exception):
    """The root of the tree; catch a family instead."""


class ClientError(IsterError):
    """The request is wrong; sending it again cannot help."""


class BusyError(IsterError):
    """Not now; the same request may succeed later."""


class FencedError(IsterError):
    """Someone else owns this; stop."""


class CorruptError(IsterError):
    """Stored data is damaged or missing; stop and call a human."""


class UnknownOutcomeError(IsterError):
    """It may or may not have happened; look before acting again."""


# --- ClientError ------------------------------------------------------------------------------------------------------


class InvalidRequestError(ClientError):
    """A request with a field that is missing, malformed or out of its bounds."""


class NotFoundError(ClientError):
    """What was asked for does not exist."""


class AlreadyExistsError(ClientError):
    """What was to be made exists, or excludes what exists."""


class PreconditionError(ClientError):
    """The request contradicts what is there; something else must change first."""


class DeniedError(ClientError):
    """The request is understood and refused."""


class UnknownPlaceError(ClientError):
    """An acknowledgement for a topic or subscription that does not exist; the protocol has its own status for that."""


class UnsupportedError(ClientError):
    """Something that the protocol has and the broker does not offer."""


class InvalidNameError(ClientError):
    """A topic name that is not `/namespace/topic`."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(
            f"invalid topic name {name[:80]!r}: {reason}; expected /namespace/topic made of letters, digits, '_' and '-'"
        )


class InvalidMessageError(ClientError):
    """A message that cannot be stored as it is."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"invalid message: {field} {reason}")


class InvalidConfigError(ClientError):
    """A setting that contradicts itself or its bounds."""

    def __init__(self, setting: str, reason: str) -> None:
        self.setting = setting
        self.reason = reason
        super().__init__(f"invalid setting {setting}: {reason}")


class OffsetOutOfRangeError(ClientError):
    """A reader asked for an offset that this log does not hold."""

    def __init__(self, requested: int, start: int, stop: int) -> None:
        self.requested = requested
        self.start = start
        self.stop = stop
        super().__init__(f"offset {requested} is outside this log: it holds [{start}, {stop})")


class LogClosedError(ClientError):
    """The log was closed; open it again to go on."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(f"log {log} is closed")


class UnknownTopicError(ClientError):
    """No such topic."""

    def __init__(self, topic: str, where: str) -> None:
        self.topic = topic
        self.where = where
        super().__init__(f"there is no topic {topic} in {where}; `ister topics` lists what there is")


class StoreRefusedError(ClientError):
    """The object store says no: wrong credentials, no such bucket, a setting it does not take."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store = store
        self.action = action
        self.cause = cause
        super().__init__(f"{store} refused to {action}: {cause}; check wal_cloud.cloud in the configuration")


class WatchCompactedError(ClientError):
    """The store does not remember changes that old; list again, and watch from there."""

    def __init__(self, store: str, after: int) -> None:
        self.store = store
        self.after = after
        super().__init__(f"{store} does not remember the changes behind version {after} any more; list again")


# --- BusyError --------------------------------------------------------------------------------------------------------


class DiskFullError(BusyError):
    """No room for these messages; none of them was stored."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(f"no space left for log {log}: nothing was stored; free space and send again, reads go on")


class PoisonedError(BusyError):
    """A write or a sync failed earlier; the log takes nothing more until it is opened again."""

    def __init__(self, log: str, cause: str) -> None:
        self.log = log
        self.cause = cause
        super().__init__(
            f"log {log} takes no more messages: {cause}; check the disk, then open the log again "
            "(opening copies every message that was not yet synced to a new file)"
        )


class ResourceExhaustedError(BusyError):
    """The process or the machine has run out of file descriptors, memory or threads; no stored data is damaged."""

    def __init__(self, action: str, cause: str) -> None:
        self.action = action
        self.cause = cause
        super().__init__(
            f"could not {action} ({cause}): the process or the machine is out of file descriptors or memory; no stored "
            "data is damaged, try again later, and raise the limit (ulimit -n) if this happens often"
        )


class StoreUnavailableError(BusyError):
    """The object store cannot be reached, or does not answer; nothing was changed."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store = store
        self.action = action
        self.cause = cause
        super().__init__(f"{store} could not {action}: {cause}; nothing was changed, try again later")


class MetadataUnavailableError(BusyError):
    """The metadata store cannot be reached, or does not answer; nothing was changed."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store = store
        self.action = action
        self.cause = cause
        super().__init__(f"metadata in {store} could not {action}: {cause}; nothing was changed, try again")


class LimitError(BusyError):
    """A limit that was set is reached."""


class DrainingError(BusyError):
    """The broker is stopping, or the topic is being closed; look it up again."""


# --- FencedError ------------------------------------------------------------------------------------------------------


class LockedError(FencedError):
    """Another process owns this directory."""

    def __init__(self, directory: str, holder: str) -> None:
        self.directory = directory
        self.holder = holder
        super().__init__(f"directory {directory} is owned by {holder}; one log has one writer")


class ObjectExistsError(FencedError):
    """There is an object of that name already."""

    def __init__(self, store: str, key: str) -> None:
        self.store = store
        self.key = key
        super().__init__(f"{store} has an object {key} already; objects are never replaced")


class LeaseLostError(FencedError):
    """The lease ended; someone else may own what it stood for."""

    def __init__(self, store: str) -> None:
        self.store = store
        super().__init__(f"the lease in {store} is lost; another process may be the owner now")


# --- CorruptError -----------------------------------------------------------------------------------------------------


class CorruptLogError(CorruptError):
    """Damage in bytes that were synced: not a torn tail, but loss."""

    def __init__(self, file: str, byte: int, expected_offset: int, reason: str) -> None:
        self.file = file
        self.byte = byte
        self.expected_offset = expected_offset
        self.reason = reason
        super().__init__(
            f"{file} is corrupt at byte {byte}, where offset {expected_offset} should be: {reason}; "
            "nothing was changed, restore this file from a copy"
        )


class MissingFileError(CorruptError):
    """A log file between two others is gone or cannot be read."""

    def __init__(self, file: str, start: int, stop: int, reason: str) -> None:
        self.file = file
        self.start = start
        self.stop = stop
        self.reason = reason
        super().__init__(f"offsets [{start}, {stop}) cannot be served: {file} {reason}; restore it and open again")


class CorruptCursorsError(CorruptError):
    """The file with the subscriptions' progress is damaged or cannot be read."""

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(
            f"{file} holds the subscriptions' progress and cannot be used: {reason}; nothing was changed, restore it "
            "from a copy, or remove it to let every subscription start anew"
        )


class UnknownFormatError(CorruptError):
    """A frame written by a newer release."""

    def __init__(self, file: str, byte: int, kind: int, version: int) -> None:
        self.file = file
        self.byte = byte
        self.kind = kind
        self.version = version
        super().__init__(
            f"{file} has a frame of kind {kind}, version {version} at byte {byte}, which this release cannot read; "
            "use the release that wrote it"
        )


class CorruptObjectError(CorruptError):
    """An object's bytes are not those that were put."""

    def __init__(self, key: str, byte: int, expected_offset: int, reason: str) -> None:
        self.key = key
        self.byte = byte
        self.expected_offset = expected_offset
        self.reason = reason
        place = f" at byte {byte}" if byte >= 0 else ""
        offset = f", where offset {expected_offset} should be" if expected_offset >= 0 else ""
        super().__init__(f"object {key} is damaged{place}{offset}: {reason}; restore it from a copy")


class MissingObjectError(CorruptError):
    """An object that is described is not there."""

    def __init__(self, key: str, store: str) -> None:
        self.key = key
        self.store = store
        super().__init__(f"object {key} is missing from {store}; restore it from a copy")


class MissingSpanError(CorruptError):
    """Offsets that must exist are in no tier."""

    def __init__(self, start: int, stop: int, reason: str = "neither the log nor an object has them") -> None:
        self.start = start
        self.stop = stop
        self.reason = reason
        super().__init__(
            f"offsets [{start}, {stop}) are missing: {reason}; restore the log or the objects from a copy, and if the "
            "metadata was lost, run `ister objects rebuild`"
        )


class ForeignObjectError(CorruptError):
    """An object with one of our names holds other messages than the log."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(
            f"object {key} is not a copy of this log: {reason}; nothing was changed and nothing more is uploaded: "
            "see whether another cluster uses this bucket, or move that object away"
        )


class CorruptMetadataError(CorruptError):
    """A value in the metadata store is not what we write."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"metadata key {key} cannot be used: {reason}; restore it from a copy of the metadata")


# --- UnknownOutcomeError ----------------------------------------------------------------------------------------------


class WriteFailedError(UnknownOutcomeError):
    """A write failed in a way that leaves the end of the file unknown."""

    def __init__(self, log: str, cause: str) -> None:
        self.log = log
        self.cause = cause
        super().__init__(
            f"log {log} could not be written ({cause}): these messages are not acknowledged and may or may not be there "
            "after the log is opened again"
        )


class SyncFailedError(UnknownOutcomeError):
    """The disk refused to sync; the message is written but may not survive."""

    def __init__(self, log: str, cause: str) -> None:
        self.log = log
        self.cause = cause
        super().__init__(
            f"log {log} could not be synced ({cause}): these messages are not acknowledged and may or may not be there "
            "after the log is opened again; it is not retried, because a second sync would lie"
        )


class LevelNotReachedError(UnknownOutcomeError):
    """Messages are stored in the log, and have not reached the topic's level yet: do not send them again."""

    level: str
    """The level that is still to come, as in the policy ack_level."""

    def __init__(self, topic: str, offset: int, text: str) -> None:
        self.topic = topic
        self.offset = offset
        """Every message below this offset is in the log."""
        super().__init__(text)


class CursorsNotSavedError(UnknownOutcomeError):
    """The disk refused to save the subscriptions' progress."""

    def __init__(self, file: str, cause: str) -> None:
        self.file = file
        self.cause = cause
        super().__init__(
            f"{file} could not be saved ({cause}): this progress may or may not be there after a restart; "
            "acknowledge again once the disk is well"
        )


class PutUnknownError(UnknownOutcomeError):
    """An object may or may not have been stored."""

    def __init__(self, store: str, key: str, cause: str) -> None:
        self.store = store
        self.key = key
        self.cause = cause
        super().__init__(f"{store} did not say whether it stored {key} ({cause}); look before putting it again")


class MetadataUnknownError(UnknownOutcomeError):
    """A change of metadata may or may not have happened."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store = store
        self.action = action
        self.cause = cause
        super().__init__(f"metadata in {store} may or may not have done this: {action} ({cause}); look before acting")
