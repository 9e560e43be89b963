"""What a topic's schema binding lets in."""

import asyncio
import io
import json

import fastavro
import pytest
import structlog

from ister.broker.registry import validation as module
from ister.broker.registry.store import NewSchema, SchemaStore
from ister.broker.registry.validation import WARN_INTERVAL_S, Validation
from ister.broker.threads import ClientThreads
from ister.core.errors import InvalidMessageError, InvalidRequestError, PreconditionError
from ister.core.message import StreamMessage
from ister.ports.metadata import MemoryMetadata
from ister.schemas import Compatibility, SchemaType, TopicSchema, ValidationPolicy

NONE, WARN, ENFORCE = ValidationPolicy.NONE, ValidationPolicy.WARN, ValidationPolicy.ENFORCE
TOPIC = "/default/users"
V1 = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
V2 = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}
GOOD, BAD = b'{"id": 1}', b'{"id": "one"}'


@pytest.fixture
def logs(monkeypatch):
    """Return what is logged."""
    capture = structlog.testing.LogCapture()
    wrapper = structlog.make_filtering_bound_logger(0)
    monkeypatch.setattr(module, "log", structlog.wrap_logger(None, processors=[capture], wrapper_class=wrapper))
    return capture.entries


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A validation over a store in which `users` has the id 1 and `orders` the id 2."""

    def __init__(self, store: SchemaStore) -> None:
        self.store = store
        self.clock = Clock()
        self.validation = Validation(store, monotonic=self.clock)

    async def passes(self, schema: TopicSchema, payload: bytes = GOOD, **message) -> bool:
        try:
            await self.validation.check(TOPIC, schema, StreamMessage(payload, **message))
        except (InvalidRequestError, InvalidMessageError, PreconditionError):
            return False
        return True


def run(test):
    """Run an asynchronous test on a bench."""

    async def main():
        metadata = MemoryMetadata()
        store = SchemaStore(metadata, "/danube-data")
        for subject, definition in (("users", V1), ("orders", V1), ("users", V2)):
            await store.register(
                NewSchema(
                    subject=subject, schema_type=SchemaType.JSON_SCHEMA, definition=json.dumps(definition).encode()
                )
            )
        await test(Bench(store))
        await metadata.close()

    asyncio.run(main())


def bound(policy: ValidationPolicy = WARN, *, payloads: bool = False, subject: str | None = "users") -> TopicSchema:
    return TopicSchema(subject, policy, payloads)


@pytest.mark.parametrize(
    ("policy", "message", "expected"),
    [
        (NONE, {}, True),
        (NONE, {"schema_id": 99}, True),
        (NONE, {"schema_id": 2}, True),
        (WARN, {"schema_id": 1, "schema_version": 1}, True),
        (WARN, {"schema_id": 1}, True),
        (WARN, {}, True),
        (WARN, {"schema_id": 2}, True),
        (WARN, {"schema_id": 1, "schema_version": 9}, True),
        (WARN, {"schema_id": 99}, False),
        (WARN, {"schema_id": 0}, False),
        (ENFORCE, {"schema_id": 1, "schema_version": 1}, True),
        (ENFORCE, {"schema_id": 1, "schema_version": 2}, True),
        (ENFORCE, {"schema_id": 1}, True),
        (ENFORCE, {}, False),
        (ENFORCE, {"schema_id": 2}, False),
        (ENFORCE, {"schema_id": 1, "schema_version": 9}, False),
        (ENFORCE, {"schema_id": 99}, False),
    ],
)
def test_a_message_is_let_in_by_the_policy(policy, message, expected):
    async def test(bench):
        assert await bench.passes(bound(policy), b"not even JSON", **message) is expected

    run(test)


def test_a_topic_without_a_subject_takes_everything_unless_it_enforces():
    async def test(bench):
        for policy in (NONE, WARN):
            assert await bench.passes(bound(policy, subject=None), schema_id=99)
        with pytest.raises(PreconditionError, match="bound to none"):
            await bench.validation.check(TOPIC, bound(ENFORCE, subject=None), StreamMessage(GOOD, schema_id=1))

    run(test)


@pytest.mark.parametrize("policy", [WARN, ENFORCE])
def test_an_invalid_payload_is_refused_under_warn_as_well(policy):
    async def test(bench):
        schema = bound(policy, payloads=True)
        assert await bench.passes(schema, GOOD, schema_id=1, schema_version=1)
        assert not await bench.passes(schema, BAD, schema_id=1, schema_version=1)
        assert not await bench.passes(schema, b"", schema_id=1)
        with pytest.raises(InvalidMessageError, match=r"\$\.id"):
            await bench.validation.check(TOPIC, schema, StreamMessage(BAD, schema_id=1))

    run(test)


def test_payloads_are_not_looked_at_under_none_or_where_nobody_asked():
    async def test(bench):
        assert await bench.passes(bound(NONE, payloads=True), BAD, schema_id=1)
        assert await bench.passes(bound(ENFORCE), BAD, schema_id=1)

    run(test)


def test_under_warn_a_payload_of_an_unknown_schema_is_let_in_unseen():
    async def test(bench):
        assert await bench.passes(bound(WARN, payloads=True), BAD)
        assert await bench.passes(bound(WARN, payloads=True), BAD, schema_id=2)

    run(test)


def test_a_payload_is_checked_against_the_version_that_it_names():
    async def test(bench):
        schema = bound(ENFORCE, payloads=True)
        payload = b'{"id": 1, "name": 5}'
        assert await bench.passes(schema, payload, schema_id=1, schema_version=1)
        assert not await bench.passes(schema, payload, schema_id=1, schema_version=2)
        assert not await bench.passes(schema, payload, schema_id=1), "the latest, when none is named"
        assert not await bench.passes(bound(WARN, payloads=True), GOOD, schema_id=1, schema_version=9)

    run(test)


def test_a_version_that_was_deleted_is_not_accepted_any_more():
    async def test(bench):
        schema = bound(ENFORCE, payloads=True)
        assert await bench.passes(schema, schema_id=1, schema_version=2)
        await bench.store.delete("users", 2)
        assert not await bench.passes(schema, schema_id=1, schema_version=2)

    run(test)


def avro(value: dict) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, value)
    return out.getvalue()


AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}, {"name": "n", "type": "int"}]}
PROTO = b'syntax = "proto3"; message M { string a = 1; int32 n = 2; }'


@pytest.mark.parametrize(
    ("kind", "definition", "good", "bad"),
    [
        ("bytes", b"", [b"", b"\xff\x00"], []),
        ("string", b"", [b"", "grüße".encode()], [b"\xff", "ü".encode()[:1]]),
        ("number", b"", [b"\x00" * 4, b"\x00" * 8], [b"", b"1", b"\x00" * 5, b"12345678901"]),
        ("json", b'{"type": "integer"}', [b"1", b" 1.0 "], [b"", b"1.5", b'"1"', b"{"]),
        ("avro", json.dumps(AVRO).encode(), [avro({"a": "x", "n": 5})], [b"", b'{"a": "x"}', avro({"a": "x", "n": 5}) + b"x"]),
        ("protobuf", PROTO, [b"", b"\x0a\x01x\x10\x05", b"\x18\x01"], [b"\x0a\x05x", b"\x08\x01", b"{}"]),
    ],
)  # fmt: skip
def test_payloads_of_every_type_are_checked(kind, definition, good, bad):
    async def test(bench):
        made, _ = await bench.store.register(
            NewSchema(subject="typed", schema_type=SchemaType.parse(kind), definition=definition)
        )
        schema = bound(ENFORCE, payloads=True, subject="typed")
        for payload in good:
            assert await bench.passes(schema, payload, schema_id=made.schema_id), payload
        for payload in bad:
            assert not await bench.passes(schema, payload, schema_id=made.schema_id), payload

    run(test)


def test_a_large_payload_is_checked_in_a_thread_while_others_go_on(monkeypatch):
    async def test(bench):
        used = []
        run_in_thread = ClientThreads.run

        async def watched(threads, work):
            used.append(len(work.args[0]))
            return await run_in_thread(threads, work)

        monkeypatch.setattr(ClientThreads, "run", watched)
        schema = bound(ENFORCE, payloads=True)
        large = b'{"id": 1, "more": "' + b"x" * 100_000 + b'"}'
        assert await bench.passes(schema, large, schema_id=1)
        assert not await bench.passes(schema, large.replace(b"1", b'"1"', 1), schema_id=1)
        assert await bench.passes(schema, GOOD, schema_id=1)
        assert used == [len(large), len(large) + 2]

    run(test)


def test_warnings_are_counted_always_and_logged_once_a_minute(logs):
    async def test(bench):
        for _ in range(1000):
            await bench.passes(bound())
        await bench.passes(bound(), schema_id=2)
        bench.clock.now += WARN_INTERVAL_S
        await bench.passes(bound())
        assert [(line["event"], line["reason"], line["count"]) for line in logs] == [
            ("schema_not_followed", "missing_schema_id", 1),
            ("schema_not_followed", "subject_mismatch", 1),
            ("schema_not_followed", "missing_schema_id", 1001),
        ]
        assert bench.validation.counters.failed[TOPIC, "missing_schema_id"] == 1001
        assert bench.validation.counters.checked[TOPIC, "warn"] == 1002

    run(test)


def test_refusals_are_counted_and_not_logged(logs):
    async def test(bench):
        schema = bound(ENFORCE, payloads=True)
        await bench.passes(schema)
        await bench.passes(schema, schema_id=99)
        await bench.passes(schema, schema_id=2)
        await bench.passes(schema, schema_id=1, schema_version=9)
        await bench.passes(schema, BAD, schema_id=1)
        await bench.passes(bound(ENFORCE, subject=None))
        assert logs == []
        assert {reason: count for (_, reason), count in bench.validation.counters.failed.items()} == {
            "missing_schema_id": 1,
            "unknown_schema_id": 1,
            "subject_mismatch": 1,
            "unknown_version": 1,
            "payload_invalid": 1,
            "no_subject": 1,
        }
        assert bench.validation.counters.checked == {(TOPIC, "enforce"): 6}

    run(test)


def test_a_topic_that_is_gone_leaves_no_counts(logs):
    async def test(bench):
        await bench.passes(bound())
        await bench.validation.check("/default/other", bound(), StreamMessage(GOOD))
        bench.validation.forget(TOPIC)
        assert list(bench.validation.counters.failed) == [("/default/other", "missing_schema_id")]
        assert list(bench.validation.counters.checked) == [("/default/other", "warn")]
        await bench.passes(bound())
        assert [line["topic"] for line in logs] == [TOPIC, "/default/other", TOPIC]

    run(test)


def test_a_message_is_judged_by_the_subject_and_not_by_its_mode():
    async def test(bench):
        await bench.store.set_mode("users", Compatibility.NONE)
        assert await bench.passes(bound(ENFORCE, payloads=True), schema_id=1, schema_version=2)

    run(test)
