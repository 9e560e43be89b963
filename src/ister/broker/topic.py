"""A topic that this broker hosts: its log, its producers, its subscriptions, and what is asked of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from ister.broker import ids
from ister.broker.subscription import ReliableSubscription
from ister.broker.volatile import VolatileSubscription
from ister.cloud.uploader import NotInCloudError
from ister.core.errors import DrainingError, IsterError, LimitError, NotFoundError, PreconditionError
from ister.core.offsets import StartPosition
from ister.core.rate import TokenBucket
from ister.storage.lake_storage import LakeStorage
from ister.storage.owned_key import CursorTakenError

if TYPE_CHECKING:
    from ister.broker.letters import LetterUnknownError
    from ister.broker.records import SubscriptionRecord, TopicRecord
    from ister.broker.settings import BrokerSettings
    from ister.config.policies import CompletePolicies
    from ister.core.dispatch import DeadLetter
    from ister.core.failure import FailurePolicy
    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.storage.cursors import Ranges
    from ister.storage.persistent import Reader
    from ister.storage.wal_storage import WalStorage

    Subscription = ReliableSubscription | VolatileSubscription
    Stored = WalStorage | LakeStorage

log = structlog.get_logger()


@dataclass(slots=True)
class Producer:
    """A producer that is attached to a topic."""

    id: int
    name: str
    exclusive: bool
    seen: float


class Home(Protocol):
    """What a topic needs of its broker."""

    def wall_us(self) -> int:
        """Return the wall-clock time in microseconds."""
        ...

    async def wait_in_table(self, topic: Topic, upto: int) -> None:
        """Return once the topic's table has everything below `upto`."""
        ...

    async def store_dead_letter(
        self,
        topic: Topic,
        subscription: str,
        letter: DeadLetter,
        policy: FailurePolicy,
        doubt: LetterUnknownError | None = None,
    ) -> None:
        """Publish a copy to the policy's topic; returns once it is stored."""
        ...

    async def cursors_taken(self, topic: Topic, error: CursorTakenError) -> bool:
        """Begin anew where someone else has saved progress; False when nobody may."""
        ...

    def met_problem(self) -> None:
        """Someone asked for a topic that has a problem."""
        ...


