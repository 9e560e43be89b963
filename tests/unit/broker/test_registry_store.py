"""Subjects, versions and ids: unique, durable, and in memory what they are in metadata."""

import asyncio
import json

import pytest

from ister.broker.registry import store as schema_store
from ister.broker.registry.store import NewSchema, SchemaStore
from ister.core.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    LimitError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NotFoundError,
    PreconditionError,
)
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.schemas import Compatibility, SchemaType

V1 = b'{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
V2 = b'{"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}'
BREAKING = b'{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}'


def run(test):
    """Run an asynchronous test over a store in memory."""

    async def main():
        metadata = MemoryMetadata()
        try:
            await test(await opened(metadata), metadata)
        finally:
            await metadata.close()

    asyncio.run(main())


async def opened(metadata) -> SchemaStore:
    store = SchemaStore(metadata, "/danube-data", now=lambda: 1_700_000_000.9)
    await store.load()
    return store


def new(definition: bytes = V1, subject: str = "users", kind: str = "json_schema", **more) -> NewSchema:
    return NewSchema(subject=subject, schema_type=SchemaType.parse(kind), definition=definition, **more)


def test_versions_count_from_one_and_share_their_subjects_id():
    async def test(store, _):
        one, is_new = await store.register(new(V1, description="first", created_by="me", tags=("a", "b")))
        assert (one.version, one.schema_id, is_new) == (1, 1, True)
        two, is_new = await store.register(new(V2))
        assert (two.version, two.schema_id, is_new) == (2, 1, True)
        other, _ = await store.register(new(V1, "orders"))
        assert (other.version, other.schema_id) == (1, 2)
        assert (one.description, one.created_by, one.tags, one.created_at) == ("first", "me", ("a", "b"), 1_700_000_000)
        assert one.compatibility is Compatibility.BACKWARD
        assert store.latest("users") == two
        assert store.find(1) == two
        assert store.find(1, 1) == one
        assert store.find(1, 3) is None
        assert store.find(9) is None
        assert store.exists("users")
        assert not store.exists("absent")
        assert store.latest("absent") is None
        assert store.versions("users") == [one, two]
        assert [latest.subject for latest in store.subjects()] == ["orders", "users"]

    run(test)


def test_the_same_schema_is_the_same_version_even_if_it_is_not_the_latest():
    async def test(store, _):
        one, _ = await store.register(new(V1))
        await store.register(new(V2))
        again, is_new = await store.register(new(json.dumps(json.loads(V1), indent=4).encode()))
        assert (again, is_new) == (one, False)
        assert len(store.versions("users")) == 2

    run(test)


def test_one_text_is_two_schemas_in_two_types():
    async def test(store, _):
        one, _ = await store.register(new(b'{"type": "string"}', kind="json"))
        await store.set_mode("users", Compatibility.NONE)
        two, is_new = await store.register(new(b'{"type": "string"}', kind="avro"))
        assert is_new
        assert one.fingerprint == two.fingerprint
        assert two.schema_type is SchemaType.AVRO

    run(test)


def test_what_cannot_follow_is_refused_and_leaves_nothing():
    async def test(store, _):
        await store.register(new(V1))
        with pytest.raises(PreconditionError, match=r"not compatible with its version 1: backward: \$\.id"):
            await store.register(new(BREAKING))
        with pytest.raises(PreconditionError, match="changes from json_schema to avro"):
            await store.register(new(b'"int"', kind="avro"))
        assert len(store.versions("users")) == 1
        await store.set_mode("users", Compatibility.NONE)
        made, _ = await store.register(new(BREAKING))
        assert made.version == 2

    run(test)


def test_a_definition_that_cannot_be_read_is_refused_and_makes_no_subject():
    async def test(store, metadata):
        with pytest.raises(InvalidRequestError):
            await store.register(new(b"{"))
        assert store.subjects() == []
        assert await metadata.list("/danube-data/") == []

    run(test)


def test_only_the_latest_version_counts():
    async def test(store, _):
        await store.register(new(V1))
        await store.set_mode("users", Compatibility.NONE)
        await store.register(new(BREAKING))
        await store.set_mode("users", Compatibility.BACKWARD)
        with pytest.raises(PreconditionError, match="version 2"):
            await store.register(new(V2))

    run(test)


def test_the_mode_is_that_of_all_versions():
    async def test(store, _):
        await store.register(new(V1))
        await store.register(new(V2))
        await store.set_mode("users", Compatibility.FULL)
        assert {one.compatibility for one in store.versions("users")} == {Compatibility.FULL}
        with pytest.raises(NotFoundError, match="not found"):
            await store.set_mode("absent", Compatibility.FULL)

    run(test)


def test_compatibility_can_be_asked_for_without_registering():
    async def test(store, _):
        await store.register(new(V1))
        assert await store.check("users", SchemaType.JSON_SCHEMA, V2, None) == []
        assert await store.check("users", SchemaType.JSON_SCHEMA, BREAKING, None) != []
        assert await store.check("users", SchemaType.JSON_SCHEMA, BREAKING, Compatibility.NONE) == []
        assert await store.check("users", SchemaType.AVRO, b'"int"', None) != []
        with pytest.raises(NotFoundError):
            await store.check("absent", SchemaType.JSON_SCHEMA, V1, None)
        with pytest.raises(InvalidRequestError):
            await store.check("users", SchemaType.JSON_SCHEMA, b"{", None)
        assert len(store.versions("users")) == 1

    run(test)


