"""One ordered stream over a topic's tiers: objects for what is old, the log for what is new, decided again when needed.

A reader is an offset. Where that offset is, is asked each time the tier at hand ends or cannot serve it: retention may
have moved the log's start meanwhile, or a file of the log may be damaged while objects have the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from ister.core.errors import CorruptLogError, IsterError, LogClosedError, MissingFileError, OffsetOutOfRangeError
from ister.core.handoff import NOTHING, Serve, Span, Tier, serve
from ister.core.offsets import StartPosition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.cloud import CloudReader, ObjectStream, Uploader
    from ister.core.message import StreamMessage
    from ister.wal.config import WalConfig
    from ister.wal.directory import Segment

log = structlog.get_logger()

CLOUD_TIMEOUT_S = 30.0


@dataclass(slots=True)
class ObjectTier:
    """A topic's objects; without an uploader they are what they were when the topic was opened.

    `known` is what was described then. `timeout_s` is how long an append at level cloud waits.
    """

    reader: CloudReader
    uploader: Uploader | None
    known: Span
    timeout_s: float = CLOUD_TIMEOUT_S

    @property
    def span(self) -> Span:
        """The offsets that objects hold."""
        if self.uploader is None:
            return self.known
        return Span(self.known.start, max(self.known.stop, self.uploader.uploaded.value))


class LogReader(Protocol):
    """Reads a log's messages in order."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read from the log next."""
        ...

    async def read(self) -> list[StreamMessage]:
        """Return the next messages; none only where a log that was looked at ends."""
        ...


class TierLog(Protocol):
    """What is asked of the log in front of objects; a Wal, which goes on, or a LogView, which ends."""

    @property
    def config(self) -> WalConfig:
        """Its settings; errors name it by them."""
        ...

    @property
    def start_offset(self) -> int:
        """The oldest offset that it holds."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset behind its last message."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the file that holds an offset, and the offset at which its messages end."""
        ...

    def create_reader(self, position: StartPosition) -> LogReader:
        """Read from a position on."""
        ...


class TieredReader:
    """An ordered stream of messages; `async for message in reader`, or `await reader.read()` for a batch.

    It waits at the end of a log that goes on, and ends where one that was only looked at ends.
    """

    def __init__(self, wal: TierLog, objects: ObjectTier, position: StartPosition) -> None:
        if wal.closed:
            raise LogClosedError(wal.config.name)
        self._wal = wal
        self._objects = objects
        self._next: int = wal.next_offset if position.at is None else position.at
        self._ready: Iterator[StreamMessage] = iter(())
        self._from_log: LogReader | None = None
        self._from_objects: ObjectStream | None = None
        self._unreadable = NOTHING
        self._decide()  # an offset that nobody holds is told now

    @property
    def next_offset(self) -> int:
        """The offset that will be read next; what was read already may still be in the buffer."""
        return self._next

    def __aiter__(self) -> TieredReader:
        return self

    async def __anext__(self) -> StreamMessage:
        for message in self._ready:
            return message
        self._ready = iter(await self._read())
        for message in self._ready:
            return message
        raise StopAsyncIteration

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one; waits at the end of the log, or gives none where it ends."""
        return list(self._ready) or await self._read()

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._from_objects is not None:
            await self._from_objects.close()
            self._from_objects = None

    async def _read(self) -> list[StreamMessage]:
        while True:
            if self._from_objects is None and self._from_log is None:
                self._turn(self._decide())
            if self._from_objects is not None:
                messages = await self._read_objects(self._from_objects)
                if not messages:
                    await self.close()
            else:
                messages = await self._read_log()
            if messages or self._from_log is not None:
                return messages

    async def _read_objects(self, stream: ObjectStream) -> list[StreamMessage]:
        failure: IsterError | None = None
        messages: list[StreamMessage] = []
        try:
            messages = await stream.read()
        except IsterError as error:
            failure = error
        if self._wal.closed:
            # Of a topic that was deleted meanwhile, missing objects are no damage.
            raise LogClosedError(self._wal.config.name) from failure
        if failure is not None:
            await self.close()  # so that the next call asks again, once the store is back
            raise failure
        self._next = stream.next_offset
        return messages

    async def _read_log(self) -> list[StreamMessage]:
        reader = self._from_log
        assert reader is not None, "the tier was decided"
        try:
            messages = await reader.read()
        except OffsetOutOfRangeError:
            # Retention has taken it from the log; it did so only because objects have it.
            self._from_log = None
            self._decide()
            return []
        except (CorruptLogError, MissingFileError) as error:
            self._from_log = None
            self._avoid(error)
            return []
        self._next = reader.next_offset
        return messages

    def _decide(self) -> Serve:
        wal = self._wal
        return serve(
            self._next,
            Span(wal.start_offset, wal.next_offset),
            self._objects.span,
            unreadable=self._unreadable,
        )

    def _turn(self, to: Serve) -> None:
        if to.tier is Tier.LOG:
            self._from_log = self._wal.create_reader(StartPosition.offset(self._next))
        else:
            if self._wal.closed:
                raise LogClosedError(self._wal.config.name)
            self._from_objects = self._objects.reader.open(self._next, to.stop)

    def _avoid(self, error: IsterError) -> None:
        """Read the rest of a damaged file from objects, if they have it; else the damage is told."""
        found = self._wal.locate(self._next)
        if found is None or self._next not in self._objects.span:
            raise error
        _, stop = found
        self._unreadable = Span(self._next, min(stop, self._objects.span.stop))
        log.error("log_damaged", log=self._wal.config.name, start=self._next, stop=stop, cause=str(error))
