"""Which namespaces, topics and subscriptions there are, and how they come and go.

Every change is written to metadata before it is answered. What is asked of a topic that exists is in topic.py; who may
subscribe is decided in consuming.py.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import structlog

from ister.broker import ids
from ister.broker.following import Following
from ister.broker.holding import Holding
from ister.broker.letters import LetterUnknownError, is_stored, letter_message
from ister.broker.opening import Opened, TopicRetries, open_stored
from ister.broker.pipelines import Pipelines
from ister.broker.read_only import refuse
from ister.broker.records import NamespaceRecord, Records, SubscriptionRecord, TopicRecord
from ister.broker.recovering import recover
from ister.broker.settings import NAMESPACES
from ister.broker.storage_policies import apply_storage_policies, require_table
from ister.broker.subscription import ReliableSubscription
from ister.broker.sweeping import sweep
from ister.broker.topic import Topic
from ister.config.policies import Policies, merge
from ister.core.errors import (
    AlreadyExistsError,
    DrainingError,
    InvalidRequestError,
    IsterError,
    LevelNotReachedError,
    NotFoundError,
    PreconditionError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from ister.core.hold import hold_lost
from ister.core.names import TopicName, partition_of
from ister.core.schemas import TopicSchema
from ister.ports.clock import SystemClock
from ister.storage.lake_factory import LakeStorageFactory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from ister.broker.schema_store import SchemaStore
    from ister.broker.settings import BrokerSettings
    from ister.broker.stream import Consumer
    from ister.broker.topic import Subscription
    from ister.config.policies import CompletePolicies
    from ister.core.dispatch import DeadLetter
    from ister.core.failure import FailurePolicy
    from ister.ports.clock import Clock
    from ister.ports.metadata import Metadata
    from ister.storage.factory import WalStorageFactory
    from ister.storage.owned_key import CursorTakenError

log = structlog.get_logger()

NAMESPACE_CHARS_MAX = 200
CLOSING_S = 1.0
"""What of a drain is kept for closing the logs, behind the uploads: a store that hangs takes all the time it is given."""


class Broker:
    """Everything that this process hosts; `start` it first, `drain` it at the end."""

    def __init__(
        self,
        settings: BrokerSettings,
        factory: WalStorageFactory | LakeStorageFactory,
        records: Records,
        schemas: SchemaStore,
        clock: Clock | None = None,
        *,
        shared: Metadata | None = None,
    ) -> None:
        """Make one; `shared` is the metadata by which brokers agree who serves a subscription, where there are several."""
        self.settings = settings
        self.url = settings.broker_url or ""
        self.admin_url = self.metrics_url = ""
        self.schemas = schemas
        self.topics: dict[str, Topic] = {}
        self.namespaces: dict[str, NamespaceRecord] = {}
        self.consumers: dict[int, tuple[Topic, Subscription, Consumer]] = {}
        self.draining = False
        self.when_forgotten: list[Callable[[str], None]] = []
        """Called with the name of each topic that is hosted no more."""
        self.factory = factory
        self.records = records
        self.pipelines = Pipelines(records)
        self.holding = None if shared is None else Holding(self, shared, settings.hold_ttl_s)
        self.following: Following | None = None
        if not isinstance(factory, LakeStorageFactory):
            factory.known_upto = lambda topic, generation: self.pipelines.upto(topic, generation) or 0
        else:
            assert self.holding is not None, "a broker that only reads is never the only one"
            self.following = Following(self, factory, self.holding)
        self._clock = clock or SystemClock()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._setting = asyncio.Lock()
        """Held from the look at what others say to the writing of what someone says, of policies."""
        self._making: set[TopicName] = set()
        self._topic_parts: dict[int, set[str]] = {}
        self._partitions: dict[TopicName, dict[int, str]] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._retries = TopicRetries(self)
        self._loop = asyncio.get_running_loop()

    # --- starting and stopping ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover every topic and every subscription."""
        self.namespaces = await self.records.namespaces()
        await self.pipelines.load()
        if self.following is None:
            await recover(self)
        else:
            await self.following.refresh()
        self._sweeping = asyncio.create_task(sweep(self))
        self._retries.start()
        log.info(
            "broker_recovered",
            cluster_name=self.settings.cluster_name,
            topics=len(self.topics),
            consumers=len(self.consumers),
        )

    async def drain(self, timeout_s: float) -> None:
        """Take nothing more, end every stream, save every cursor, and close every topic; uploads get what time is left."""
        ends = self._loop.time() + timeout_s
        self.draining = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        await self._retries.stop()
        for topic in self.topics.values():
            topic.close()
        results = await asyncio.gather(
            *(topic.settle_cursors() for topic in self.topics.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                log.error("cursors_not_saved", cause=str(result))
        if self.holding is not None:
            await self.holding.close()
        closing_s = min(CLOSING_S, timeout_s / 5)
        await self.factory.shutdown(max(0.0, ends - closing_s - self._loop.time()))

    async def host(
        self,
        name: TopicName,
        record: TopicRecord,
        subscriptions: Mapping[str, SubscriptionRecord],
        problem: IsterError | None = None,
    ) -> Topic:
        """Open a topic that is known, with its subscriptions; with a `problem` that was met already it is not tried again."""
        topic = Topic(name, record, self.effective(name, record), self.settings, self)
        topic.settings_of.update(subscriptions)
        if problem is None:
            await self._open_storage(topic)
        else:
            topic.set_storage(None, problem)
            log.error("topic_has_problem", topic=topic.text, cause=str(problem))
        self.topics[topic.text] = topic
        part = ids.topic_part(topic.text)
        self._topic_parts.setdefault(part, set()).add(topic.text)
        partition = partition_of(name)
        if partition is not None:
            self._partitions.setdefault(partition[0], {})[partition[1]] = topic.text
        return topic

    async def _open_storage(self, topic: Topic) -> bool:
        """Open a topic's storage and its subscriptions; what keeps it from that becomes its problem, and False."""
        policies = self.effective(topic.name, topic.record)
        opened = Opened()
        if topic.reliable:
            opened = await open_stored(
                self.factory, topic.name, policies, topic.settings_of, alone=self.holding is None
            )
        topic.set_policies(policies)
        topic.set_storage(opened.storage, opened.problem)
        if opened.problem is not None:
            return False
        for subscription, sub in list(topic.settings_of.items()):
            if not sub.made:
                continue
            if self.holding is not None and topic.reliable:
                self.holding.know(topic, subscription, sub)
                continue
            cursor = opened.cursors.get(subscription)
            if cursor is None and opened.storage is not None:
                cursor = opened.storage.start_offset
                log.warning("cursor_missing", topic=topic.text, subscription=subscription, cursor=cursor)
            del topic.settings_of[subscription]
            finished = () if opened.storage is None else opened.storage.finished(subscription)
            served = topic.open_subscription(subscription, sub, cursor or 0, finished)
            for consumer in served.consumers.values():
                self.consumers[consumer.id] = (topic, served, consumer)
        if self.holding is not None:
            await self.holding.drop_ghosts(topic, opened.ghosts)
        return True

    async def retry(self, topic: Topic) -> None:
        """Open a topic again that has a problem, or finish its deletion."""
        async with self.changing(topic.name):
            if self.topics.get(topic.text) is not topic or topic.problem is None:
                return
            if topic.record.deleting:
                await self._unhost(topic)
            elif await self._open_storage(topic):
                log.info("topic_opened_later", topic=topic.text)

    # --- looking up ---------------------------------------------------------------------------------------------------

    def topic(self, text: str) -> Topic:
        """Return a topic; a name that is malformed or unknown is refused."""
        found = self.topics.get(text)
        if found is None:
            raise NotFoundError(f"topic {TopicName.parse(text)} not found")
        return found

    def sees_producer(self, number: int) -> bool:
        """Tell whether a producer's number belongs to a topic that is hosted here; it counts as seen."""
        texts = self._topic_parts.get(ids.topic_part_of(number), ())
        for text in texts:
            producer = self.topics[text].producers.get(number)
            if producer is not None:
                producer.seen = self._loop.time()
        return bool(texts)

    def sees_consumer(self, number: int) -> bool:
        """Tell whether a consumer is known, and its subscription served here; it counts as seen."""
        found = self.consumers.get(number)
        if found is not None:
            found[2].seen = self._loop.time()
        return found is not None

    def partitions(self, name: TopicName) -> list[str]:
        """Return the topic itself, or its partitions in their order, or nothing."""
        if str(name) in self.topics:
            return [str(name)]
        return [text for _, text in sorted(self._partitions.get(name, {}).items())]

    def effective(self, name: TopicName, record: TopicRecord) -> CompletePolicies:
        """Return the policies that hold for a topic."""
        namespace = self.namespaces.get(name.namespace, NamespaceRecord())
        return merge(namespace.policies, record.policies, self.settings.policies)

    @asynccontextmanager
    async def changing(self, name: TopicName) -> AsyncIterator[None]:
        """Let one change of a topic (with its partitions) happen at a time."""
        key = _change_key(name)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            if self.draining:
                raise DrainingError("the broker is stopping; look the topic up again")
            yield

    def is_changing(self, name: TopicName) -> bool:
        """Return True while a topic (or one of its partitions) is changed."""
        lock = self._locks.get(_change_key(name))
        return lock is not None and lock.locked()

    @asynccontextmanager
    async def changing_hosted(self, topic: Topic) -> AsyncIterator[bool]:
        """Let one change happen at a time, of a topic that was found before; False when it is deleted or another one now.

        Whatever is written of such a topic would belong to the next one of its name.
        """
        async with self.changing(topic.name):
            yield self.topics.get(topic.text) is topic and not topic.closing

    # --- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: TopicName, *, reliable: bool, subject: str | None = None) -> Topic:
        """Make a topic; AlreadyExistsError when it, or its base, or a partition of it, is there."""
        async with self.changing(name):
            if str(name) in self.topics:
                raise AlreadyExistsError(f"topic {name} exists already")
            return await self._make(name, reliable=reliable, subject=subject)

    async def find_or_create_topic(self, name: TopicName, *, reliable: bool, subject: str | None = None) -> Topic:
        """Return a topic, made if it is not there and topics may be made by using them."""
        if self.following is not None:
            refuse()
        async with self.changing(name):
            found = self.topics.get(str(name))
            if found is not None:
                return found
            if not self.settings.auto_create_topics:
                raise NotFoundError(f"topic {name} not found, and this broker does not make topics by itself")
            return await self._make(name, reliable=reliable, subject=subject)

    async def create_partitioned(
        self, base: TopicName, count: int, *, reliable: bool, subject: str | None = None
    ) -> list[Topic]:
        """Make all partitions of a topic, or none."""
        async with self.changing(base):
            if self.partitions(base):
                raise AlreadyExistsError(f"topic {base} exists already")
            made: list[Topic] = []
            try:
                for number in range(count):
                    name = TopicName(base.namespace, f"{base.topic}-part-{number}")
                    made.append(await self._make(name, reliable=reliable, subject=subject))
            except BaseException:
                for topic in made:
                    await self._unhost(topic)
                raise
            return made

    async def _make(self, name: TopicName, *, reliable: bool, subject: str | None) -> Topic:
        self._check_can_make(name)
        self._making.add(name)
        try:
            created_at_ms = self._clock.wall_us() // 1000
            record = TopicRecord(
                reliable=reliable, topic_schema=TopicSchema(subject=subject), created_at_ms=created_at_ms
            )
            # Another broker may have written one late, of a deleted topic of this name.
            await self.records.forget_subscriptions(name)
            if reliable:
                await self.factory.for_topic(name)  # before its record: a record without a log would be a broken topic
            await self.records.save_topic(name, record)
            topic = await self.host(name, record, {})
        finally:
            self._making.discard(name)
        topic.check()
        log.info("topic_created", topic=str(name), reliable=reliable)
        return topic

    def _check_can_make(self, name: TopicName) -> None:
        """Raise what keeps a topic that is not there from being made."""
        part = partition_of(name)
        if part is not None and str(part[0]) in self.topics:
            raise AlreadyExistsError(f"topic {part[0]} exists without partitions, so {name} cannot be one of them")
        if part is None and name in self._partitions:
            raise AlreadyExistsError(f"topic {name} exists already, with partitions")
        if name.namespace not in self.namespaces:
            raise NotFoundError(f"namespace {name.namespace} not found; create it first")

    def check_dead_letter_topic(self, name: TopicName) -> None:
        """Raise PreconditionError if dead letters could not be stored in a topic, as `store_dead_letter` would find or make it.

        A broker that only reads stores none itself, so there only the names are checked.
        """
        found = self.topics.get(str(name))
        if found is not None:
            if not found.reliable:
                raise PreconditionError(f"dead_letter_topic {name} is not reliable: it would not keep what it gets")
            return
        try:
            self._check_can_make(name)
        except (AlreadyExistsError, NotFoundError) as error:
            hint = "; name one of its partitions" if name in self._partitions else ""
            raise PreconditionError(f"dead_letter_topic {name} cannot take messages: {error}{hint}") from None
        if self.following is None and not self.settings.auto_create_topics:
            raise PreconditionError(
                f"dead_letter_topic {name} not found, and this broker does not make topics by itself; create it first"
            )

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic with all its messages; a base with all its partitions."""
        part = partition_of(name)
        if part is not None and str(name) in self.topics:
            raise PreconditionError(
                f"Cannot delete individual partition {name}; delete {part[0]}, which deletes all of them"
            )
        async with self.changing(name):
            doomed = [self.topics[text] for text in self.partitions(name)]
            if not doomed:
                raise NotFoundError(f"topic {name} not found")
            for topic in doomed:
                await self._unhost(topic)

    async def _unhost(self, topic: Topic) -> None:
        """Delete a topic: first it is written down that it goes, last that it is gone. Can be tried again."""
        record = topic.record.model_copy(update={"deleting": True})
        await self.records.save_topic(topic.name, record)
        topic.record = record
        topic.close(NotFoundError(f"topic {topic.text} was deleted"))
        self._forget_consumers_of(topic)
        try:
            await self.remove_stored(topic.name, reliable=topic.reliable)
        except IsterError as error:
            topic.problem = error
            self._retries.hurry()
            raise
        if self.holding is not None:
            for name in list(topic.subscriptions):
                await self.holding.give_up(topic, name)
            self.holding.forget(topic, list(topic.settings_of))
        self.forget(topic)
        log.info("topic_removed", topic=topic.text)

    def forget(self, topic: Topic) -> None:
        """Host a topic no more."""
        self._forget_consumers_of(topic)
        self.topics.pop(topic.text, None)
        for forget in self.when_forgotten:
            forget(topic.text)
        partition = partition_of(topic.name)
        if partition is not None:
            del self._partitions[partition[0]][partition[1]]
            if not self._partitions[partition[0]]:
                del self._partitions[partition[0]]
        part = ids.topic_part(topic.text)
        self._topic_parts[part].discard(topic.text)
        if not self._topic_parts[part]:
            del self._topic_parts[part]

    def _forget_consumers_of(self, topic: Topic) -> None:
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers.values():
                self.consumers.pop(consumer.id, None)

    async def remove_stored(self, name: TopicName, *, reliable: bool, in_background: bool = False) -> None:
        """Remove all that is kept of a topic that is to be deleted; with `in_background` objects may go later."""
        if reliable:
            with suppress(UnknownTopicError):  # an earlier try has come so far
                await self.factory.delete_topic(name, in_background=in_background)
        await self.records.forget_topic(name)
        self.pipelines.forget(name)

    async def set_topic_policies(self, name: TopicName, policies: Policies) -> None:
        """Give a topic other policies, at once and for ever."""
        self._check_policies(policies)
        async with self.changing(name), self._setting:
            topic = self.topic(str(name))
            record = topic.record.model_copy(update={"policies": policies})
            await self._apply(topic, record)
            log.info("topic_policies_set", topic=topic.text, policies=policies.to_json())

    async def _apply(self, topic: Topic, record: TopicRecord) -> None:
        policies = self.effective(topic.name, record)
        if topic.reliable:
            require_table(policies, f"topic {topic.text}")
            await apply_storage_policies(self.factory, topic.name, topic.stored, policies)
        await self.records.save_topic(topic.name, record)
        topic.record = record
        topic.set_policies(policies)

    # --- what the schema registry asks (broker/schemas.TopicSchemas) ---------------------------------------------------

    async def schema_of(self, topic: TopicName) -> TopicSchema:
        """Return a topic's schema binding."""
        return self.topic(str(topic)).record.topic_schema

    async def bind_subject(self, topic: TopicName, subject: str) -> None:
        """Give a topic a schema subject, if it has none yet."""
        async with self.changing(topic):
            found = self.topic(str(topic))
            if found.record.topic_schema.subject is None:
                await self._save_schema(found, replace(found.record.topic_schema, subject=subject))

    async def change_schema(self, topic: TopicName, change: Callable[[TopicSchema], TopicSchema]) -> TopicSchema:
        """Bind a topic to what `change` makes of its present binding, durably."""
        async with self.changing(topic):
            found = self.topic(str(topic))
            schema = change(found.record.topic_schema)
            await self._save_schema(found, schema)
            return schema

    async def _save_schema(self, topic: Topic, schema: TopicSchema) -> None:
        record = topic.record.model_copy(update={"topic_schema": schema})
        await self.records.save_topic(topic.name, record)
        topic.record = record

    # --- namespaces ---------------------------------------------------------------------------------------------------

    async def create_namespace(self, namespace: str) -> None:
        """Make a namespace."""
        check_namespace(namespace)
        async with self._setting:
            if namespace in self.namespaces:
                raise AlreadyExistsError(f"namespace {namespace} exists already")
            await self.ensure_namespace(namespace)
        log.info("namespace_created", namespace=namespace)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace that has no topics."""
        async with self._setting:
            self.namespace(namespace)
            if namespace in NAMESPACES:
                raise PreconditionError(f"namespace {namespace} always exists")
            if self._names_in(namespace):
                raise PreconditionError(f"namespace {namespace} has topics; delete them first")
            record = self.namespaces.pop(namespace)  # first, so that no topic is made in it meanwhile
            try:
                await self.records.forget_namespace(namespace)
            except BaseException:
                self.namespaces[namespace] = record
                raise
        log.info("namespace_removed", namespace=namespace)

    def namespace(self, namespace: str) -> NamespaceRecord:
        """Return a namespace; NotFoundError when there is none."""
        found = self.namespaces.get(namespace)
        if found is None:
            check_namespace(namespace)
            raise NotFoundError(f"namespace {namespace} not found")
        return found

    def all_topics(self) -> list[Topic]:
        """Return every topic, sorted by name."""
        return [topic for _, topic in sorted(self.topics.items())]

    def topics_of(self, namespace: str) -> list[Topic]:
        """Return a namespace's topics, sorted by name; NotFoundError when there is no such namespace."""
        self.namespace(namespace)
        return [topic for topic in self.all_topics() if topic.name.namespace == namespace]

    def _names_in(self, namespace: str) -> list[TopicName]:
        """Return the names of a namespace's topics, those too that are just being made, sorted."""
        names = {topic.name for topic in self.topics.values()} | self._making
        return sorted(name for name in names if name.namespace == namespace)

    def namespace_policies(self, namespace: str) -> CompletePolicies:
        """Return the policies that hold for a namespace's topics unless they say otherwise."""
        return merge(self.namespace(namespace).policies, Policies(), self.settings.policies)

    async def set_namespace_policies(self, namespace: str, policies: Policies) -> None:
        """Give a namespace other policies; they reach its topics at once."""
        self.namespace(namespace)
        self._check_policies(policies)
        record = NamespaceRecord(policies=policies)
        async with self._setting:
            require_table(merge(policies, Policies(), self.settings.policies), f"namespace {namespace}")
            for hosted in self.topics_of(namespace):
                if hosted.reliable:
                    merged = merge(policies, hosted.record.policies, self.settings.policies)
                    require_table(merged, f"topic {hosted.text}")
            await self.records.save_namespace(namespace, record)
            self.namespaces[namespace] = record
        log.info("namespace_policies_set", namespace=namespace, policies=policies.to_json())
        for name in self._names_in(namespace):
            async with self.changing(name):
                topic = self.topics.get(str(name))
                if topic is None or topic.closing or topic.problem is not None:
                    continue
                effective = self.effective(topic.name, topic.record)
                try:
                    if topic.reliable:
                        await apply_storage_policies(self.factory, topic.name, topic.stored, effective)
                except IsterError as error:
                    # It takes no messages now, and gets its policies when it is opened again.
                    log.warning("policies_not_applied", topic=topic.text, cause=str(error))
                topic.set_policies(effective)

    def _check_policies(self, policies: Policies) -> None:
        """Refuse what this broker could not keep, whatever else is said."""
        if isinstance(self.factory, LakeStorageFactory):
            refuse()
        if policies.ack_level == "cloud" and not self.factory.config.upload.enabled:
            raise PreconditionError("ack_level cloud needs the uploader; enable wal_cloud.uploader")

    async def ensure_namespace(self, namespace: str) -> None:
        """Make a namespace that is not there yet."""
        check_namespace(namespace)
        if namespace not in self.namespaces:
            record = NamespaceRecord()
            await self.records.save_namespace(namespace, record)
            self.namespaces[namespace] = record

    # --- what topics ask of us (topic.Home) ------------------------------------------------------------------------------

    def wall_us(self) -> int:
        """Return the wall-clock time in microseconds."""
        return self._clock.wall_us()

    async def wait_in_table(self, topic: Topic, upto: int) -> None:
        """Return once the topic's table has everything below `upto`; the pipeline is woken for it."""
        timeout_s = topic.policies.ack_timeout_ms / 1000
        await self.pipelines.wait_upto(topic.name, topic.generation, upto, timeout_s)

    async def store_dead_letter(
        self,
        topic: Topic,
        subscription: str,
        letter: DeadLetter,
        policy: FailurePolicy,
        doubt: LetterUnknownError | None = None,
    ) -> None:
        """Publish a copy to the policy's topic; returns once it is in that topic's log, whatever level it waits for.

        LetterUnknownError when it may be stored; give it back with the next try, which looks first then.
        """
        if policy.dead_letter_topic is None:
            raise PreconditionError(f"subscription {subscription} has no dead letter topic")
        name = TopicName.parse(policy.dead_letter_topic)
        target = await self.find_or_create_topic(name, reliable=True)
        if not target.reliable:
            raise PreconditionError(f"dead letter topic {name} is not reliable: what is published there is not stored")
        message = letter_message(topic.text, subscription, letter, policy, target.text)
        start = target.next_offset
        if doubt is not None and doubt.target == target.text:
            start = doubt.start
            if await is_stored(target, start, message):
                return
        try:
            await target.publish(message)
        except LevelNotReachedError:
            pass  # it is in the log, and goes on from there by itself: storing it again would make a second copy
        except UnknownOutcomeError as error:
            raise LetterUnknownError(target.text, start, str(error)) from error

    def met_problem(self) -> None:
        """Open topics again soon that have a problem: someone has asked for one."""
        self._retries.hurry()

    async def cursors_taken(self, topic: Topic, error: CursorTakenError) -> bool:
        """Begin anew where someone else has saved progress; False where no other broker may."""
        log.warning("cursors_taken", topic=topic.text, cause=str(error))
        if self.holding is not None:
            await self.holding.cursors_taken(topic)
        return self.holding is not None

    # --- subscriptions and consumers that go -------------------------------------------------------------------------

    async def subscription(self, topic: Topic, name: str) -> Subscription | None:
        """Return a subscription to be changed, None when there is none; where it could be served elsewhere, it is held now.

        The caller is alone in changing the topic.
        """
        if self.holding is None or not topic.reliable:
            return topic.subscriptions.get(name)
        found = await self.holding.take_up(topic, name)
        if found is None:
            await self.holding.give_up(topic, name)
        return found

    def check_served(self, topic: Topic, subscription: Subscription) -> None:
        """Raise if a subscription was lost while something was written: another broker may serve it now."""
        if topic.subscriptions.get(subscription.name) is not subscription:
            raise hold_lost(topic.text, subscription.name)

    async def forget_consumers(self, topic: Topic, subscription: Subscription, gone: list[Consumer]) -> None:
        """Forget some consumers, durably; one that comes back while that is written stays."""
        while True:
            names = {consumer.name for consumer in gone}
            kept = {name: filters for name, filters in subscription.record.consumers.items() if name not in names}
            record = subscription.record.model_copy(update={"consumers": kept})
            await self.records.save_subscription(topic.name, subscription.name, record)
            now = self._loop.time()
            still = [consumer for consumer in gone if consumer.is_forgotten(now, self.settings.consumer_expiry_s)]
            if len(still) == len(gone):
                break
            gone = still
        subscription.record = record
        for consumer in gone:
            self.consumers.pop(consumer.id, None)
            if consumer.name in subscription.consumers:
                subscription.leave(consumer)
            log.info("consumer_expired", topic=topic.text, subscription=subscription.name, consumer=consumer.name)

    async def remove_subscription(self, topic: Topic, name: str) -> None:
        """Forget a subscription with its progress."""
        subscription = topic.subscriptions[name]
        await self.records.forget_subscription(topic.name, name)
        self.check_served(topic, subscription)
        del topic.subscriptions[name]
        subscription.close(NotFoundError(f"subscription {name} of topic {topic.text} was removed"))
        for consumer in subscription.consumers.values():
            self.consumers.pop(consumer.id, None)
        if isinstance(subscription, ReliableSubscription):
            await topic.stored.forget_cursor(name)
            if self.holding is not None:
                await self.holding.give_up(topic, name)
        log.info("subscription_removed", topic=topic.text, subscription=name)


def _change_key(name: TopicName) -> str:
    part = partition_of(name)
    return str(name if part is None else part[0])


def check_namespace(namespace: str) -> None:
    """Refuse what cannot be a namespace."""
    TopicName.parse(f"/{namespace}/x")  # the same words as for a topic, of which it is a part
    if len(namespace) > NAMESPACE_CHARS_MAX:
        raise InvalidRequestError(f"namespace has {len(namespace)} characters, more than {NAMESPACE_CHARS_MAX}")
