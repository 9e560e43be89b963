"""Drive a reliable subscription: read ahead from the log, let core/dispatch decide, carry out what it says.

Everything happens on the event loop in `_settle`, which no producer ever waits for. A subscription without a connected
consumer has no task, no reader and no timer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from ister.broker.letters import LetterUnknownError
from ister.broker.stream import Consumer, Stream, tell_promoted
from ister.core.delivery_id import DeliveryId
from ister.core.dispatch import Dispatch, SubscriptionType
from ister.core.errors import BusyError, IsterError, LogClosedError, OffsetOutOfRangeError
from ister.core.failure import FailurePolicy
from ister.core.rate import TokenBucket
from ister.core.retry import backoff_s, is_transient
from ister.storage.persistent import ReadsAhead, SkipsMissing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ister.broker.records import SubscriptionRecord
    from ister.core.dispatch import DeadLetter
    from ister.core.message import StreamMessage
    from ister.storage.persistent import Reader

log = structlog.get_logger()

FINISHED_RANGES_MAX = 10_000
"""How many ranges are saved of what is finished beyond a cursor: about 200 KB. What lies beyond comes again after a stop."""
RETRY_S = 1.0
RETRY_MAX_S = 30.0
"""How long a read that failed is left alone, the first time and at most."""
SKIPPED_LOG_S = 60.0
"""How often at most it is logged that messages are skipped."""
LETTER_CAUSES_MAX = 16
"""How many causes for which dead letters wait are logged, until one is stored."""


class Home(Protocol):
    """What a subscription asks of its topic."""

    text: str

    @property
    def generation(self) -> int:
        """What tells it from a deleted topic of its name."""
        ...

    @property
    def recovered_offset(self) -> int:
        """Where it ended when this process opened it: messages below may have been delivered before."""
        ...

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        ...

    async def read_from(self, offset: int) -> Reader:
        """Read from an offset on."""
        ...

    def wall_us(self) -> int:
        """Return the wall-clock time in microseconds."""
        ...

    def cursor_moved(self) -> None:
        """Take note that progress is to be saved."""
        ...

    async def store_dead_letter(
        self, subscription: str, letter: DeadLetter, policy: FailurePolicy, doubt: LetterUnknownError | None
    ) -> None:
        """Publish a copy of a message that nobody could consume; `doubt` is what an earlier try ended with."""
        ...


class ReliableSubscription:
    """A subscription of a reliable topic."""

    def __init__(
        self,
        home: Home,
        name: str,
        record: SubscriptionRecord,
        cursor: int,
        *,
        window: int,
        grace_s: float,
        rate: int,
        finished: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.name = name
        self.record = record
        self.consumers: dict[str, Consumer] = {}
        self.delivered = self.delivered_bytes = self.acked = self.nacked = self.dead_lettered = 0
        self.problem: IsterError | None = None
        """Why messages could not be read the last time; None once they could."""
        self._home = home
        self._window = window
        self._grace_s = grace_s
        self._loop = asyncio.get_running_loop()
        self._by_id: dict[int, Consumer] = {}
        self._leading: Consumer | None = None
        self._ahead: list[StreamMessage] = []
        self._ahead_at = 0
        self._hungry: asyncio.Future[None] | None = None
        self._blocked = False
        self._skipped = 0
        self._log_skipped_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._letters: set[asyncio.Task[None]] = set()
        self._letter_doubts: dict[int, LetterUnknownError] = {}
        """By offset: the tries to store a dead letter that ended without a known outcome."""
        self._letter_causes: set[str] = set()
        """Why dead letters could not be stored, as far as it is logged; emptied when one is stored."""
        self._alarm: asyncio.TimerHandle | None = None
        self._rate = TokenBucket(rate, self._loop.time())
        self._replay = 0
        """When the cursor was last reset, 0 if never since the start: an answer to an earlier delivery means nothing."""
        self._failures = 0
        """How often in a row messages could not be read."""
        self._resume_at = 0.0
        """When reading may begin; later than now after a bug, and after an error that ended the streams."""
        self._dispatch = Dispatch(
            record.kind, cursor, window=record.window or window, policy=record.failure_policy or FailurePolicy(),
            grace_s=grace_s, finished=finished,
        )  # fmt: skip

    # --- where it stands ----------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """Everything below is acknowledged or skipped."""
        return self._dispatch.cursor

    @property
    def finished(self) -> tuple[tuple[int, int], ...]:
        """Ranges beyond the cursor that are acknowledged or skipped, the lowest `FINISHED_RANGES_MAX`: to be saved at a stop."""
        return tuple(self._dispatch.finished[:FINISHED_RANGES_MAX])

    @property
    def dispatch(self) -> Dispatch:
        """What decides."""
        return self._dispatch

    @property
    def dropped(self) -> int:
        """How many messages were given up by poison policy."""
        return self._dispatch.dropped

    @property
    def reliable(self) -> ReliableSubscription:
        """Itself: its topic is reliable."""
        return self

    def connected(self) -> int:
        """Return how many consumers have a stream."""
        return sum(consumer.stream is not None for consumer in self.consumers.values())

    def live(self, now: float) -> list[Consumer]:
        """Return the consumers that have a stream, or had one a moment ago."""
        return [consumer for consumer in self.consumers.values() if consumer.is_live(now, self._grace_s)]

    # --- consumers ----------------------------------------------------------------------------------------------------

    def join(self, number: int, name: str, filters: tuple[str, ...]) -> Consumer:
        """Make a consumer known; one that is known already takes over from itself: its stream ends, its messages are due."""
        now = self._loop.time()
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = self.consumers[name] = self._by_id[number] = Consumer(number, name, filters, now)
        else:
            self._drop_stream(consumer, now)
            consumer.renew(filters, now)
        self._dispatch.join(number, filters, now)
        self._settle()
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Forget a consumer."""
        now = self._loop.time()
        self._drop_stream(consumer, now)
        del self.consumers[consumer.name]
        del self._by_id[consumer.id]
        self._dispatch.leave(consumer.id, now)
        self._settle()

    def open_stream(self, consumer: Consumer) -> Stream:
        """Begin to deliver; an earlier stream of the same consumer ends."""
        if self.problem is not None and self._reading is None and self._loop.time() < self._resume_at:
            raise self.problem
        if consumer.stream is not None:
            consumer.stream.end()  # and no more: the consumer has not left, so an active one stays so
        consumer.stream = Stream()
        self._dispatch.connect(consumer.id, self._loop.time())
        self._tell_promoted()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        self._settle()
        return consumer.stream

    def close_stream(self, consumer: Consumer, stream: Stream) -> None:
        """End a stream, unless another one has taken its place already."""
        if consumer.stream is stream:
            self._drop_stream(consumer, self._loop.time())
            self._settle()

    def _drop_stream(self, consumer: Consumer, now: float) -> None:
        stream, consumer.stream = consumer.stream, None
        if stream is None:
            return
        consumer.left_at = now
        stream.end()
        self._dispatch.disconnect(consumer.id, now)
        self._tell_promoted()
        if not self.connected():
            self._rest()

    def _tell_promoted(self) -> None:
        if self.record.kind is SubscriptionType.FAILOVER:
            active = self._dispatch.active
            now = None if active is None else self._by_id[active]
            self._leading = tell_promoted(self._home.text, self.name, self._leading, now)

    @property
    def delivery_id(self) -> DeliveryId:
        """What messages carry that are delivered now."""
        return DeliveryId(self._home.generation, self._replay)

    def wants(self, message: StreamMessage, number: int) -> bool:
        """Whether a message of a stream's outbox is still to be sent to its consumer."""
        return self._dispatch.wants(message.msg_id.topic_offset, number)

    def sent(self, consumer: Consumer, stream: Stream, offset: int, number: int) -> None:
        """Take note that a consumer's connection has taken a message: the time for its answer begins.

        A stream that another has replaced says nothing of what the consumer has now.
        """
        if consumer.stream is stream and self._dispatch.sent(consumer.id, offset, number, self._loop.time()):
            self._loop.call_soon(self._go_on)  # not here: whoever calls is writing to a connection

    # --- what consumers and operators say -----------------------------------------------------------------------------

    def ack(self, offset: int, delivery: DeliveryId | None) -> None:
        """Take an acknowledgement; one that is not expected changes nothing."""
        if not self._concerns(offset, delivery):
            return
        before = self._dispatch.cursor
        if self._dispatch.ack(offset, self._loop.time()):
            self.acked += 1
            if self._dispatch.cursor != before:
                self._home.cursor_moved()
            self._settle()

    def nack(self, offset: int, delay_ms: int, reason: str, delivery: DeliveryId | None) -> None:
        """Take a negative acknowledgement."""
        if not self._concerns(offset, delivery):
            return
        if self._dispatch.nack(offset, delay_ms, reason, self._loop.time()):
            self.nacked += 1
            self._settle()

    def _concerns(self, offset: int, delivery: DeliveryId | None) -> bool:
        """Return True if an answer is about this topic, not a deleted one of the same name, and since the last reset.

        Without a delivery id it comes from a client that does not echo it, or was delivered by an older release: then it
        counts for what was delivered here, or may have been delivered before this process began.
        """
        if delivery is not None:
            return delivery.generation == self._home.generation and delivery.replay >= self._replay
        return offset < self._home.recovered_offset or self._dispatch.was_handed_out(offset)

    def configure(self, record: SubscriptionRecord) -> None:
        """Apply another window or failure policy at once."""
        now = self._loop.time()
        before, self.record = self.record, record
        if record.window != before.window:
            self._dispatch.configure(record.window or self._window, now)
        if record.failure_policy is not None and record.failure_policy != before.failure_policy:
            self._letter_causes.clear()
            self._dispatch.set_policy(record.failure_policy, now)
        self._settle()

    def set_rate(self, rate: int) -> None:
        """Deliver at most so many messages a second; 0: as many as are taken."""
        if rate != self._rate.rate:
            self._rate = TokenBucket(rate, self._loop.time())
            self._settle()

    def start_anew(self, cursor: int) -> None:
        """Go on from another place: what is outstanding or acknowledged beyond it is forgotten, the consumers stay."""
        self._replay = self._home.wall_us()
        self._restart(cursor, ())

    def change_type(self, record: SubscriptionRecord) -> None:
        """Go on as another type: what is outstanding is handed out again, the consumers stay."""
        self.record = record
        self._restart(self._dispatch.cursor, self._dispatch.finished)

    def _restart(self, cursor: int, finished: Sequence[tuple[int, int]]) -> None:
        self._rest()
        self.problem = None
        self._failures, self._resume_at = 0, 0.0
        self._dispatch.restart(self.record.kind, cursor, self._loop.time(), finished=finished)
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.outbox.clear()
        self._tell_promoted()
        if self.connected():
            self._reading = asyncio.create_task(self._read())
        self._home.cursor_moved()
        self._settle()

    def close(self, failure: IsterError | None = None) -> None:
        """End every stream and stop; nothing more is delivered."""
        self._rest()
        self._end_streams(failure)
        for task in self._letters:
            task.cancel()

    def _end_streams(self, failure: IsterError | None) -> None:
        now = self._loop.time()
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.end(failure)
                consumer.stream = None
                consumer.left_at = now
                self._dispatch.disconnect(consumer.id, now)

    def _rest(self) -> None:
        """Stop reading: nobody listens."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._hungry = None
        self._ahead = []
        self._ahead_at = 0

    # --- inside -------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Carry out what was decided, feed what was read ahead, ask for more, and set the alarm."""
        dispatch = self._dispatch
        while True:
            deliveries = dispatch.take()
            if deliveries:
                self.delivered += len(deliveries)
                by_id = self._by_id
                for consumer, message, _, number in deliveries:
                    stream = by_id[consumer].stream
                    assert stream is not None, "deliveries go to connected consumers"
                    stream.push(message, number)
                    self.delivered_bytes += len(message.payload)
            room = dispatch.room
            if self._ahead_at == len(self._ahead) or not room or self._reading is None:
                break
            now = self._loop.time()
            room = self._rate.grant(min(room, len(self._ahead) - self._ahead_at), now)
            if not room:
                self._alarm_at(self._rate.next_at())
                break
            fed = self._ahead[self._ahead_at : self._ahead_at + room]
            self._ahead_at += len(fed)
            before = dispatch.cursor
            dispatch.feed(fed, now)
            if dispatch.cursor != before:
                self._home.cursor_moved()
        if room and self._hungry is not None and not self._hungry.done():
            self._hungry.set_result(None)
        self._start_letters(dispatch.take_dead_letters())
        if dispatch.blocked != self._blocked:
            self._tell_blocked(dispatch)
        if dispatch.skipped != self._skipped:
            self._log_skipped(dispatch)
        due = dispatch.due
        if due is not None and self._reading is not None:
            self._alarm_at(due)

    def _log_skipped(self, dispatch: Dispatch) -> None:
        """Log that messages are skipped, which no filter takes; not each time, and with how many so far."""
        before, self._skipped = self._skipped, dispatch.skipped
        now = self._loop.time()
        if dispatch.skipped > before and now >= self._log_skipped_at:
            self._log_skipped_at = now + SKIPPED_LOG_S
            log.warning("messages_skipped", topic=self._home.text, subscription=self.name, count=dispatch.skipped)

    def _tell_blocked(self, dispatch: Dispatch) -> None:
        self._blocked = dispatch.blocked
        place = {"topic": self._home.text, "subscription": self.name, "cursor": dispatch.cursor}
        if self._blocked:
            log.warning("subscription_blocked", **place)
        else:
            log.info("subscription_unblocked", **place)

    def _alarm_at(self, when: float) -> None:
        if self._alarm is not None:
            if self._alarm.when() <= when:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._go_on()

    def _go_on(self) -> None:
        try:
            before = self._dispatch.cursor
            self._dispatch.tick(self._loop.time())
            if self._dispatch.cursor != before:
                self._home.cursor_moved()
            self._settle()
        except Exception:  # the root of a timer
            log.exception("reading_failed", topic=self._home.text, subscription=self.name)
            self._start_over()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Keep a piece of the log at hand, as long as someone listens."""
        try:
            await asyncio.sleep(max(0.0, self._resume_at - self._loop.time()))
            await self._keep_reading()
        except Exception:  # the root of a task: whoever waits for it would wait for ever
            log.exception("reading_failed", topic=self._home.text, subscription=self.name)
            self._reading = None  # it is this task, which ends by itself
            self._start_over()

    async def _keep_reading(self) -> None:
        dispatch = self._dispatch
        while True:
            try:
                if dispatch.cursor > dispatch.next_offset:  # what lies between was finished before the last stop
                    dispatch.skip_missing(dispatch.cursor, self._loop.time())
                reader = await self._home.read_from(dispatch.next_offset)
                try:
                    await self._read_on(reader)
                finally:
                    if isinstance(reader, ReadsAhead):
                        await reader.close()
            except OffsetOutOfRangeError as error:
                start = self._home.start_offset
                if start <= dispatch.next_offset:
                    self._fail(error)
                    return
                count = start - dispatch.next_offset + dispatch.unacked + dispatch.waiting
                log.warning("messages_expired", topic=self._home.text, subscription=self.name,
                            start=dispatch.cursor, stop=start, count=count)  # fmt: skip
                dispatch.skip_to(start, self._loop.time())
                self._home.cursor_moved()
                self._settle()
            except LogClosedError:
                return
            except IsterError as error:
                if not (isinstance(error, BusyError) or is_transient(error)):
                    self._fail(error)
                    return
                log.warning("reading_waits", topic=self._home.text, subscription=self.name, cause=str(error))
                await asyncio.sleep(self._failed(error))

    def _failed(self, error: IsterError) -> float:
        """Take note that messages could not be read; return how long to wait before the next attempt."""
        self.problem = error
        self._failures += 1
        return backoff_s(self._failures, RETRY_MAX_S, RETRY_S)

    def _fail(self, error: IsterError) -> None:
        """End every stream with an error that only a person can mend; whoever comes later lets reading be tried again."""
        log.error("reading_stopped", topic=self._home.text, subscription=self.name, cause=str(error))
        self._reading = None  # it is this task, which ends by itself
        self._rest()
        self._resume_at = self._loop.time() + self._failed(error)
        self._end_streams(error)

    def _start_over(self) -> None:
        """End every stream after a bug, and forget what was decided: whoever comes again begins anew at the cursor.

        Clients come again at once, so reading waits a moment: a bug that stays must not fill the log.
        """
        self._rest()
        now = self._loop.time()
        self._resume_at = now + RETRY_S
        dispatch = self._dispatch
        dispatch.restart(dispatch.kind, dispatch.cursor, now, finished=dispatch.finished)
        self._end_streams(BusyError("a bug in the broker, whose log says more, has ended this; subscribe again"))

    async def _read_on(self, reader: Reader) -> None:
        dispatch = self._dispatch
        skipping = reader if isinstance(reader, SkipsMissing) else None  # asked once: a check of a protocol is slow
        while True:
            if self._ahead_at < len(self._ahead) or not dispatch.room:
                self._hungry = self._loop.create_future()
                await self._hungry
                self._hungry = None
                continue
            self._ahead = await reader.read()
            self._ahead_at = 0
            self._read_succeeded()
            if skipping is not None:
                self._skip_missing(dispatch, skipping.skipped_upto)
            self._settle()

    def _skip_missing(self, dispatch: Dispatch, skipped_upto: int) -> None:
        """Finish the offsets in front of what was just read, if the reader skipped them because they are missing."""
        start, stop = dispatch.next_offset, self._ahead[0].offset if self._ahead else 0
        if start < stop <= skipped_upto:
            log.error("missing_messages_skipped", topic=self._home.text, subscription=self.name, start=start, stop=stop)
            dispatch.skip_missing(stop, self._loop.time())
            self._home.cursor_moved()

    def _read_succeeded(self) -> None:
        self._failures = 0
        if self.problem is not None:
            self.problem = None
            log.info("reading_resumed", topic=self._home.text, subscription=self.name)

    # --- dead letters -------------------------------------------------------------------------------------------------

    def _start_letters(self, letters: Iterable[DeadLetter]) -> None:
        for letter in letters:
            task = asyncio.create_task(self._store_letter(letter))
            self._letters.add(task)
            task.add_done_callback(self._letters.discard)

    async def _store_letter(self, letter: DeadLetter) -> None:
        try:
            await self._try_letter(letter)
        except Exception:  # the root of a task: its message would wait for ever
            log.exception(
                "dead_letter_failed", topic=self._home.text, subscription=self.name, offset=letter.message.offset
            )
            self._start_over()

    async def _try_letter(self, letter: DeadLetter) -> None:
        policy = self.record.failure_policy
        assert policy is not None, "only a policy makes dead letters"
        offset = letter.message.offset
        try:
            await self._home.store_dead_letter(self.name, letter, policy, self._letter_doubts.get(offset))
        except IsterError as error:
            if isinstance(error, LetterUnknownError):
                self._letter_doubts[offset] = error
            self._log_letter_cause(offset, str(error))
            self._dispatch.dead_letter_failed(offset, self._loop.time(), letter.number)
        else:
            self.dead_lettered += 1
            self._letter_causes.clear()
            self._letter_doubts.pop(offset, None)
            self._dispatch.dead_letter_stored(offset, self._loop.time(), letter.number)
            self._home.cursor_moved()
        self._settle()

    def _log_letter_cause(self, offset: int, cause: str) -> None:
        """Log once why dead letters wait: there may be ten thousand, and each is tried again for as long as it lasts."""
        if cause not in self._letter_causes and len(self._letter_causes) < LETTER_CAUSES_MAX:
            self._letter_causes.add(cause)
            log.warning("dead_letter_waits", topic=self._home.text, subscription=self.name, offset=offset,
                        cause=cause)  # fmt: skip