class Topic:
    """One topic; reliable with a storage, else without.

    A topic whose storage could not be opened has a `problem` instead, which everyone is told who wants something of it;
    the broker opens it again later if the problem may pass.
    """

    def __init__(
        self,
        name: TopicName,
        record: TopicRecord,
        policies: CompletePolicies,
        settings: BrokerSettings,
        home: Home,
    ) -> None:
        self.name = name
        self.text = str(name)
        self.record = record
        self.policies = policies
        self.problem: IsterError | None = None
        self.closing = False
        self.producers: dict[int, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.settings_of: dict[str, SubscriptionRecord] = {}
        """What was set for subscriptions that nobody has made yet."""
        self.messages_in = self.bytes_in = 0
        self.recovered_offset = 0
        """Where it ended when this process opened it."""
        self._storage: Stored | None = None
        self._settings = settings
        self._home = home
        self._waits_for_lake = policies.ack_level == "lake"
        self._loop = asyncio.get_running_loop()
        self._rate = TokenBucket(policies.max_publish_rate, self._loop.time())
        self._saving: asyncio.TimerHandle | None = None
        self._save_task: asyncio.Task[None] | None = None

    @property
    def reliable(self) -> bool:
        """Whether its messages are stored."""
        return self.record.reliable

    @property
    def stored(self) -> Stored:
        """The storage of a reliable topic; raises what is wrong with it."""
        self.check()
        if self._storage is None:
            raise PreconditionError(f"topic {self.text} is not reliable: its messages are not stored")
        return self._storage

    @property
    def storage(self) -> WalStorage:
        """The storage of a reliable topic that this broker owns; refused where it only reads."""
        stored = self.stored
        if isinstance(stored, LakeStorage):
            raise PreconditionError(f"this broker only reads; another owns topic {self.text}, with its log and objects")
        return stored

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self.stored.start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets; 0 when nothing is stored."""
        return 0 if self._storage is None else self._storage.next_offset

    @property
    def generation(self) -> int:
        """What tells it from a deleted topic of its name; 0 when nothing is stored."""
        if isinstance(self._storage, LakeStorage):
            return self._storage.generation
        objects = None if self._storage is None else self._storage.objects
        return 0 if objects is None else objects.reader.catalog.generation

    @property
    def log(self) -> WalStorage | None:
        """The storage if it is one with a log; for looking only."""
        return None if isinstance(self._storage, LakeStorage) else self._storage

    @property
    def upload_problem(self) -> IsterError | None:
        """What keeps its uploads from going on until a person acts."""
        return None if self.log is None or self.closing else self.log.upload_problem

    def check(self) -> None:
        """Raise what keeps this topic from working."""
        if self.closing:
            raise DrainingError(f"topic {self.text} is being closed; look it up again")
        if self.problem is not None:
            self._home.met_problem()
            raise self.problem

    def set_storage(self, storage: Stored | None, problem: IsterError | None) -> None:
        """Use a storage that was opened; a problem says why it cannot be used."""
        self._storage, self.problem = storage, problem
        self.recovered_offset = 0 if storage is None else storage.next_offset

    def set_policies(self, policies: CompletePolicies) -> None:
        """Apply other policies at once."""
        self.policies = policies
        self._waits_for_lake = policies.ack_level == "lake"
        if policies.max_publish_rate != self._rate.rate:
            self._rate = TokenBucket(policies.max_publish_rate, self._loop.time())
        for subscription in self.subscriptions.values():
            subscription.set_rate(policies.max_subscription_dispatch_rate)

    # --- producers ----------------------------------------------------------------------------------------------------

    def attach(self, name: str, *, exclusive: bool) -> Producer:
        """Attach a producer; one of this name that is attached already is the same."""
        return self._attach(ids.producer_id(self.text, name), name, exclusive=exclusive)

    def producer(self, number: int, name: str) -> Producer:
        """Return the producer of a number; one of this topic that a restart made us forget is attached again."""
        known = self.producers.get(number)
        if known is None:
            if not ids.may_send(number, self.text):
                raise NotFoundError(f"producer {number} is not attached to topic {self.text}; create it first")
            known = self._attach(number, name, exclusive=False)
        known.seen = self._loop.time()
        return known

    def _attach(self, number: int, name: str, *, exclusive: bool) -> Producer:
        now = self._loop.time()
        self.forget_silent_producers(now)
        others = [producer for producer in self.producers.values() if producer.id != number]
        if any(producer.exclusive for producer in others) or (exclusive and others):
            raise PreconditionError(f"topic {self.text} has another producer, and one of them wants it alone")
        known = self.producers.get(number)
        if known is not None:
            known.seen = now
            known.exclusive = exclusive
            return known
        limit = self.policies.max_producers_per_topic
        if limit and len(self.producers) >= limit:
            raise LimitError(f"topic {self.text} has {limit} producers, as many as it may have")
        producer = self.producers[number] = Producer(number, name, exclusive, now)
        return producer

    def forget_silent_producers(self, now: float) -> None:
        """Forget producers that have sent nothing, and of which nothing was heard, for as long as they may."""
        gone = [p.id for p in self.producers.values() if now - p.seen > self._settings.producer_expiry_s]
        for number in gone:
            del self.producers[number]

    # --- messages -----------------------------------------------------------------------------------------------------

    async def publish(self, message: StreamMessage) -> int:
        """Store a message, or hand it to whoever listens; returns its offset once it has reached the topic's level."""
        if self.closing or self.problem is not None:
            self.check()
        if self._rate.rate and not self._rate.grant(1, self._loop.time()):
            raise LimitError(f"topic {self.text} takes {self._rate.rate} messages a second; send more slowly")
        if self._storage is None:
            self._count(message)
            for subscription in self.subscriptions.values():
                assert isinstance(subscription, VolatileSubscription), "a topic without storage has no others"
                subscription.publish(message)
            return 0
        try:
            offset = await self._storage.append_message(message)
        except NotInCloudError:
            self._count(message)  # it is in the log all the same
            raise
        self._count(message)
        if self._waits_for_lake:
            await self._home.wait_in_table(self, offset + 1)
        return offset

    def _count(self, message: StreamMessage) -> None:
        self.messages_in += 1
        self.bytes_in += len(message.payload)

    async def read_from(self, offset: int) -> Reader:
        """Read from an offset on."""
        return await self.stored.create_reader(StartPosition.offset(offset))

    async def store_dead_letter(
        self, subscription: str, letter: DeadLetter, policy: FailurePolicy, doubt: LetterUnknownError | None
    ) -> None:
        """Publish a copy of a message that nobody could consume."""
        await self._home.store_dead_letter(self, subscription, letter, policy, doubt)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def open_subscription(
        self, name: str, record: SubscriptionRecord, cursor: int, finished: Ranges = ()
    ) -> Subscription:
        """Make a subscription that is known work; its consumers are known from before."""
        settings, rate = self._settings, self.policies.max_subscription_dispatch_rate
        subscription: Subscription
        if self.reliable:
            subscription = ReliableSubscription(
                self, name, record, cursor,
                window=settings.max_unacked_messages, grace_s=settings.consumer_grace_s, rate=rate,
                finished=finished,
            )  # fmt: skip
        else:
            subscription = VolatileSubscription(
                self.text, name, record,
                queue=settings.non_reliable_queue, grace_s=settings.consumer_grace_s, rate=rate,
            )  # fmt: skip
        for consumer, filters in record.consumers.items():
            known = subscription.join(ids.consumer_id(self.text, name, consumer), consumer, filters)
            if self.reliable:
                # When it left is not known, perhaps long ago: whoever comes first now has a place.
                known.left_at -= settings.consumer_grace_s
        self.subscriptions[name] = subscription
        return subscription

    def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor, as it is in memory."""
        return {
            name: subscription.cursor
            for name, subscription in self.subscriptions.items()
            if isinstance(subscription, ReliableSubscription)
        }

    def wall_us(self) -> int:
        """Return the wall-clock time in microseconds."""
        return self._home.wall_us()

    def cursor_moved(self) -> None:
        """Save the cursors soon."""
        if self._saving is None and not self.closing:
            self._saving = self._loop.call_later(self._settings.cursor_interval_s, self._start_saving)

    def _start_saving(self) -> None:
        if self._save_task is not None and not self._save_task.done():
            self._saving = self._loop.call_later(self._settings.cursor_interval_s, self._start_saving)
            return
        self._saving = None
        self._save_task = asyncio.create_task(self._save())

    async def _save(self) -> None:
        """Save what survives a power loss; the rest follows once it is synced."""
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
        """Save what survives a power loss; returns whether there is more."""
        if self._storage is None:
            return False
        wanted = self.cursors()
        try:
            saved = await self._storage.save_cursors(wanted)
        except CursorTakenError as error:
            return not await self._home.cursors_taken(self, error)
        return any(saved.get(name, cursor) < cursor for name, cursor in wanted.items())

    def release_cursor(self, subscription: str) -> None:
        """Save nothing of a subscription any more, where others may serve it."""
        if self._storage is not None:
            self._storage.release_cursor(subscription)

    async def settle_cursors(self) -> None:
        """Save all progress now, with a sync before, also what is acknowledged beyond the cursors; the topic is to be closed."""
        if self._save_task is not None:
            await asyncio.wait({self._save_task})
        if self._storage is not None and self.subscriptions:
            await self._storage.flush()
            finished = {
                name: subscription.finished
                for name, subscription in self.subscriptions.items()
                if isinstance(subscription, ReliableSubscription)
            }
            await self._storage.save_cursors(self.cursors(), finished)

    def close(self, failure: IsterError | None = None) -> None:
        """End every stream; nothing more is taken, delivered or saved, except by `settle_cursors`."""
        self.closing = True
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        for subscription in self.subscriptions.values():
            subscription.close(failure)
