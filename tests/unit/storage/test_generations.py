"""Which generation a topic gets: never one that another of its table had."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.names import TopicName, partition_of
from ister.ports.metadata import MemoryMetadata
from ister.storage.generations import TopicGeneration, TopicRegistry, decide_record

ORDERS = TopicName("default", "orders")


def part(number, base=ORDERS):
    return TopicName(base.namespace, f"{base.topic}-part-{number}")


async def open_new(registry, name, on_disk=()):
    return (await registry.claim(name, await registry.get(name), on_disk)).generation


@pytest.mark.parametrize(
    ("known", "on_disk", "relatives", "generation"),
    [
        (None, [], [], 1),
        (None, [3], [(7, True)], 3),  # metadata was lost; the disk knows
        ((2, False), [], [(9, True)], 2),
        ((2, False), [5], [], 5),
        ((2, True), [], [], 3),
        (None, [], [(1, True)], 2),
        (None, [], [(4, False), (4, False)], 4),
        (None, [], [(4, False), (3, True)], 4),
        (None, [], [(4, False), (4, True)], 5),  # its relatives' table has rows of the deleted
        ((4, True), [], [(4, False)], 5),
        ((2, True), [], [(4, False)], 4),
    ],
)
def test_a_generation_is_decided(known, on_disk, relatives, generation):
    record = None if known is None else TopicGeneration(known[0], 6, deleted=known[1])
    found = decide_record(record, on_disk, [TopicGeneration(one, 1, deleted=deleted) for one, deleted in relatives])
    assert found == TopicGeneration(generation, 1 if known is None else 7)


def test_a_topic_that_is_made_again_with_partitions_does_not_get_its_predecessor_s_table():
    async def live():
        registry = TopicRegistry(MemoryMetadata(), "/danube")
        assert await open_new(registry, ORDERS) == 1
        await registry.mark_deleted(ORDERS)
        assert [await open_new(registry, part(n)) for n in range(2)] == [2, 2]
        for number in range(2):
            await registry.mark_deleted(part(number))
        assert [await open_new(registry, part(n)) for n in range(3)] == [3, 3, 3]
        assert await open_new(registry, part(3)) == 3, "a partition more belongs to those that are there"
        for number in range(4):
            await registry.mark_deleted(part(number))
        assert await open_new(registry, ORDERS) == 4

    asyncio.run(live())


def test_topics_whose_names_only_look_alike_are_no_relatives():
    async def live():
        registry = TopicRegistry(MemoryMetadata(), "/danube")
        others = [
            TopicName("default", "orders-part-x"),
            TopicName("default", "orders-partly"),
            TopicName("default", "orders2"),
            TopicName("other", "orders"),
        ]
        for name in others:
            await open_new(registry, name)
            await registry.mark_deleted(name)
        assert await open_new(registry, ORDERS) == 1

    asyncio.run(live())


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["plain", "parts", "more", "delete"]), st.integers(1, 4)), max_size=30))
def test_no_table_ever_has_two_topics_for_one_partition(steps):
    async def live():
        registry = TopicRegistry(MemoryMetadata(), "/danube")
        alive: list[TopicName] = []
        used = set()
        for step, count in steps:
            names = []
            if step == "delete":
                for name in alive:
                    await registry.mark_deleted(name)
                alive = []
            elif step == "more" and alive and alive != [ORDERS]:
                names = [part(len(alive))]
            elif not alive:
                names = [ORDERS] if step == "plain" else [part(n) for n in range(count)]
            for name in names:
                alive.append(name)
                found = partition_of(name)
                table = (await open_new(registry, name), 0 if found is None else found[1])
                assert table not in used
                used.add(table)
            generations = {(await registry.get(name)).generation for name in alive}
            assert len(generations) <= 1, "they share one table"

    asyncio.run(live())
