"""A name that is used again, with partitions or without: each use has a table of its own, on real Spark."""

import asyncio

from parts.pipeline import Pipeline, assert_exact, new_topic, produce, rows_of


def delete(broker, topic):
    async def ask():
        async with broker.raw() as raw:
            await raw.ask("DeleteTopic", name=topic)

    asyncio.run(ask())


def test_a_plain_topic_made_again_with_partitions_begins_a_table_of_its_own(spark, catalog, broker):
    base = new_topic("family")
    produce(broker, base, [b"old %d" % n for n in range(30)])
    with Pipeline(spark, broker, catalog, [f"{base}*"]) as writer:
        assert writer.tick().rows == 30
        delete(broker, base)
        for number in range(2):
            produce(broker, f"{base}-part-{number}", [b"new"] * 40)
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (80, {})
    assert_exact(catalog, base, 30)
    rows = rows_of(catalog, base, 2)
    assert rows["partition"].to_pylist() == [0] * 40 + [1] * 40
    assert rows["topic_offset"].to_pylist() == [*range(40), *range(40)]
    assert set(rows["payload"].to_pylist()) == {b"new"}
