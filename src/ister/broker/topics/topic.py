"""A hosted topic: its storage, producers and subscriptions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from ister.broker.topics import ids
from ister.broker.topics.non_reliable import NonReliableSubscription
from ister.broker.topics.subscription import ReliableSubscription
from ister.core.errors import (
    CursorTakenError,
    DrainingError,
    IsterError,
    LimitError,
    NotFoundError,
    NotYetInTierError,
    PreconditionError,
)
from ister.core.offsets import StartPosition
from ister.core.rate import TokenBucket

if TYPE_CHECKING:
    from ister.broker.settings import BrokerSettings
    from ister.broker.topics.broker import Broker
    from ister.broker.topics.dead_letters import UnknownDeadLetterError
    from ister.broker.topics.records import SubscriptionRecord, TopicRecord
    from ister.config.policies import CompletePolicies
    from ister.core.dispatch.dispatch import DeadLetter
    from ister.core.dispatch.failure import FailurePolicy
    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.core.reader import Reader
    from ister.storage.cursors.saved import Ranges
    from ister.storage.lake_storage import LakeStorage
    from ister.storage.wal_storage import WalStorage

    Subscription = ReliableSubscription | NonReliableSubscription
    Stored = WalStorage | LakeStorage

log = structlog.get_logger()


@dataclass(slots=True)
class Producer:
    """An attached producer."""

    id: int
    name: str
    exclusive: bool
    seen: float


class Topic:
    """One topic; reliable with a storage, else without.

    A topic whose storage could not be opened has a `problem` instead, which all operations raise; the broker retries if
    the problem is transient.
    """

    def __init__(
        self,
        name: TopicName,
        record: TopicRecord,
        policies: CompletePolicies,
        settings: BrokerSettings,
        broker: Broker,
    ) -> None:
        self.name = name
        self.text = str(name)
        self.record = record
        self.policies = policies
        self.problem: IsterError | None = None
        self.closing = False
        self.producers: dict[int, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.dormant: dict[str, SubscriptionRecord] = {}
        """Subscriptions that are not served here: configured but not yet created, or served by another broker."""
        self.messages_in = self.bytes_in = 0
        self.recovered_offset = 0
        """The next offset when this process opened it; messages below may have been delivered before."""
        self._storage: Stored | None = None
        self._settings = settings
        self._broker = broker
        self._waits_for_lake = policies.ack_level == "lake"
        self._loop = asyncio.get_running_loop()
        self._rate = TokenBucket(policies.max_publish_rate, self._loop.time())
        self._saving: asyncio.TimerHandle | None = None
        self._save_task: asyncio.Task[None] | None = None

    @property
    def reliable(self) -> bool:
        """True if its messages are stored."""
        return self.record.reliable

    @property
    def stored(self) -> Stored:
        """The storage of a reliable topic; raises the topic's problem."""
        self.check()
        if self._storage is None:
            raise PreconditionError(f"topic {self.text} is not reliable: its messages are not stored")
        return self._storage

    @property
    def storage(self) -> WalStorage:
        """The storage of a reliable topic that this broker owns; raises PreconditionError on a read-only broker."""
        stored = self.stored
        if stored.read_only:
            raise PreconditionError(f"this broker only reads; another owns topic {self.text}, with its log and objects")
        return stored

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self.stored.start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next message; 0 without storage."""
        return 0 if self._storage is None else self._storage.next_offset

    @property
    def generation(self) -> int:
        """The generation, which differs from that of a deleted topic of the same name; 0 without storage."""
        return 0 if self._storage is None else self._storage.generation

    @property
    def log(self) -> WalStorage | None:
        """The storage if it has a log, for inspection."""
        return None if self._storage is None or self._storage.read_only else self._storage

    @property
    def upload_problem(self) -> IsterError | None:
        """The error that stops its uploads until an operator acts."""
        return None if self.log is None or self.closing else self.log.upload_problem

    def check(self) -> None:
        """Raise the reason why this topic cannot be used."""
        if self.closing:
            raise DrainingError(f"topic {self.text} is being closed; look it up again")
        if self.problem is not None:
            self._broker.retries.retry_soon()
            raise self.problem

    def set_storage(self, storage: Stored | None, problem: IsterError | None) -> None:
        """Set the opened storage, or the problem why it cannot be used."""
        self._storage, self.problem = storage, problem
        self.recovered_offset = 0 if storage is None else storage.next_offset

    def set_problem(self, problem: IsterError) -> None:
        """Set why it cannot be deleted."""
        self.problem = problem

    def update(self, record: TopicRecord, policies: CompletePolicies | None = None) -> None:
        """Replace the record after it was written; with `policies`, apply them."""
        self.record = record
        if policies is not None:
            self.set_policies(policies)

    def set_policies(self, policies: CompletePolicies) -> None:
        """Apply other policies."""
        self.policies = policies
        self._waits_for_lake = policies.ack_level == "lake"
        if policies.max_publish_rate != self._rate.rate:
            self._rate = TokenBucket(policies.max_publish_rate, self._loop.time())
        for subscription in self.subscriptions.values():
            subscription.set_rate(policies.max_subscription_dispatch_rate)

    # --- producers ----------------------------------------------------------------------------------------------------

    def attach(self, name: str, *, exclusive: bool) -> Producer:
        """Attach a producer; an attached one of this name is the same."""
        return self._attach(ids.producer_id(self.text, name), name, exclusive=exclusive)

    def producer(self, number: int, name: str) -> Producer:
        """Return the producer of an id; one of this topic that attached before a restart is attached again."""
        known = self.producers.get(number)
        if known is None:
            if not ids.may_send(number, self.text):
                raise NotFoundError(f"producer {number} is not attached to topic {self.text}; create it first")
            known = self._attach(number, name, exclusive=False)
        known.seen = self._loop.time()
        return known

    def _attach(self, number: int, name: str, *, exclusive: bool) -> Producer:
        now = self._loop.time()
        self.expire_producers(now)
        others = [producer for producer in self.producers.values() if producer.id != number]
        if any(producer.exclusive for producer in others) or (exclusive and others):
            raise PreconditionError(f"topic {self.text} has another producer, and one of them wants it alone")
        known = self.producers.get(number)
        if known is not None:
            known.seen, known.exclusive = now, exclusive
            return known
        limit = self.policies.max_producers_per_topic
        if limit and len(self.producers) >= limit:
            raise LimitError(f"topic {self.text} has {limit} producers, as many as it may have")
        producer = self.producers[number] = Producer(number, name, exclusive, now)
        return producer

    def expire_producers(self, now: float) -> None:
        """Detach producers that sent nothing, not even a health check, for `producer_expiry_s`."""
        expired = [p.id for p in self.producers.values() if now - p.seen > self._settings.producer_expiry_s]
        for number in expired:
            del self.producers[number]

    # --- messages -----------------------------------------------------------------------------------------------------

    async def publish(self, message: StreamMessage) -> int:
        """Store a message, or deliver it without storage; return its offset once it reached the acknowledgement level."""
        if self.closing or self.problem is not None:
            self.check()
        if self._rate.rate and not self._rate.grant(1, self._loop.time()):
            raise LimitError(f"topic {self.text} takes {self._rate.rate} messages a second; send more slowly")
        if self._storage is None:
            self._count(message)
            for subscription in self.subscriptions.values():
                assert isinstance(subscription, NonReliableSubscription), "a topic without storage has no others"
                subscription.publish(message)
            return 0
        try:
            offset = await self._storage.append_message(message)
        except NotYetInTierError:
            self._count(message)  # it is in the log all the same
            raise
        self._count(message)
        if self._waits_for_lake:
            timeout_s = self.policies.ack_timeout_ms / 1000
            await self._broker.pipelines.wait_upto(self.name, self.generation, offset + 1, timeout_s)
        return offset

    def _count(self, message: StreamMessage) -> None:
        self.messages_in += 1
        self.bytes_in += len(message.payload)

    async def read_from(self, offset: int) -> Reader:
        """Read from an offset on."""
        return await self.stored.create_reader(StartPosition.offset(offset))

    async def store_dead_letter(
        self, subscription: str, letter: DeadLetter, policy: FailurePolicy, doubt: UnknownDeadLetterError | None
    ) -> None:
        """Publish a copy of a message to the dead-letter topic of a policy."""
        await self._broker.store_dead_letter(self, subscription, letter, policy, doubt)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def open_subscription(
        self, name: str, record: SubscriptionRecord, cursor: int, finished: Ranges = ()
    ) -> Subscription:
        """Open a subscription with its stored consumers."""
        settings, rate = self._settings, self.policies.max_subscription_dispatch_rate
        subscription: Subscription
        if self.reliable:
            subscription = ReliableSubscription(
                self, name, record, cursor,
                window=settings.max_unacked_messages, grace_s=settings.consumer_grace_s, rate=rate,
                finished=finished,
            )  # fmt: skip
        else:
            subscription = NonReliableSubscription(
                self.text, name, record,
                queue=settings.non_reliable_queue, grace_s=settings.consumer_grace_s, rate=rate,
            )  # fmt: skip
        for consumer, filters in record.consumers.items():
            known = subscription.join(ids.consumer_id(self.text, name, consumer), consumer, filters)
            if self.reliable:
                # When it disconnected is not known, so its grace period is over.
                known.left_at -= settings.consumer_grace_s
        self.subscriptions[name] = subscription
        return subscription

    def subscription_names(self) -> list[str]:
        """Return all subscriptions, sorted, including those that are not served here now."""
        return sorted({*self.subscriptions, *(name for name, record in self.dormant.items() if record.made)})

    def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor in memory."""
        return {name: subscription.cursor for name, subscription in self.reliable_subscriptions().items()}

    def reliable_subscriptions(self) -> dict[str, ReliableSubscription]:
        """Return the subscriptions that have cursors: all of a reliable topic, none of another."""
        return {name: served.reliable for name, served in self.subscriptions.items() if served.reliable is not None}

    def wall_us(self) -> int:
        """Return the wall-clock time in microseconds."""
        return self._broker.clock.wall_us()

    def cursor_moved(self) -> None:
        """Schedule saving the cursors."""
        if self._saving is None and not self.closing:
            self._saving = self._loop.call_later(self._settings.cursor_interval_s, self._start_saving)

    def _start_saving(self) -> None:
        if self._save_task is not None and not self._save_task.done():
            self._saving = self._loop.call_later(self._settings.cursor_interval_s, self._start_saving)
            return
        self._saving = None
        self._save_task = asyncio.create_task(self._save())

    async def _save(self) -> None:
        """Save cursors up to the synced offset, and schedule the rest."""
        again = True
        try:
            again = await self._try_saving()
        except IsterError as error:
            log.warning("cursors_not_saved", topic=self.text, cause=str(error))
        except Exception:  # the root of a task
            log.exception("cursors_not_saved", topic=self.text)
        if again:
            self.cursor_moved()

    async def _try_saving(self) -> bool:
        """Save cursors up to the synced offset; return True if there is more to save."""
        if self._storage is None:
            return False
        wanted = self.cursors()
        try:
            saved = await self._storage.save_cursors(wanted)
        except CursorTakenError as error:
            log.warning("cursors_taken", topic=self.text, cause=str(error))
            return not await self._broker.ownership.cursors_taken(self)
        return any(saved.get(name, cursor) < cursor for name, cursor in wanted.items())

    def release_cursor(self, subscription: str) -> None:
        """Stop saving a subscription's cursor, which another broker may serve."""
        if self._storage is not None:
            self._storage.release_cursor(subscription)

    async def settle_cursors(self) -> None:
        """Sync, then save all cursors and the finished ranges beyond them, before the topic is closed."""
        if self._save_task is not None:
            await asyncio.wait({self._save_task})
        if self._storage is not None and self.subscriptions:
            await self._storage.flush()
            finished = {name: subscription.finished for name, subscription in self.reliable_subscriptions().items()}
            await self._storage.save_cursors(self.cursors(), finished)

    def close(self, failure: IsterError | None = None) -> None:
        """End every stream; afterwards only `settle_cursors` writes."""
        self.closing = True
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        for subscription in self.subscriptions.values():
            subscription.close(failure)
