"""danube.StorageService: the completed objects of a topic, from any offset on."""

import pytest
from grpc import StatusCode

from parts.admin import AdminWorld, refused
from parts.cloud import StepClock, run

T = "/default/t"


async def listed(asker, topic=T, after=0):
    answer = await asker.ask("danube.StorageService/ListSegmentDescriptors", topic=topic, after_offset=after)
    return [*answer.segments]


def offsets(segments):
    return [(segment.start_offset, segment.end_offset) for segment in segments]


async def three_objects(asker):
    """Objects [0, 1), [1, 6) and [6, 9), and messages that are in none."""
    for count in (1, 5, 3):
        await asker.fill(T, count, 100)
        storage = asker.broker.topics.find(T).storage
        await storage.flush()
        await storage.objects.uploader.drain()
    await asker.fill(T, 2)


def test_objects_are_listed_from_the_first_on_with_an_inclusive_end(tmp_path):
    async def story():
        clock = StepClock()
        world = AdminWorld(tmp_path, clock=clock)
        async with world.asker() as asker:
            await three_objects(asker)
            found = await listed(asker)
            assert offsets(found) == [(0, 0), (1, 5), (6, 8)]
            for segment in found:
                assert (tmp_path / "objects" / segment.segment_id).stat().st_size == segment.size
                assert segment.created_at == clock.now_us // 1_000_000
                assert segment.etag == "", "the file system has none"
            assert await listed(asker, "default/t") == found

    run(story())


@pytest.mark.parametrize(
    ("after", "expected"),
    [(1, [(1, 5), (6, 8)]), (4, [(1, 5), (6, 8)]), (5, [(6, 8)]), (7, [(6, 8)]), (8, []), (9, []), (2**64 - 1, [])],
)
def test_what_ends_at_or_before_an_offset_is_left_out(tmp_path, after, expected):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await three_objects(asker)
            assert offsets(await listed(asker, after=after)) == expected

    run(story())


def test_a_listing_is_bounded_and_goes_on_behind_its_last(tmp_path, monkeypatch):
    monkeypatch.setattr("ister.broker.services.storage.SEGMENTS_MAX", 2)

    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await three_objects(asker)
            found = await listed(asker)
            assert offsets(found) == [(0, 0), (1, 5)]
            assert offsets(await listed(asker, after=found[-1].end_offset)) == [(6, 8)]

    run(story())


def test_of_a_topic_without_objects_none_are_listed(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            assert await listed(asker) == []
            await asker.topic("CreateTopic", name="/default/volatile")
            assert await listed(asker, "/default/volatile") == []
            await asker.fill(T, 1)
            assert await listed(asker) == []

    run(story())


@pytest.mark.parametrize("topic", ["", "/", "t", "/a/b/c", "default/ä", "//t"])
def test_a_malformed_topic_is_refused(tmp_path, topic):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            with refused(StatusCode.INVALID_ARGUMENT):
                await listed(asker, topic)

    run(story())
