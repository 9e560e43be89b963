"""Checks of uploaded objects."""

from ister.core.frames.segment import describe, parse_key


async def check_objects(parts, stop, size=0):
    """Every offset is in exactly one described object, which is as it is described."""
    at = 0
    for found in await parts.descriptors():
        assert found.start == at
        key = parts.catalog.object_key(found)
        data = (parts.directory / "objects" / key).read_bytes()
        assert describe(data, key, parse_key(key), epoch=found.epoch, etag=found.etag) == found
        at = found.stop
    assert at == stop
    await parts.read_objects(0, stop, size)