def test_a_deleted_versions_number_is_not_given_again():
    async def test(store, metadata):
        for definition in (V1, V2):
            await store.register(new(definition))
        await store.delete("users", 2)
        assert store.latest("users").version == 1
        assert store.find(1, 2) is None
        with pytest.raises(NotFoundError, match=r"version 2 .* not found"):
            await store.delete("users", 2)
        for reopened in (store, await opened(metadata)):
            assert [one.version for one in reopened.versions("users")] == [1]
        made, is_new = await (await opened(metadata)).register(new(V2))
        assert (made.version, is_new) == (3, True)

    run(test)


def test_a_subject_without_versions_does_not_exist_and_keeps_its_id():
    async def test(store, metadata):
        await store.register(new(V1))
        await store.delete("users", 1)
        assert not store.exists("users")
        assert store.find(1) is None
        assert store.subjects() == []
        again = await opened(metadata)
        assert not again.exists("users")
        made, _ = await again.register(new(BREAKING))
        assert (made.schema_id, made.version) == (1, 2)

    run(test)


def test_everything_is_there_after_a_restart(tmp_path):
    async def main():
        metadata = await SqliteMetadata.open(tmp_path / "metadata.db")
        store = await opened(metadata)
        await store.register(new(V1, description="ä", tags=("t",)))
        await store.register(new(V2))
        await store.register(new(bytes(range(256)), "raw/ü %", "bytes"))
        await store.set_mode("users", Compatibility.FULL)
        before = (store.versions("users"), store.versions("raw/ü %"), store.subjects())
        await metadata.close()
        metadata = await SqliteMetadata.open(tmp_path / "metadata.db")
        again = await opened(metadata)
        assert (again.versions("users"), again.versions("raw/ü %"), again.subjects()) == before
        assert again.latest("raw/ü %").definition == bytes(range(256))
        made, _ = await again.register(new(V1, "third"))
        assert made.schema_id == 3
        await metadata.close()

    asyncio.run(main())


def test_registrations_at_once_give_each_version_and_each_id_once():
    async def test(store, metadata):
        def schema(n: int) -> bytes:
            return json.dumps({"type": "object", "properties": {f"p{n}": {"type": "string"}}}).encode()

        made = await asyncio.gather(*(store.register(new(schema(n % 10), f"s{n % 4}")) for n in range(60)))
        for subject in ("s0", "s1", "s2", "s3"):
            mine = [one for one, _ in made if one.subject == subject]
            assert len({one.schema_id for one in mine}) == 1
            versions = [one.version for one in store.versions(subject)]
            assert versions == list(range(1, len(versions) + 1))
            assert {one.version for one in mine} == set(versions)
        assert len({one.schema_id for one, _ in made}) == 4
        assert (await opened(metadata)).subjects() == store.subjects()

    run(test)


def test_two_processes_cannot_give_one_number_twice():
    async def test(store, metadata):
        other = await opened(metadata)
        one, _ = await store.register(new(V1))
        two, is_new = await other.register(new(V2))
        assert (two.schema_id, two.version, is_new) == (one.schema_id, 2, True)
        same, is_new = await store.register(new(V2))
        assert (same.version, is_new) == (2, False)
        mine, theirs = await asyncio.gather(store.register(new(V1, "a")), other.register(new(V1, "b")))
        assert mine[0].schema_id != theirs[0].schema_id
        await other.delete("users", 1)
        await store.delete("users", 1)
        assert [one.version for one in (await opened(metadata)).versions("users")] == [2]

    run(test)


def test_ids_stay_unique_where_the_counter_is_lost():
    async def test(store, metadata):
        await store.register(new(V1, "a"))
        await store.register(new(V1, "b"))
        await metadata.delete("/danube-data/schemas/next")
        made, _ = await (await opened(metadata)).register(new(V1, "c"))
        assert made.schema_id == 3

    run(test)


def test_a_definition_of_a_mebibyte_is_kept_and_a_larger_one_refused():
    async def test(store, metadata):
        large = bytes(1 << 20)
        await store.register(new(large, kind="bytes", description="\x00" * 4096, tags=("\x01" * 128,) * 32))
        assert (await opened(metadata)).latest("users").definition == large
        with pytest.raises(InvalidRequestError, match="more than 1048576"):
            await store.register(new(large + b"x", kind="bytes"))

    run(test)


@pytest.mark.parametrize(
    "subject", ["a/b", "../..", "head", "versions", "%2F", "ü", "a b", "x" * 255, "/default/topic-value"]
)
def test_a_subject_cannot_touch_anothers_keys(subject):
    async def test(store, metadata):
        await store.register(new(V1, "a"))
        await store.register(new(V1, subject))
        await store.register(new(V2, subject))
        await store.delete(subject, 1)
        again = await opened(metadata)
        assert [one.version for one in again.versions(subject)] == [2]
        assert [one.version for one in again.versions("a")] == [1]

    run(test)


