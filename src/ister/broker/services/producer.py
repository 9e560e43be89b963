"""danube.ProducerService: attach producers, receive messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from danube.proto import DanubeApi_pb2 as pb
from danube.proto.DanubeApi_pb2 import MessageResponse

from ister.broker.methods import Handlers
from ister.broker.services.wire import is_reliable
from ister.core.errors import InvalidRequestError, LevelNotReachedError, NotFoundError, PreconditionError
from ister.core.histogram import Histogram
from ister.core.message import NO_ATTRIBUTES, MsgID, StreamMessage
from ister.core.names import TopicName, check_name
from ister.core.wire_keys import GENERATION_KEY, OFFSET_KEY, PENDING_LEVEL_KEY

if TYPE_CHECKING:
    from ister.broker.registry.validation import Validation
    from ister.broker.topics.broker import Broker
    from ister.broker.topics.topic import Topic
    from ister.transport.service import Call

ATTRIBUTES_MAX = 1024
SAMPLED = 16
"""One message of this many is timed, to save a clock reading for the others."""
SEND_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 5000, 30_000)


class ProducerService(Handlers):
    """The handlers of danube.ProducerService."""

    descriptors = (pb.DESCRIPTOR.services_by_name["ProducerService"],)

    def __init__(self, broker: Broker, validation: Validation) -> None:
        super().__init__(broker)
        self.send_ms = Histogram(SEND_BOUNDS_MS)
        """Latency of a sample of messages."""
        self._sent = 0
        self._validation = validation
        broker.when_forgotten.append(validation.forget)

    async def create_producer(self, request: pb.ProducerRequest, call: Call) -> pb.ProducerResponse:
        """Attach a producer to a topic; the same name gets the same id.

        A topic that does not exist is created, unless the client means one generation of it.
        """
        name = TopicName.parse(request.topic_name)
        check_name("producer_name", request.producer_name)
        reliable = is_reliable(request.dispatch_strategy)
        if request.producer_access_mode not in pb.ProducerAccessMode.values():
            raise InvalidRequestError(f"producer_access_mode {request.producer_access_mode} is none of the known ones")
        subject = request.schema_ref.subject if request.HasField("schema_ref") else ""
        broker = self._broker
        topic = broker.topics.get(request.topic_name)
        if topic is None:
            if (wanted := call.header(GENERATION_KEY)) is not None:
                raise NotFoundError(f"topic {name} not found; its generation {wanted} was deleted")
            if subject:
                self._check_registered(subject)
            topic = await broker.find_or_create_topic(name, reliable=reliable, subject=subject or None)
        topic.check()
        _check_generation(topic, call)
        if topic.reliable != reliable:
            has, wants = ("Reliable", "NonReliable") if topic.reliable else ("NonReliable", "Reliable")
            raise PreconditionError(f"topic {name} is {has}; a {wants} producer cannot be attached to it")
        if subject:
            await self._bind(topic, subject)
        exclusive = request.producer_access_mode == pb.ProducerAccessMode.Exclusive
        producer = topic.attach(request.producer_name, exclusive=exclusive)
        call.trail(GENERATION_KEY, str(topic.generation))
        return pb.ProducerResponse(
            request_id=request.request_id, producer_id=producer.id, producer_name=request.producer_name
        )

    async def _bind(self, topic: Topic, subject: str) -> None:
        """Bind a topic to the schema subject of its first producer that has one; raise for another subject."""
        if topic.record.topic_schema.subject is None:
            self._check_registered(subject)
            await self._broker.change_schema(
                topic.name, lambda schema: schema if schema.subject is not None else replace(schema, subject=subject)
            )
        present = topic.record.topic_schema.subject
        if present != subject:
            raise PreconditionError(f"topic {topic.text} has the schema subject {present}; cannot use {subject}")

    def _check_registered(self, subject: str) -> None:
        if not self._broker.schemas.exists(subject):
            raise PreconditionError(f"schema subject {subject} not found; register it first")

    async def send_message(self, request: pb.StreamMessage, call: Call) -> MessageResponse:
        """Store a message; return once it has reached the topic's acknowledgement level."""
        if not request.HasField("msg_id"):
            raise InvalidRequestError("msg_id is missing")
        wire_id = request.msg_id
        topic = self._broker.topics.get(wire_id.topic_name)
        if topic is None:
            raise NotFoundError(f"topic {TopicName.parse(wire_id.topic_name)} not found; create a producer first")
        _check_generation(topic, call)
        number = wire_id.producer_id
        began = topic.producer(number, request.producer_name).seen
        payload = request.payload
        limit = topic.policies.max_message_size
        if limit and len(payload) > limit:
            raise InvalidRequestError(f"payload has {len(payload)} bytes, more than topic {topic.text} takes ({limit})")
        attributes = request.attributes
        if len(attributes) > ATTRIBUTES_MAX:
            raise InvalidRequestError(f"attributes are {len(attributes)}, more than {ATTRIBUTES_MAX}")
        message = StreamMessage(
            payload,
            MsgID(number, wire_id.topic_name, wire_id.broker_addr),
            request.request_id,
            request.publish_time,
            request.producer_name,
            "",
            dict(attributes) if attributes else NO_ATTRIBUTES,
            request.schema_id if request.HasField("schema_id") else None,
            request.schema_version if request.HasField("schema_version") else None,
            request.routing_key if request.HasField("routing_key") else None,
        )
        schema = topic.record.topic_schema
        if schema.subject is not None or schema.validation == "enforce":
            await self._validation.check(topic.text, schema, message)
        try:
            offset = await topic.publish(message)
        except LevelNotReachedError as error:
            call.trail(OFFSET_KEY, str(error.offset - 1))
            call.trail(PENDING_LEVEL_KEY, error.level)
            raise
        if self._sent % SAMPLED == 0:
            self.send_ms.observe((asyncio.get_running_loop().time() - began) * 1000)
        self._sent += 1
        if topic.reliable:
            call.trail(OFFSET_KEY, str(offset))
        return MessageResponse(request_id=request.request_id)


def _check_generation(topic: Topic, call: Call) -> None:
    """Raise PreconditionError if a client expects another generation of the topic."""
    wanted = call.header(GENERATION_KEY)
    if wanted is not None and wanted != str(topic.generation):
        call.trail(GENERATION_KEY, str(topic.generation))
        raise PreconditionError(
            f"topic {topic.text} has generation {topic.generation}, not {wanted[:20]}: it was deleted and created again"
        )
