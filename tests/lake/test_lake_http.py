"""Answers that are lost on their way (F30): a Glue catalog behind a proxy, with the client's own retries, and tables in S3."""

import asyncio
import itertools
import threading
from contextlib import contextmanager

import pytest

from ister.core.table.commit import LANDED
from ister.lake.catalog import LakeCatalog
from parts.lake import TOPIC, append, assert_exact
from services.fault_proxy import FaultProxy
from services.moto import serve_moto

REFUSED = (
    b'{"__type": "ConcurrentModificationException", "Message": "Update table failed due to concurrent modifications."}'
)
WAIT_S = 60.0
generations = itertools.count(1)


class Gateway(FaultProxy):
    """Passes everything on; what becomes of the answers to the next updates of a table, it is told."""

    def __init__(self, target):
        super().__init__(target, rate=0.0)
        self.next = []

    async def _forward(self, request):
        answer = await super()._forward(request)
        if b"AWSGlue.UpdateTable" not in request or not self.next:
            return answer
        self.counts[fate := self.next.pop()] += 1
        if fate == "lost":
            raise ConnectionResetError  # the server has acted; its answer goes nowhere
        # What Glue says to a request that was sent twice: moto does not look at the version.
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.1\r\nConnection: close\r\n"
        return head + b"Content-Length: %d\r\n\r\n%s" % (len(REFUSED), REFUSED)


@contextmanager
def running(proxy):
    """Run a proxy in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result(WAIT_S)
        try:
            yield proxy
        finally:
            asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result(WAIT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def moto():
    with serve_moto() as found:
        yield found


@pytest.mark.parametrize(
    ("fates", "retries", "landed"),
    [(["lost"], 0, True), (["refused"], 0, True), (["lost"], 2, False), (["refused", "lost"], 2, True)],
    ids=["lost", "refused", "lost and sent again", "lost, sent again, and refused"],
)
def test_f30_an_answer_that_is_lost_over_http_makes_no_second_commit(moto, fates, retries, landed, count, tell):
    keys = {"region": "us-east-1", "access-key-id": "testkey", "secret-access-key": "testsecret"}
    with running(Gateway(moto.port)) as proxy:
        properties = {
            "type": "glue",
            "warehouse": f"s3://{moto.make_bucket()}/lake",
            "glue.endpoint": f"http://127.0.0.1:{proxy.port}",
            "glue.max-retries": retries,  # a number: the library does not make one of its text
            "s3.endpoint": moto.endpoint,
            **{f"{part}.{key}": value for part in ("glue", "s3") for key, value in keys.items()},
        }
        lake = LakeCatalog.open("ister", properties)
        table = lake.table(TOPIC, next(generations))  # moto's Glue is one for all
        table.claim(1)
        commits = count(3, 20)
        for _ in range(commits):
            proxy.next = [*fates]
            assert (append(table, 3) is LANDED) == landed
            assert proxy.next == []
            assert_exact(table)
        assert table.upto(0) == 3 * commits
        lake.close()
    tell(
        "F30",
        f"{commits} commits to Glue over HTTP, answers {' and '.join(reversed(fates))}, {retries} retries: 0 twice",
    )
