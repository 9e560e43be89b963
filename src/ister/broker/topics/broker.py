"""The broker: recovery and drain, creation and deletion of topics, and their policies.

Every change is written to metadata before it is answered.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from ister.broker.settings import NAMESPACES
from ister.broker.topics.dead_letters import UnknownDeadLetterError, dead_letter_message, is_stored
from ister.broker.topics.index import TopicIndex
from ister.broker.topics.namespaces import Namespaces
from ister.broker.topics.open_topic import TopicRetries, apply_storage_policies, require_table
from ister.broker.topics.ownership import SubscriptionOwnership
from ister.broker.topics.records import NamespaceRecord, Records, SubscriptionRecord, TopicRecord
from ister.broker.topics.subscriptions import Subscriptions, sweep
from ister.broker.topics.table_progress import Pipelines
from ister.broker.topics.topic import Topic
from ister.core.errors import (
    AlreadyExistsError,
    BusyError,
    IsterError,
    LevelNotReachedError,
    NotFoundError,
    PreconditionError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from ister.core.names import TopicName, partition_of
from ister.core.ownership.subscriptions import read_only_error
from ister.ports.clock import SystemClock
from ister.schemas import TopicSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ister.broker.registry.store import SchemaStore
    from ister.broker.settings import BrokerSettings
    from ister.broker.topics.topic import Stored
    from ister.config.policies import Policies
    from ister.core.dispatch.dispatch import DeadLetter
    from ister.core.dispatch.failure import FailurePolicy
    from ister.ports.clock import Clock
    from ister.storage.factory import WalStorageFactory
    from ister.storage.lake_factory import LakeStorageFactory

log = structlog.get_logger()

HOST_AT_ONCE = 16
"""How many topics are opened concurrently at start; each may have to read its cursors."""
CLOSING_S = 1.0
"""Part of the drain timeout that is reserved for closing the logs; a store that hangs would use all of it."""


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
        ownership: Callable[[Broker], SubscriptionOwnership] = SubscriptionOwnership,
    ) -> None:
        self.settings = settings
        self.url = settings.broker_url or ""
        self.admin_url = self.metrics_url = ""
        self.schemas = schemas
        self.topics = TopicIndex()
        self.namespaces = Namespaces(records, settings.policies, self.topics)
        self.when_forgotten: list[Callable[[str], None]] = []
        """Called with the name of each topic that is removed."""
        self.factory = factory
        self.records = records
        self.pipelines = Pipelines(records)
        self.ownership = ownership(self)
        self.subscriptions = Subscriptions(records, self.ownership, settings.consumer_expiry_s)
        if not factory.read_only:
            factory.set_known_upto(lambda topic, generation: self.pipelines.upto(topic, generation) or 0)
        self.clock = clock or SystemClock()
        self._sweeping: asyncio.Task[None] | None = None
        self.retries = TopicRetries(self)
        self._loop = asyncio.get_running_loop()

    # --- starting and stopping ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover every topic and every subscription; those of a read-only broker are opened by cluster/read_only.py."""
        await self.namespaces.load()
        await self.pipelines.load()
        if not self.factory.read_only:
            await self._recover()
        self._sweeping = asyncio.create_task(sweep(self))
        self.retries.start()
        log.info(
            "broker_recovered",
            cluster_name=self.settings.cluster_name,
            topics=len(self.topics),
            consumers=len(self.subscriptions.consumers),
        )

    async def _recover(self) -> None:
        """Open every topic that has a record or a log; finish what a crash interrupted."""
        for namespace in (*NAMESPACES, *self.settings.bootstrap_namespaces):
            await self.namespaces.ensure(namespace)
        known = await self.records.topics()
        subscriptions = await self.records.subscriptions()
        stored = {*await self.factory.start(), *self.factory.problems}
        gate = asyncio.Semaphore(HOST_AT_ONCE)

        async def host(name: TopicName, record: TopicRecord) -> None:
            async with gate:
                await self.host(name, record, subscriptions.get(name, {}), self.factory.problems.get(name))

        found: dict[TopicName, TopicRecord] = {}
        for name in sorted({*known, *stored}):
            record = known.get(name)
            if record is None:
                # A log that another tool created, or a crash came before its record was written.
                record = TopicRecord(reliable=True)
                await self.namespaces.ensure(name.namespace)
                await self.records.save_topic(name, record)
            if record.deleting:
                try:
                    await self._remove_stored(name, reliable=record.reliable, in_background=True)
                except IsterError as error:
                    log.warning("topic_not_removed", topic=str(name), cause=str(error))
                    # Hosted, or it could be created again with its old messages.
                    (await self.host(name, record, {}, error)).close()
            else:
                found[name] = record
        try:
            async with asyncio.TaskGroup() as group:
                for name, record in found.items():
                    group.create_task(host(name, record))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    def set_addresses(self, url: str, admin_url: str = "", metrics_url: str = "") -> None:
        """Set the addresses of the ports; a configured `broker_url` stays."""
        self.url = self.settings.broker_url or url
        self.admin_url, self.metrics_url = admin_url, metrics_url

    async def drain(self, timeout_s: float) -> None:
        """End every stream, save every cursor and close every topic; uploads get the rest of the time."""
        ends = self._loop.time() + timeout_s
        self.topics.begin_drain()
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        await self.retries.stop()
        for topic in self.topics.values():
            topic.close()
        results = await asyncio.gather(
            *(topic.settle_cursors() for topic in self.topics.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                log.error("cursors_not_saved", cause=str(result))
        await self.ownership.close()
        closing_s = min(CLOSING_S, timeout_s / 5)
        await self.factory.shutdown(max(0.0, ends - closing_s - self._loop.time()))

    async def host(
        self,
        name: TopicName,
        record: TopicRecord,
        subscriptions: Mapping[str, SubscriptionRecord],
        problem: IsterError | None = None,
        storage: Stored | None = None,
    ) -> Topic:
        """Add a topic, and open its subscriptions and its storage, unless that is open already or has a `problem`."""
        topic = Topic(name, record, self.namespaces.effective(name, record), self.settings, self)
        topic.dormant.update(subscriptions)
        if problem is None:
            await self._open_storage(topic, storage)
        else:
            topic.set_storage(None, problem)
            log.error("topic_has_problem", topic=topic.text, cause=str(problem))
        self.topics.add(topic)
        return topic

    async def _open_storage(self, topic: Topic, storage: Stored | None = None) -> bool:
        """Open a topic's storage and its subscriptions; on an error set the topic's problem and return False."""
        policies = self.namespaces.effective(topic.name, topic.record)
        cursors: Mapping[str, int] = {}
        problem: IsterError | None = None
        if topic.reliable:
            try:
                storage = storage or await self.factory.for_topic(topic.name)
                await apply_storage_policies(self.factory, topic.name, storage, policies)
                if not storage.read_only and (topic.dormant or policies.retention_policy != "none"):
                    cursors = await storage.cursors()
                    orphans = [name for name in cursors if name not in topic.dormant]
                    await self.ownership.delete_orphans(topic.name, storage, orphans)
            except IsterError as error:
                problem = error
            except OSError as error:
                problem = BusyError(error.strerror or "the disk refused")
        topic.set_policies(policies)
        topic.set_storage(storage, problem)
        if problem is not None:
            log.error("topic_has_problem", topic=topic.text, cause=str(problem))
            return False
        for name, record in list(topic.dormant.items()):
            if record.made and topic.reliable:
                self.ownership.restore(topic, name, record, cursors.get(name))
            elif record.made:
                self.subscriptions.open(topic, name, record)
        return True

    async def retry(self, topic: Topic) -> None:
        """Retry to open a topic that has a problem, or to delete it."""
        async with self.topics.changing(topic.name):
            if self.topics.get(topic.text) is not topic or topic.problem is None:
                return
            if topic.record.deleting:
                await self._delete(topic)
            elif await self._open_storage(topic):
                log.info("topic_opened_later", topic=topic.text)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: TopicName, *, reliable: bool, subject: str | None = None) -> Topic:
        """Create a topic; raise AlreadyExistsError if it, its base or a partition of it exists."""
        async with self.topics.changing(name):
            if str(name) in self.topics:
                raise AlreadyExistsError(f"topic {name} exists already")
            return await self._create(name, reliable=reliable, subject=subject)

    async def find_or_create_topic(self, name: TopicName, *, reliable: bool, subject: str | None = None) -> Topic:
        """Return a topic, created if it does not exist and auto_create_topics allows it."""
        if self.factory.read_only:
            raise read_only_error()
        async with self.topics.changing(name):
            found = self.topics.get(str(name))
            if found is not None:
                return found
            if not self.settings.auto_create_topics:
                raise NotFoundError(f"topic {name} not found, and this broker does not make topics by itself")
            return await self._create(name, reliable=reliable, subject=subject)

    async def create_partitioned(
        self, base: TopicName, count: int, *, reliable: bool, subject: str | None = None
    ) -> list[Topic]:
        """Create all partitions of a topic, or none."""
        async with self.topics.changing(base):
            if self.topics.partitions(base):
                raise AlreadyExistsError(f"topic {base} exists already")
            made: list[Topic] = []
            try:
                for number in range(count):
                    name = TopicName(base.namespace, f"{base.topic}-part-{number}")
                    made.append(await self._create(name, reliable=reliable, subject=subject))
            except BaseException:
                for topic in made:
                    await self._delete(topic)
                raise
            return made

    async def _create(self, name: TopicName, *, reliable: bool, subject: str | None) -> Topic:
        self._check_creatable(name)
        self.topics.creating.add(name)
        try:
            created_at_ms = self.clock.wall_us() // 1000
            record = TopicRecord(
                reliable=reliable, topic_schema=TopicSchema(subject=subject), created_at_ms=created_at_ms
            )
            # A delayed write of another broker may have left one of a deleted topic of this name.
            await self.records.forget_subscriptions(name)
            # The log before its record: a record without a log is a broken topic.
            storage = await self.factory.for_topic(name) if reliable else None
            await self.records.save_topic(name, record)
            topic = await self.host(name, record, {}, storage=storage)
        finally:
            self.topics.creating.discard(name)
        topic.check()
        log.info("topic_created", topic=str(name), reliable=reliable)
        return topic

    def _check_creatable(self, name: TopicName) -> None:
        """Raise the reason why a topic cannot be created."""
        part = partition_of(name)
        if part is not None and str(part[0]) in self.topics:
            raise AlreadyExistsError(f"topic {part[0]} exists without partitions, so {name} cannot be one of them")
        if part is None and self.topics.is_partitioned(name):
            raise AlreadyExistsError(f"topic {name} exists already, with partitions")
        if name.namespace not in self.namespaces:
            raise NotFoundError(f"namespace {name.namespace} not found; create it first")

    def check_dead_letter_topic(self, name: TopicName) -> None:
        """Raise PreconditionError if `store_dead_letter` could not find or create a topic.

        A read-only broker stores no dead letters, so only the names are checked there.
        """
        found = self.topics.get(str(name))
        if found is not None:
            if not found.reliable:
                raise PreconditionError(f"dead_letter_topic {name} is not reliable: it would not keep what it gets")
            return
        try:
            self._check_creatable(name)
        except (AlreadyExistsError, NotFoundError) as error:
            hint = "; name one of its partitions" if self.topics.is_partitioned(name) else ""
            raise PreconditionError(f"dead_letter_topic {name} cannot take messages: {error}{hint}") from None
        if not self.factory.read_only and not self.settings.auto_create_topics:
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
        async with self.topics.changing(name):
            deleted = [self.topics[text] for text in self.topics.partitions(name)]
            if not deleted:
                raise NotFoundError(f"topic {name} not found")
            for topic in deleted:
                await self._delete(topic)

    async def _delete(self, topic: Topic) -> None:
        """Delete a topic: mark its record, delete its data, then its record. Idempotent."""
        record = topic.record.model_copy(update={"deleting": True})
        await self.records.save_topic(topic.name, record)
        topic.update(record)
        topic.close(NotFoundError(f"topic {topic.text} was deleted"))
        self.subscriptions.forget_topic(topic)
        try:
            await self._remove_stored(topic.name, reliable=topic.reliable)
        except IsterError as error:
            topic.set_problem(error)
            self.retries.retry_soon()
            raise
        await self.ownership.release_topic(topic)
        self.forget(topic)
        log.info("topic_removed", topic=topic.text)

    def forget(self, topic: Topic) -> None:
        """Remove a topic that is closed."""
        self.subscriptions.forget_topic(topic)
        self.topics.remove(topic)
        for forget in self.when_forgotten:
            forget(topic.text)

    async def _remove_stored(self, name: TopicName, *, reliable: bool, in_background: bool = False) -> None:
        """Delete the stored data of a topic; with `in_background` its objects may be deleted later."""
        if reliable:
            with suppress(UnknownTopicError):  # deleted by an earlier attempt
                await self.factory.delete_topic(name, in_background=in_background)
        await self.records.forget_topic(name)
        self.pipelines.forget(name)

    async def set_topic_policies(self, name: TopicName, policies: Policies) -> None:
        """Change a topic's own policies."""
        self._check_policies(policies)
        async with self.topics.changing(name), self.namespaces.changing:
            topic = self.topics.find(str(name))
            record = topic.record.model_copy(update={"policies": policies})
            effective = self.namespaces.effective(name, record)
            if topic.reliable:
                require_table(effective, f"topic {topic.text}")
                await apply_storage_policies(self.factory, name, topic.stored, effective)
            await self.records.save_topic(name, record)
            topic.update(record, effective)
            log.info("topic_policies_set", topic=topic.text, policies=policies.to_json())

    # --- schema bindings, for the schema registry ---------------------------------------------------------------------

    async def schema_of(self, topic: TopicName) -> TopicSchema:
        """Return a topic's schema binding."""
        return self.topics.find(str(topic)).record.topic_schema

    async def change_schema(self, topic: TopicName, change: Callable[[TopicSchema], TopicSchema]) -> TopicSchema:
        """Apply `change` to a topic's schema binding, durably unless it returns its argument; return the binding."""
        async with self.topics.changing(topic):
            found = self.topics.find(str(topic))
            schema = change(found.record.topic_schema)
            if schema is not found.record.topic_schema:
                record = found.record.model_copy(update={"topic_schema": schema})
                await self.records.save_topic(topic, record)
                found.update(record)
            return schema

    async def set_namespace_policies(self, namespace: str, policies: Policies) -> None:
        """Change a namespace's policies; they apply to its topics at once."""
        self.namespaces.find(namespace)
        self._check_policies(policies)
        async with self.namespaces.changing:
            require_table(self.namespaces.merged(policies), f"namespace {namespace}")
            for hosted in self.topics.sorted(namespace):
                if hosted.reliable:
                    require_table(self.namespaces.merged(policies, hosted.record.policies), f"topic {hosted.text}")
            await self.namespaces.save(namespace, NamespaceRecord(policies=policies))
        log.info("namespace_policies_set", namespace=namespace, policies=policies.to_json())
        for name in self.topics.names_in(namespace):
            async with self.topics.changing(name):
                topic = self.topics.get(str(name))
                if topic is None or topic.closing or topic.problem is not None:
                    continue
                effective = self.namespaces.effective(topic.name, topic.record)
                try:
                    if topic.reliable:
                        await apply_storage_policies(self.factory, topic.name, topic.stored, effective)
                except IsterError as error:
                    # The topic takes no messages now; its policies are applied when it is opened again.
                    log.warning("policies_not_applied", topic=topic.text, cause=str(error))
                topic.set_policies(effective)

    def _check_policies(self, policies: Policies) -> None:
        """Raise if this broker cannot apply these policies."""
        if self.factory.read_only:
            raise read_only_error()
        if policies.ack_level == "cloud" and not self.factory.config.upload.enabled:
            raise PreconditionError("ack_level cloud needs the uploader; enable wal_cloud.uploader")

    # --- dead letters -------------------------------------------------------------------------------------------------

    async def store_dead_letter(
        self,
        topic: Topic,
        subscription: str,
        letter: DeadLetter,
        policy: FailurePolicy,
        doubt: UnknownDeadLetterError | None = None,
    ) -> None:
        """Publish a copy to the policy's topic; return once it is in that topic's log, whatever its acknowledgement level.

        After a UnknownDeadLetterError pass it as `doubt` to the next attempt, which then looks for the copy first.
        """
        if policy.dead_letter_topic is None:
            raise PreconditionError(f"subscription {subscription} has no dead letter topic")
        name = TopicName.parse(policy.dead_letter_topic)
        target = await self.find_or_create_topic(name, reliable=True)
        if not target.reliable:
            raise PreconditionError(f"dead letter topic {name} is not reliable: what is published there is not stored")
        message = dead_letter_message(topic.text, subscription, letter, policy, target.text)
        start = target.next_offset
        if doubt is not None and doubt.target == target.text:
            start = doubt.start
            if await is_stored(target, start, message):
                return
        try:
            await target.publish(message)
        except LevelNotReachedError:
            pass  # it is in the log; storing it again would make a second copy
        except UnknownOutcomeError as error:
            raise UnknownDeadLetterError(target.text, start, str(error)) from error