@pytest.mark.parametrize("subject", ["", " a", "a\n", "a\x00b", "x" * 256, "ü" * 128, "\u2028"])
def test_a_subject_that_could_not_be_told_from_another_is_refused(subject):
    with pytest.raises(InvalidRequestError, match="subject"):
        new(V1, subject)


@pytest.mark.parametrize(
    "more", [{"description": "x" * 4097}, {"created_by": "x" * 256}, {"tags": ("x",) * 33}, {"tags": ("x" * 129,)}]
)
def test_texts_beside_a_definition_are_bounded(more):
    with pytest.raises(InvalidRequestError, match="more than"):
        new(V1, **more)


def test_there_are_limits_to_everything(monkeypatch):
    async def test(store, _):
        monkeypatch.setattr(schema_store, "SUBJECTS_MAX", 1)
        monkeypatch.setattr(schema_store, "VERSIONS_MAX", 1)
        await store.register(new(V1))
        with pytest.raises(LimitError, match="versions"):
            await store.register(new(V2))
        with pytest.raises(LimitError, match="subjects"):
            await store.register(new(V1, "other"))
        monkeypatch.setattr(schema_store, "VERSIONS_MAX", 9)
        monkeypatch.setattr(schema_store, "DEFINITIONS_BYTES_MAX", len(V1) + len(V2) - 1)
        with pytest.raises(LimitError, match="definitions"):
            await store.register(new(V2))
        await store.delete("users", 1)
        await store.register(new(V2))

    run(test)


def test_parsed_schemas_are_kept_within_bounds(monkeypatch):
    async def test(store, _):
        monkeypatch.setattr(schema_store, "PARSED_MAX", 2)
        made = [(await store.register(new(V1, f"s{n}")))[0] for n in range(4)]
        assert [store.parsed_now(one) is not None for one in made] == [False, False, True, True]
        first = await store.parsed(made[0])
        assert await store.parsed(made[0]) is first
        assert store.parsed_now(made[2]) is None
        monkeypatch.setattr(schema_store, "PARSED_BYTES_MAX", 1)
        await store.parsed(made[1])
        assert [store.parsed_now(one) is not None for one in made] == [False, True, False, False]

    run(test)


def test_a_store_that_cannot_be_reached_changes_nothing():
    async def test(store, metadata):
        await store.register(new(V1))
        metadata.cut()
        with pytest.raises(MetadataUnavailableError):
            await store.register(new(V2))
        with pytest.raises(MetadataUnavailableError):
            await store.set_mode("users", Compatibility.NONE)
        with pytest.raises(MetadataUnavailableError):
            await store.delete("users", 1)
        assert [one.version for one in store.versions("users")] == [1]
        assert store.latest("users").compatibility is Compatibility.BACKWARD
        metadata.mend()
        made, _ = await store.register(new(V2))
        assert made.version == 2

    run(test)


class Doubtful(MemoryMetadata):
    """A store that does what it is told and cannot say so."""

    doubtful = False

    async def cas(self, key, value, *, version, lease=None):
        done = await super().cas(key, value, version=version, lease=lease)
        if self.doubtful:
            raise MetadataUnknownError(self.name, f"cas {key}", "the answer was lost")
        return done


def test_after_an_answer_that_was_lost_memory_is_what_metadata_is():
    async def main():
        metadata = Doubtful()
        store = await opened(metadata)
        await store.register(new(V1))
        metadata.doubtful = True
        with pytest.raises(MetadataUnknownError):
            await store.register(new(V2))
        with pytest.raises(MetadataUnknownError):
            await store.set_mode("users", Compatibility.FULL)
        metadata.doubtful = False
        assert [one.version for one in store.versions("users")] == [1, 2]
        assert store.latest("users").compatibility is Compatibility.FULL
        made, is_new = await store.register(new(V2))
        assert (made.version, is_new) == (2, False)
        await metadata.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("subjects/users/head", b"{"),
        ("subjects/users/head", b'{"version":2,"subject":"users","id":1}'),
        ("subjects/users/head", b'{"version":1,"subject":"other","id":1}'),
        ("subjects/users/head", b'{"version":1,"subject":"users","id":0}'),
        ("subjects/users/versions/0000000001", b'{"version":1,"number":2}'),
        ("subjects/users/versions/0000000001", b'{"version":1,"number":1,"definition":"?"}'),
        ("subjects/users/versions/0000000001", b'{"version":1,"number":1,"type":"odd"}'),
        ("subjects/orphan/versions/0000000001", b'{"version":1,"number":1}'),
    ],
)
def test_a_damaged_record_is_named(key, value):
    async def test(store, metadata):
        await store.register(new(V1))
        await metadata.put(f"/danube-data/schemas/{key}", value)
        with pytest.raises(CorruptMetadataError, match=key):
            await opened(metadata)

    run(test)
