"""Names, lookup and producing by bare gRPC: each refusal has the status that the specification gives."""

import asyncio
import time

import grpc
import pytest

from interop.official import Official, numbered, payloads
from interop.raw import EXCLUSIVE, api, once_allowed, refused
from ister.broker.services.producer import ATTRIBUTES_MAX

BAD_NAMES = [
    "", "/", "//", "topic", "/default", "/default/", "//topic", "default/topic", "/default/topic/", "/default/a/b",
    "/default/a b", "/default/ä", "/default/a.b", "/default/..", "/../etc", "/default/a\n", "/default/a\x00",
    "/default/" + "a" * 300,
]  # fmt: skip
INVALID = grpc.StatusCode.INVALID_ARGUMENT
MESSAGE_BYTES_MAX = 4_190_208
"""What docs/config.md says of broker.message_bytes_max."""


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
async def test_a_malformed_name_is_refused_wherever_it_comes(broker, name):
    async with broker.raw() as raw:
        for call in (
            raw.create_producer(name),
            raw.subscribe(name, "sub"),
            raw.lookup(name),
            raw.ask("CreateTopic", name=name, dispatch_strategy=1),
            raw.ask("CreatePartitionedTopic", base_name=name, partitions=2, dispatch_strategy=1),
        ):
            await refused(INVALID, call)


@pytest.mark.parametrize("name", ["/default/A", "/default/0", "/default/_-_", "/default/" + "x" * 200])
async def test_a_name_of_letters_digits_and_dashes_is_taken(broker, name):
    async with broker.raw() as raw:
        await raw.create_producer(name)
        assert await raw.partitions(name) == [name]


# --- discovery --------------------------------------------------------------------------------------------------------


