"""A pipeline without Spark, in this process; what takes the messages is given to it: simulated tables, or real ones."""

import asyncio
import contextlib
import uuid

from ister.aio.watermark import Watermark
from ister.core.errors import Behind, NotYetInTierError
from ister.core.frames.columns import decode_batch
from ister.core.frames.frame import encode_message
from ister.core.offsets import StartPosition
from ister.lake.columns import table_rows
from ister.lake.parquet import write_files
from ister.storage.iceberg.storage import Served


class LocalPipeline:
    """Carries topics to their tables in this process, when woken; a TopicHost. `tables` take them."""

    def __init__(self, tables, **policies):
        self.paused = False
        self.noted = []
        self.stops = 0
        self._tables = tables
        self._policies = policies
        self._served = {}
        self._uptos = {}
        self._woken = asyncio.Event()
        self._task = None

    async def start(self, topics):
        self.topics = topics
        for name in await topics.start():
            await self.host(name)
        self._task = asyncio.create_task(self._run())

    def find(self, topic):
        return self._served.get(topic)

    async def host(self, topic):
        if topic not in self._served:
            served = Served(await self.topics.for_topic(topic), **self._policies)
            self._uptos[topic, served.generation] = Watermark(await self._tables.upto(topic, served.generation))
            self._served[topic] = served
        return self._served[topic]

    async def remove(self, topic):
        served = self._served.pop(topic)
        self._uptos.pop((topic, served.generation)).end()
        await self.topics.delete_topic(topic)

    async def subscribed(self, topic, subscription):
        self.noted.append((topic, subscription))

    def upto(self, topic, generation):
        return self._uptos[topic, generation].value

    async def wait_upto(self, topic, generation, upto, timeout_s):
        self._woken.set()
        progress = self._uptos[topic, generation]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(progress.wait(upto), timeout_s)
        if progress.value < upto:
            raise NotYetInTierError("lake", [Behind(str(topic), progress.value, upto)], f"after {timeout_s:g} s")

    async def stop(self):
        self.stops += 1
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.topics.shutdown()

    async def _run(self):
        while True:
            await self._woken.wait()
            self._woken.clear()
            if not self.paused:
                for topic in list(self._served):
                    await self.carry(topic)

    async def carry(self, topic, upto=None):
        """Commit what is synced, or what is below `upto`."""
        served = self._served[topic]
        await served.storage.flush()
        progress = self._uptos[topic, served.generation]
        stop = served.storage.next_offset if upto is None else upto
        if progress.value >= stop:
            return
        reader = await served.storage.create_reader(StartPosition.offset(progress.value))
        found = []
        while len(found) < stop - progress.value:
            found += await reader.read()
        await reader.close()
        await self._tables.commit(topic, served.generation, progress.value, found[: stop - progress.value])
        served.storage.table_reached(stop)
        progress.reach(stop)


class LakeTables:
    """Commits messages to a real Iceberg table, as a task and the driver do, without Spark."""

    def __init__(self, lake):
        self.lake = lake
        self._claimed = {}

    async def commit(self, topic, generation, start, found):
        await asyncio.to_thread(self._commit, topic, generation, start, found)

    async def upto(self, topic, generation):
        table = await asyncio.to_thread(self.lake.find, topic, generation)
        return 0 if table is None else table.upto(0)

    def _commit(self, topic, generation, start, found):
        table = self._claimed.get((topic, generation))
        if table is None:
            table = self._claimed[topic, generation] = self.lake.table(topic, generation)
            table.claim(max(table.held.epoch, 0) + 1)
        stop = start + len(found)
        frames = b"".join(encode_message(message, message.offset, message.append_time_us) for message in found)
        rows = table_rows(decode_batch(frames, first_offset=start), 0)
        written = write_files(
            table.io_properties, table.location, [rows], partition=0, name=uuid.uuid4().hex, target_bytes=1 << 27
        )
        table.commit_add_files(written, {0: (start, stop)})
