"""A reliable subscription: reads ahead from the log, feeds core/dispatch, and carries out its deliveries.

Everything happens on the event loop in `_settle`, which no producer waits for. A subscription without a connected
consumer has no task, no reader and no timer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ister.broker.topics.consumer import ConsumerSet
from ister.broker.topics.dead_letters import UnknownDeadLetterError
from ister.core.dispatch.delivery_id import DeliveryId
from ister.core.dispatch.dispatch import Dispatch, SubscriptionType
from ister.core.dispatch.failure import FailurePolicy
from ister.core.errors import BusyError, IsterError, LogClosedError, OffsetOutOfRangeError
from ister.core.rate import TokenBucket
from ister.core.retry import backoff_s, is_transient

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ister.broker.topics.consumer import Consumer, Stream
    from ister.broker.topics.records import SubscriptionRecord
    from ister.broker.topics.topic import Topic
    from ister.core.dispatch.dispatch import DeadLetter
    from ister.core.message import StreamMessage
    from ister.core.reader import Reader

log = structlog.get_logger()

FINISHED_RANGES_MAX = 10_000
"""How many finished ranges beyond a cursor are saved, about 200 KB; the rest is delivered again after a restart."""
RETRY_S = 1.0
RETRY_MAX_S = 30.0
"""Bounds of the back-off after a failed read."""
SKIPPED_LOG_S = 60.0
"""The shortest time between two logs of skipped messages."""
DEAD_LETTER_CAUSES_MAX = 16
"""How many causes of failed dead letters are logged until one is stored."""


class ReliableSubscription:
    """A subscription of a reliable topic."""

    def __init__(
        self,
        topic: Topic,
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
        self.consumers = ConsumerSet(topic.text, name, grace_s, self._disconnected)
        self.delivered = self.delivered_bytes = self.acked = self.nacked = self.dead_lettered = 0
        self.problem: IsterError | None = None
        """The error of the last read; None after a successful one."""
        self._topic = topic
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._ahead: list[StreamMessage] = []
        self._ahead_at = 0
        self._wants_more: asyncio.Future[None] | None = None
        self._blocked = False
        self._skipped = 0
        self._log_skipped_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._dead_letter_tasks: set[asyncio.Task[None]] = set()
        self._unknown_dead_letters: dict[int, UnknownDeadLetterError] = {}
        """By offset: attempts to store a dead letter with an unknown outcome."""
        self._dead_letter_causes: set[str] = set()
        """The logged causes of failed dead letters; cleared when one is stored."""
        self._timer: asyncio.TimerHandle | None = None
        self._rate = TokenBucket(rate, self._loop.time())
        self._replay = 0
        """When the cursor was last reset, 0 if not since the start: acknowledgements of earlier deliveries are ignored."""
        self._failures = 0
        """The number of failed reads in a row."""
        self._resume_at = 0.0
        """Earliest time of the next read; in the future as back-off after an error that ended the streams."""
        self.dispatch = Dispatch(
            record.kind, cursor, window=record.window or window, policy=record.failure_policy or FailurePolicy(),
            grace_s=grace_s, finished=finished,
        )  # fmt: skip

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """Everything below is acknowledged or skipped."""
        return self.dispatch.cursor

    @property
    def finished(self) -> tuple[tuple[int, int], ...]:
        """The lowest `FINISHED_RANGES_MAX` finished ranges beyond the cursor, to be saved at a stop."""
        return tuple(self.dispatch.finished[:FINISHED_RANGES_MAX])

    @property
    def dropped(self) -> int:
        """The number of messages dropped by the poison policy."""
        return self.dispatch.dropped

    @property
    def reliable(self) -> ReliableSubscription:
        """Itself: its topic is reliable."""
        return self

    def connected(self) -> int:
        """Return the number of consumers that have a stream."""
        return self.consumers.connected()

    def is_expired(self, now: float, expiry_s: float) -> bool:
        """Return False: a reliable subscription does not expire."""
        del now, expiry_s
        return False

    # --- consumers ----------------------------------------------------------------------------------------------------

    def join(self, number: int, name: str, filters: tuple[str, ...]) -> Consumer:
        """Add a consumer; the stream of one that is known already ends, and its messages are delivered again."""
        consumer = self.consumers.join(number, name, filters)
        self.dispatch.join(number, filters, self._loop.time())
        self._settle()
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self.consumers.leave(consumer)
        self.dispatch.leave(consumer.id, self._loop.time())
        self._settle()

    def open_stream(self, consumer: Consumer) -> Stream:
        """Open a stream; an earlier one of the same consumer ends."""
        if self.problem is not None and self._reading is None and self._loop.time() < self._resume_at:
            raise self.problem
        stream = self.consumers.open_stream(consumer)
        self.dispatch.connect(consumer.id, self._loop.time())
        self._update_active()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        self._settle()
        return stream

    def close_stream(self, consumer: Consumer, stream: Stream) -> None:
        """End a stream, unless another one has replaced it."""
        if consumer.stream is stream:
            self.consumers.drop_stream(consumer)
            self._settle()

    def _disconnected(self, consumer: Consumer) -> None:
        self.dispatch.disconnect(consumer.id, self._loop.time())
        self._update_active()
        if not self.connected():
            self._stop_reading()

    def _update_active(self) -> None:
        if self.record.kind is SubscriptionType.FAILOVER:
            self.consumers.set_active(self.dispatch.active)

    @property
    def delivery_id(self) -> DeliveryId:
        """The delivery id of messages that are delivered now."""
        return DeliveryId(self._topic.generation, self._replay)

    def wants(self, message: StreamMessage, number: int) -> bool:
        """Return True if a message of a stream's outbox is still to be sent."""
        return self.dispatch.wants(message.msg_id.topic_offset, number)

    def sent(self, consumer: Consumer, stream: Stream, offset: int, number: int) -> None:
        """Start the ack timeout of a message that the connection has taken; ignored for a replaced stream."""
        if consumer.stream is stream and self.dispatch.sent(consumer.id, offset, number, self._loop.time()):
            self._loop.call_soon(self._tick)  # not here: the caller is writing to a connection

    # --- acknowledgements and settings --------------------------------------------------------------------------------

    def ack(self, offset: int, delivery: DeliveryId | None) -> None:
        """Process an acknowledgement; an unexpected one changes nothing."""
        if not self._is_current(offset, delivery):
            return
        before = self.dispatch.cursor
        if self.dispatch.ack(offset, self._loop.time()):
            self.acked += 1
            if self.dispatch.cursor != before:
                self._topic.cursor_moved()
            self._settle()

    def nack(self, offset: int, delay_ms: int, reason: str, delivery: DeliveryId | None) -> None:
        """Process a negative acknowledgement."""
        if not self._is_current(offset, delivery):
            return
        if self.dispatch.nack(offset, delay_ms, reason, self._loop.time()):
            self.nacked += 1
            self._settle()

    def _is_current(self, offset: int, delivery: DeliveryId | None) -> bool:
        """Return True if an acknowledgement is for this generation of the topic, and for a delivery since the last reset.

        Without a delivery id (from a client that does not echo it, or a delivery of an older release) it counts for what
        was delivered here, or may have been delivered before this process started.
        """
        if delivery is not None:
            return delivery.generation == self._topic.generation and delivery.replay >= self._replay
        return offset < self._topic.recovered_offset or self.dispatch.was_delivered(offset)

    def configure(self, record: SubscriptionRecord) -> None:
        """Apply another type, window or failure policy at once; another type delivers again what is outstanding."""
        now = self._loop.time()
        before, self.record = self.record, record
        if record.window != before.window:
            self.dispatch.configure(record.window or self._window, now)
        if record.failure_policy is not None and record.failure_policy != before.failure_policy:
            self._dead_letter_causes.clear()
            self.dispatch.set_policy(record.failure_policy, now)
        if record.kind is not before.kind:
            self._restart(self.dispatch.cursor, self.dispatch.finished)
        else:
            self._settle()

    def set_rate(self, rate: int) -> None:
        """Limit deliveries to `rate` messages a second; 0 is no limit."""
        if rate != self._rate.rate:
            self._rate = TokenBucket(rate, self._loop.time())
            self._settle()

    def reset_cursor(self, cursor: int) -> None:
        """Restart at another cursor: acknowledgements beyond it are dropped, the consumers stay."""
        self._replay = self._topic.wall_us()
        self._restart(cursor, ())

    def _restart(self, cursor: int, finished: Sequence[tuple[int, int]]) -> None:
        self._stop_reading()
        self.problem = None
        self._failures, self._resume_at = 0, 0.0
        self.dispatch.restart(self.record.kind, cursor, self._loop.time(), finished=finished)
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.outbox.clear()
        self._update_active()
        if self.connected():
            self._reading = asyncio.create_task(self._read())
        self._topic.cursor_moved()
        self._settle()

    def close(self, failure: IsterError | None = None) -> None:
        """End every stream and stop delivering."""
        self._stop_reading()
        self._end_streams(failure)
        for task in self._dead_letter_tasks:
            task.cancel()

    def _end_streams(self, failure: IsterError | None) -> None:
        for consumer in self.consumers.end_streams(failure):
            self.dispatch.disconnect(consumer.id, self._loop.time())

    def _stop_reading(self) -> None:
        """Stop reading while there is no stream."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wants_more = None
        self._ahead = []
        self._ahead_at = 0

    # --- inside -------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Push deliveries, feed what was read ahead, request more, start dead letters, and set the timer."""
        dispatch = self.dispatch
        while True:
            deliveries = dispatch.take()
            if deliveries:
                self.delivered += len(deliveries)
                by_id = self.consumers.by_id
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
                self._set_timer(self._rate.next_at())
                break
            fed = self._ahead[self._ahead_at : self._ahead_at + room]
            self._ahead_at += len(fed)
            before = dispatch.cursor
            dispatch.feed(fed, now)
            if dispatch.cursor != before:
                self._topic.cursor_moved()
        if room and self._wants_more is not None and not self._wants_more.done():
            self._wants_more.set_result(None)
        self._start_dead_letters(dispatch.take_dead_letters())
        if dispatch.blocked != self._blocked:
            self._log_blocked(dispatch)
        if dispatch.skipped != self._skipped:
            self._log_skipped(dispatch)
        due = dispatch.due
        if due is not None and self._reading is not None:
            self._set_timer(due)

    def _log_skipped(self, dispatch: Dispatch) -> None:
        """Log, at intervals, how many messages were skipped because no filter accepts them."""
        before, self._skipped = self._skipped, dispatch.skipped
        now = self._loop.time()
        if dispatch.skipped > before and now >= self._log_skipped_at:
            self._log_skipped_at = now + SKIPPED_LOG_S
            log.warning("messages_skipped", topic=self._topic.text, subscription=self.name, count=dispatch.skipped)

    def _log_blocked(self, dispatch: Dispatch) -> None:
        self._blocked = dispatch.blocked
        place = {"topic": self._topic.text, "subscription": self.name, "cursor": dispatch.cursor}
        if self._blocked:
            log.warning("subscription_blocked", **place)
        else:
            log.info("subscription_unblocked", **place)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._tick()

    def _tick(self) -> None:
        try:
            before = self.dispatch.cursor
            self.dispatch.tick(self._loop.time())
            if self.dispatch.cursor != before:
                self._topic.cursor_moved()
            self._settle()
        except Exception:  # the root of a timer
            log.exception("reading_failed", topic=self._topic.text, subscription=self.name)
            self._start_over()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read ahead from the log while there are streams."""
        try:
            await asyncio.sleep(max(0.0, self._resume_at - self._loop.time()))
            await self._keep_reading()
        except Exception:  # the root of a task
            log.exception("reading_failed", topic=self._topic.text, subscription=self.name)
            self._reading = None  # it is this task
            self._start_over()

    async def _keep_reading(self) -> None:
        dispatch = self.dispatch
        while True:
            try:
                if dispatch.cursor > dispatch.next_offset:  # what lies between was finished before a restart
                    dispatch.skip_missing(dispatch.cursor, self._loop.time())
                reader = await self._topic.read_from(dispatch.next_offset)
                try:
                    await self._read_on(reader)
                finally:
                    await reader.close()
            except OffsetOutOfRangeError as error:
                start = self._topic.start_offset
                if start <= dispatch.next_offset:
                    self._fail(error)
                    return
                count = start - dispatch.next_offset + dispatch.unacked + dispatch.waiting
                log.warning("messages_expired", topic=self._topic.text, subscription=self.name,
                            start=dispatch.cursor, stop=start, count=count)  # fmt: skip
                dispatch.skip_to(start, self._loop.time())
                self._topic.cursor_moved()
                self._settle()
            except LogClosedError:
                return
            except IsterError as error:
                if not (isinstance(error, BusyError) or is_transient(error)):
                    self._fail(error)
                    return
                log.warning("reading_waits", topic=self._topic.text, subscription=self.name, cause=str(error))
                await asyncio.sleep(self._failed(error))

    def _failed(self, error: IsterError) -> float:
        """Record a failed read; return the back-off in seconds."""
        self.problem = error
        self._failures += 1
        return backoff_s(self._failures, RETRY_MAX_S, RETRY_S)

    def _fail(self, error: IsterError) -> None:
        """End every stream with a lasting error; the next stream tries to read again."""
        log.error("reading_stopped", topic=self._topic.text, subscription=self.name, cause=str(error))
        self._reading = None  # it is this task
        self._stop_reading()
        self._resume_at = self._loop.time() + self._failed(error)
        self._end_streams(error)

    def _start_over(self) -> None:
        """End every stream after a bug, and restart dispatch at the cursor.

        Clients reconnect at once, so reading is delayed: a lasting bug must not fill the log.
        """
        self._stop_reading()
        now = self._loop.time()
        self._resume_at = now + RETRY_S
        dispatch = self.dispatch
        dispatch.restart(dispatch.kind, dispatch.cursor, now, finished=dispatch.finished)
        self._end_streams(BusyError("a bug in the broker, whose log says more, has ended this; subscribe again"))

    async def _read_on(self, reader: Reader) -> None:
        dispatch = self.dispatch
        while True:
            if self._ahead_at < len(self._ahead) or not dispatch.room:
                self._wants_more = self._loop.create_future()
                await self._wants_more
                self._wants_more = None
                continue
            self._ahead = await reader.read()
            self._ahead_at = 0
            self._failures = 0
            if self.problem is not None:
                self.problem = None
                log.info("reading_resumed", topic=self._topic.text, subscription=self.name)
            if reader.skipped_upto:
                self._skip_missing(dispatch, reader.skipped_upto)
            self._settle()

    def _skip_missing(self, dispatch: Dispatch, skipped_upto: int) -> None:
        """Finish the missing offsets that the reader skipped before the messages just read."""
        start, stop = dispatch.next_offset, self._ahead[0].offset if self._ahead else 0
        if start < stop <= skipped_upto:
            log.error(
                "missing_messages_skipped", topic=self._topic.text, subscription=self.name, start=start, stop=stop
            )
            dispatch.skip_missing(stop, self._loop.time())
            self._topic.cursor_moved()

    # --- dead letters -------------------------------------------------------------------------------------------------

    def _start_dead_letters(self, letters: Iterable[DeadLetter]) -> None:
        for letter in letters:
            task = asyncio.create_task(self._store_dead_letter(letter))
            self._dead_letter_tasks.add(task)
            task.add_done_callback(self._dead_letter_tasks.discard)

    async def _store_dead_letter(self, letter: DeadLetter) -> None:
        try:
            await self._try_dead_letter(letter)
        except Exception:  # the root of a task: its message would never be retried
            log.exception(
                "dead_letter_failed", topic=self._topic.text, subscription=self.name, offset=letter.message.offset
            )
            self._start_over()

    async def _try_dead_letter(self, letter: DeadLetter) -> None:
        policy = self.record.failure_policy
        assert policy is not None, "only a policy makes dead letters"
        offset = letter.message.offset
        try:
            await self._topic.store_dead_letter(self.name, letter, policy, self._unknown_dead_letters.get(offset))
        except IsterError as error:
            if isinstance(error, UnknownDeadLetterError):
                self._unknown_dead_letters[offset] = error
            self._log_dead_letter_cause(offset, str(error))
            self.dispatch.dead_letter_failed(offset, self._loop.time(), letter.number)
        else:
            self.dead_lettered += 1
            self._dead_letter_causes.clear()
            self._unknown_dead_letters.pop(offset, None)
            self.dispatch.dead_letter_stored(offset, self._loop.time(), letter.number)
            self._topic.cursor_moved()
        self._settle()

    def _log_dead_letter_cause(self, offset: int, cause: str) -> None:
        """Log each cause of failed dead letters once; there may be ten thousand, each with many retries."""
        if cause not in self._dead_letter_causes and len(self._dead_letter_causes) < DEAD_LETTER_CAUSES_MAX:
            self._dead_letter_causes.add(cause)
            log.warning("dead_letter_waits", topic=self._topic.text, subscription=self.name, offset=offset,
                        cause=cause)  # fmt: skip