async def test_lookup_gives_an_address_with_its_scheme_and_echoes_the_request(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        answer = await raw.lookup(topic)
        assert answer.request_id == 9
        assert answer.response_type == api.TopicLookupResponse.Connect
        assert (answer.broker_url, answer.connect_url, answer.proxy) == (broker.url, broker.url, False)


async def test_an_unknown_topic_is_not_found_and_has_no_partitions(broker, topic):
    async with broker.raw() as raw:
        await refused(grpc.StatusCode.NOT_FOUND, raw.lookup(topic))
        assert await raw.partitions(topic) == []


# --- creating a producer ----------------------------------------------------------------------------------------------


async def test_a_producer_makes_its_topic_and_the_same_name_has_the_same_id(broker, topics):
    one, two = topics(2)
    async with broker.raw() as raw:
        first = await raw.create_producer(one, "a")
        assert await raw.create_producer(one, "a") == first
        others = {await raw.create_producer(one, "b"), await raw.create_producer(two, "a")}
        assert len({first} | others) == 3


async def test_the_other_dispatch_strategy_is_a_failed_precondition(broker, topics):
    reliable, volatile = topics(2)
    async with broker.raw() as raw:
        await raw.create_producer(reliable)
        await raw.create_producer(volatile, dispatch_strategy=api.NonReliable)
        for topic, wrong in ((reliable, api.NonReliable), (volatile, api.Reliable)):
            await refused(
                grpc.StatusCode.FAILED_PRECONDITION, raw.create_producer(topic, "other", dispatch_strategy=wrong)
            )


async def test_a_namespace_that_is_not_there_is_not_found(broker):
    async with broker.raw() as raw:
        await refused(grpc.StatusCode.NOT_FOUND, raw.create_producer("/nowhere/topic"))
        await refused(grpc.StatusCode.NOT_FOUND, raw.ask("CreateTopic", name="/nowhere/topic", dispatch_strategy=1))


async def test_without_auto_creation_only_the_admin_makes_topics_and_bootstrap_namespaces_exist(own_broker, topic):
    broker = own_broker({"auto_create_topics": False, "bootstrap_namespaces": ["team-a", "team-b"]})
    async with broker.raw() as raw:
        assert {"default", "system", "team-a", "team-b"} == {*(await raw.ask("ListNamespaces")).namespaces}
        await refused(grpc.StatusCode.NOT_FOUND, raw.create_producer(topic))
        await raw.create_topic(topic)
        await raw.create_producer(topic)


async def test_enums_that_nobody_knows_are_refused(broker, topics):
    topic, other = topics(2)
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await refused(INVALID, raw.create_producer(other, dispatch_strategy=7))
        await refused(INVALID, raw.create_producer(topic, producer_access_mode=7))
        await refused(INVALID, raw.ask("CreateTopic", name=other, dispatch_strategy=7))
        assert await raw.partitions(other) == []


async def test_a_producer_without_a_name_is_refused(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await refused(INVALID, raw.create_producer(topic, ""))


async def test_an_exclusive_producer_keeps_others_out(broker, topic):
    async with broker.raw() as raw:
        first = await raw.create_producer(topic, "first", producer_access_mode=api.Exclusive)
        await refused(grpc.StatusCode.FAILED_PRECONDITION, raw.create_producer(topic, "second"))
        assert await raw.create_producer(topic, "first", producer_access_mode=api.Exclusive) == first


async def test_producers_are_limited_and_a_silent_one_is_forgotten(broker, topics):
    topic, other = topics(2)
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await raw.set_topic(topic, max_producers_per_topic=2)
        for name in ("a", "b"):
            await raw.create_producer(topic, name)
        await refused(grpc.StatusCode.RESOURCE_EXHAUSTED, raw.create_producer(topic, "c"))
        await raw.create_producer(topic, "a")
        await raw.create_producer(other, "c")
        await once_allowed(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: raw.create_producer(topic, "c"))


# --- sending ----------------------------------------------------------------------------------------------------------


async def test_a_message_without_its_id_is_refused(broker):
    async with broker.raw() as raw:
        await refused(INVALID, raw.producing.SendMessage(api.StreamMessage(payload=b"x"), timeout=30))


async def test_an_unknown_producer_is_not_found(broker, topics):
    topic, other = topics(2)
    async with broker.raw() as raw:
        known = await raw.create_producer(topic)
        for number in (0, 1, known ^ 1 << 50, (1 << 64) - 1):
            await refused(grpc.StatusCode.NOT_FOUND, raw.send(topic, number, b"x"))
        await refused(grpc.StatusCode.NOT_FOUND, raw.send("/default/nowhere", known, b"x"))
        await raw.create_topic(other)
        with pytest.raises(grpc.aio.AioRpcError):
            await raw.send(other, known, b"a producer of another topic")


async def test_s11_the_largest_payload_is_bounded_by_policy(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        await raw.set_topic(topic, max_message_size=1000)
        stream = await raw.consume(topic, "sub")
        for size in (999, 1000):
            await raw.send(topic, producer, bytes(size))
            assert len((await stream.next()).payload) == size
        await refused(INVALID, raw.send(topic, producer, bytes(1001)))
        await stream.nothing()
        stream.cancel()


async def test_s11_the_largest_message_reaches_an_official_client_and_one_byte_more_is_refused(broker, topic):
    async with broker.raw() as raw, Official(broker) as client:
        producer = await raw.create_producer(topic)
        consumer = await client.consumer(topic, "s" * 200)

        def message_of(size: int) -> api.StreamMessage:
            """Return a message of so many bytes in all."""
            found = api.StreamMessage(msg_id=api.MsgID(producer_id=producer, topic_name=topic), producer_name="raw")
            found.payload = bytes(MESSAGE_BYTES_MAX)
            found.payload = bytes(MESSAGE_BYTES_MAX - (found.ByteSize() - size))
            assert found.ByteSize() == size
            return found

        for size in (MESSAGE_BYTES_MAX - 1, MESSAGE_BYTES_MAX):
            request = message_of(size)
            await raw.producing.SendMessage(request, timeout=30)
            assert payloads(await consumer.take(1)) == [request.payload]
        await refused(INVALID, raw.producing.SendMessage(message_of(MESSAGE_BYTES_MAX + 1), timeout=30))
        await consumer.nothing()


async def test_the_envelope_counts_too(broker, topic):
    """A message that would be larger than a client's four MiB with everything around it is refused."""
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        for fields in (
            {"payload": bytes(4 << 20)},
            {"payload": b"", "attributes": {f"key-{n}": "x" * 60_000 for n in range(80)}},
            {"payload": bytes(5 << 20)},
            {"payload": bytes(15 << 20)},
            {"payload": bytes(70 << 20)},
        ):
            payload = fields.pop("payload")
            await refused(INVALID, raw.send(topic, producer, payload, **fields))
        await raw.send(topic, producer, b"the connection is still good")


async def test_absurd_attributes_and_keys_are_refused_or_kept_whole(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        for fields in (
            {"attributes": {"": ""}},
            {"attributes": {"k" * 60_000: "v"}},
            {"attributes": {f"k{n}": "v" for n in range(1000)}},
            {"routing_key": "k" * 60_000},
            {"producer_name": "p" * 60_000},
            {"publish_time": (1 << 64) - 1},
            {"schema_id": (1 << 64) - 1, "schema_version": (1 << 32) - 1},
        ):
            (answer,) = await asyncio.gather(raw.send(topic, producer, b"odd", **fields), return_exceptions=True)
            if answer is not None:
                assert answer.code() is INVALID, answer.details()
                continue
            message = await stream.next()
            await raw.ack(message, "sub")
            for name, value in fields.items():
                found = getattr(message, name)
                assert (dict(found) if name == "attributes" else found) == value
        stream.cancel()


async def test_s11_a_message_has_so_many_attributes_and_not_one_more(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        for count in (ATTRIBUTES_MAX - 1, ATTRIBUTES_MAX):
            attributes = {f"k{number}": f"v{number}" for number in range(count)}
            await raw.send(topic, producer, b"many", attributes=attributes)
            message = await stream.next()
            assert dict(message.attributes) == attributes
            await raw.ack(message, "sub")
        more = {f"k{number}": "" for number in range(ATTRIBUTES_MAX + 1)}
        await refused(INVALID, raw.send(topic, producer, b"too many", attributes=more), saying=str(ATTRIBUTES_MAX))
        await stream.nothing()
        stream.cancel()


async def test_a_rate_limit_slows_and_says_so(broker, topic):
    """A second's worth passes at once, and as much again in each second that it took; however long that was."""
    rate = 20
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        began = time.monotonic()
        await raw.set_topic(topic, max_publish_rate=rate)
        answers = await asyncio.gather(
            *(raw.send(topic, producer, payload) for payload in numbered(200)), return_exceptions=True
        )
        spent = time.monotonic() - began
        refusals = [answer for answer in answers if answer is not None]
        assert {error.code() for error in refusals} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert rate <= len(answers) - len(refusals) <= rate * (1 + spent)
        await once_allowed(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: raw.send(topic, producer, b"later"))


async def test_the_offset_is_told_behind_the_answer(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        for expected in range(3):
            call = raw.producing.SendMessage(
                api.StreamMessage(msg_id=api.MsgID(producer_id=producer, topic_name=topic), payload=b"x"), timeout=10
            )
            await call
            found = dict([*(await call.initial_metadata()), *(await call.trailing_metadata())])
            told = [value for key, value in found.items() if "offset" in key]
            assert told == [str(expected)]


async def test_a_publisher_never_waits_for_a_consumer_that_does_not_read(broker, topic):
    async with broker.raw() as raw, broker.raw() as lazy:
        await raw.create_topic(topic)
        stream = await lazy.consume(topic, "sub")
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, [bytes(1000)] * 300)
        assert [m.msg_id.topic_offset for m in await stream.take(10)] == list(range(10))
        stream.cancel()
