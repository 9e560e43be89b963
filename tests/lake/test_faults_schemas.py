"""Fifty changes of a schema while messages flow: through the registry, the log and Spark to a table, and nothing stops."""

import asyncio
import json
from random import Random

import pytest
from danube import CompatibilityMode, SchemaType
from danube.proto import DanubeApi_pb2 as api

from interop.official import Official
from interop.test_schemas import register
from parts.pipeline import Pipeline, assert_exact, new_topic, rows_of
from parts.schema_chains import Avro, Json, Protobuf, change, copied, random_struct, seen_in

CHANGES = 50
TRIES = 2000


def json_definition(writer, root):
    return json.dumps(writer._document(root))


def avro_definition(writer, root):
    """Return what the writer writes by, with null as the default of what may be null: a registry asks for one."""

    def with_defaults(kind):
        match kind:
            case dict():
                made = {name: with_defaults(one) for name, one in kind.items()}
                optional = "name" in kind and isinstance(kind["type"], list)
                return made | {"default": None} if optional else made
            case list():
                return [with_defaults(one) for one in kind]
            case _:
                return kind

    writer._records = 0
    return json.dumps(with_defaults(writer._kind(root)))


def protobuf_definition(writer, root):
    return f'syntax = "proto3"; {writer._message("M", root)}'


KINDS = {
    Json: (SchemaType.JSON_SCHEMA, json_definition),
    Avro: (SchemaType.AVRO, avro_definition),
    Protobuf: (SchemaType.PROTOBUF, protobuf_definition),
}


class Chain:
    """A topic whose schema changes, each time in a way that its registry takes."""

    def __init__(self, broker, language, seed):
        self.broker = broker
        self.language = language
        self.kind, self.definition = KINDS[language]
        self.chance = Random(f"{language.name} {seed}")
        self.root = random_struct(self.chance, 2)
        self.topic = new_topic(language.name)
        self.subject = self.topic.removeprefix("/default/") + "-value"
        self.number = 0
        self.writers = []
        self.written = []

    async def go_on(self, versions):
        """Register so many versions, each followed by messages of it and of older ones."""
        async with Official(self.broker) as client, self.broker.raw() as raw:
            for _ in range(versions):
                await self._next_version(client)
                reference = api.SchemaReference(subject=self.subject, use_latest=True)
                producer = await raw.create_producer(self.topic, schema_ref=reference)
                newest = len(self.writers)
                for version in (newest, newest, self.chance.randint(1, newest)):
                    writer = self.writers[version - 1]
                    value = writer.value(self.chance)
                    payload = writer.payload(value)
                    await raw.send(self.topic, producer, payload, schema_id=self.number, schema_version=version)
                    self.written.append((version, value, payload))

    async def _next_version(self, client):
        for _ in range(TRIES):
            root = copied(self.root)
            if self.writers:
                change(self.chance, root, self.language.name, compatible=True)
            writer = self.language()
            writer.schema(copied(root))
            definition = self.definition(writer, root).encode()
            if self.writers and not (await client.schemas.check_compatibility(self.subject, definition, self.kind))[0]:
                continue
            self.number = await register(client, self.subject, definition, self.kind)
            if not self.writers and self.language is Json:
                # A new property of an open object is refused otherwise: an old message may have it, of another type.
                assert (await client.schemas.set_compatibility_mode(self.subject, CompatibilityMode.NONE))[0]
            if (await client.schemas.get_latest_schema(self.subject)).version == len(self.writers) + 1:
                self.writers.append(writer)
                self.root = root
                return
        raise AssertionError(f"no change in {TRIES} that the registry takes")


@pytest.mark.parametrize("language", [Json, Avro, Protobuf])
def test_f33_fifty_compatible_changes_of_a_schema_stop_nothing_and_lose_nothing(
    spark, catalog, broker, count, tell, language
):
    rows = 0
    for seed in range(count(1, 5)):
        chain = Chain(broker, language, seed)
        with Pipeline(spark, broker, catalog, [chain.topic]) as writer:
            for versions in [1] * (CHANGES + 1) if count(0, 1) else (1, 1, 1, 7, 10, 10, CHANGES - 29):
                asyncio.run(chain.go_on(versions))
                tick = writer.tick()
                assert (tick.rows, tick.failed) == (3 * versions, {})
            assert writer.topics[chain.topic].undecoded == 0
        assert len(chain.writers) == CHANGES + 1
        assert_exact(catalog, chain.topic, len(chain.written))
        found = rows_of(catalog, chain.topic)
        values = found["value"].to_pylist(maps_as_pydicts="strict")
        assert found["payload"].to_pylist() == [payload for _, _, payload in chain.written]
        assert found["decode_error"].null_count == len(values)
        for (version, value, _), got in zip(chain.written, values, strict=True):
            assert all(seen_in(got, name, part) for name, part in value.items()), (seed, version, value, got)
        rows += len(values)
    tell("F33", f"{language.name}: {CHANGES} changes through registry, log and Spark; {rows} rows, 0 lost, 0 undecoded")
