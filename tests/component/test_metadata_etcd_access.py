"""How etcd is reached and who is let in: TLS, users, permissions, and a password that is told nobody (S9)."""

import asyncio
import logging
import re
import traceback

import pytest

from ister.core.errors import InvalidConfigError, MetadataUnavailableError, MetadataUnknownError
from ister.ports.metadata.etcd import EtcdMetadata
from ister.ports.metadata.etcd_cluster import parse_endpoints
from parts.cloud import messages
from parts.factory import World
from parts.table import TableWorld
from services.etcd import Etcd
from services.metadata_contract import run, take

CANARY = "canary-3f9a-password"


def in_thread(act, *arguments):
    return asyncio.create_task(asyncio.to_thread(act, *arguments))


def test_tls_with_a_client_certificate():
    async def main(etcd):
        files = {"ca": etcd.file("ca.pem"), "cert": etcd.file("client.pem"), "key": etcd.file("client.key")}
        for endpoint in (etcd.endpoint, f"127.0.0.1:{etcd.client}"):
            store = await EtcdMetadata.open(endpoint, **files)
            version = await store.put("/a", b"1")
            assert (await take(store.watch("/", after=version - 1), 1))[0].version == version
            await store.close()
        for wrong in ({"ca": files["ca"]}, {}):
            with pytest.raises(MetadataUnavailableError):
                await EtcdMetadata.open(etcd.endpoint, timeout_s=0.2, **wrong)
        with pytest.raises(MetadataUnavailableError):
            await EtcdMetadata.open(f"http://127.0.0.1:{etcd.client}", timeout_s=0.2)

    with Etcd(client_cert=True) as etcd:
        run(main(etcd))


def test_s9_a_user_is_let_in_again_after_a_restart_and_the_password_is_told_nobody(caplog, capfd):
    caplog.set_level(logging.DEBUG)
    texts = []

    async def main(etcd):
        store = await EtcdMetadata.open(etcd.endpoint, user="root", password=CANARY)
        version = await store.put("/a", b"1")
        watch = store.watch("/", after=version - 1)
        assert (await anext(watch)).version == version
        lease = await store.lease(2)
        await in_thread(etcd.restart)
        again = await store.put("/a", b"2", lease=lease)  # its token is unknown to the new process
        assert (await anext(watch)).version == again
        await in_thread(etcd.restart)
        waiting = asyncio.create_task(anext(watch))  # the watch meets the old token first
        third = int(re.search(r'"revision":(\d+)', await in_thread(put_by_ctl, etcd)).group(1))
        assert (await waiting).version == third
        texts.extend(repr(thing) for thing in (store, store._cluster, store._cluster._login, lease, watch, vars(store)))
        texts.append(store.name)
        for password in ("wrong", None):
            who = {} if password is None else {"user": "root", "password": CANARY + password}
            with pytest.raises(InvalidConfigError) as refused:
                await EtcdMetadata.open(etcd.endpoint, **who)
            texts.append("".join(traceback.format_exception(refused.value)))
        etcd.kill()
        store._cluster._timeout_s = 0.3
        with pytest.raises((MetadataUnavailableError, MetadataUnknownError)) as down:
            await store.put("/a", b"")
        texts.append("".join(traceback.format_exception(down.value)))
        await store.close()

    def put_by_ctl(etcd):
        return etcd.ctl("put", "/a", "3", "-w", "json", user=f"root:{CANARY}")

    with Etcd(user="root", password=CANARY) as etcd:
        run(main(etcd))
    texts += [caplog.text, *capfd.readouterr()]
    assert "refused to prove who we are" in "".join(texts)
    assert [text for text in texts if CANARY in text] == []


def test_s9_endpoints_are_checked_and_a_password_in_them_is_not_repeated():
    assert parse_endpoints("a,b:1, https://[::1]:2/", tls=True) == (["a:2379", "b:1", "[::1]:2"], True)
    assert parse_endpoints(["http://a.b-c:80"], tls=False) == (["a.b-c:80"], False)
    for wrong in ("", [], "ftp://a", "a:b", "http://a,https://b", "a b", f"http://root:{CANARY}@a:2379"):
        with pytest.raises(InvalidConfigError) as refused:
            parse_endpoints(wrong, tls=False)
        assert CANARY not in str(refused.value)
    with pytest.raises(InvalidConfigError, match="TLS"):
        parse_endpoints("http://a", tls=True)
    for wrong in ({"cert": "x"}, {"user": "x"}, {"password": CANARY}, {"prefix": "x"}):
        with pytest.raises(InvalidConfigError):
            run(EtcdMetadata.open("a", **wrong))


def test_a_user_without_a_permission_is_told_so():
    async def main(etcd):
        etcd.ctl("user", "add", "guest:guest", user=f"root:{CANARY}")
        etcd.ctl("role", "add", "guest", user=f"root:{CANARY}")
        etcd.ctl("role", "grant-permission", "guest", "readwrite", "--prefix", "/guest/", user=f"root:{CANARY}")
        etcd.ctl("user", "grant-role", "guest", "guest", user=f"root:{CANARY}")
        store = await EtcdMetadata.open(etcd.endpoint, user="guest", password="guest", prefix="/guest")
        version = await store.put("/a", b"")
        assert (await take(store.watch("/", after=version - 1), 1))[0].version == version
        store._prefix = b"/elsewhere"
        for act in (store.get("/a"), store.put("/a", b""), anext(store.watch("/", after=0))):
            with pytest.raises(InvalidConfigError, match="permission denied"):
                await act
        await store.close()

    with Etcd(user="root", password=CANARY) as etcd:
        run(main(etcd))


ROOT = "/danube-data"


def granted(etcd, *permission):
    """Make a user who has one permission."""
    etcd.ctl("user", "add", "ister:ister", user=f"root:{CANARY}")
    etcd.ctl("role", "add", "ister", user=f"root:{CANARY}")
    etcd.ctl("role", "grant-permission", "ister", *permission, user=f"root:{CANARY}")
    etcd.ctl("user", "grant-role", "ister", "ister", user=f"root:{CANARY}")
    return {"user": "ister", "password": "ister", "root": ROOT}


@pytest.mark.parametrize("kind", [World, TableWorld])
def test_a_user_who_may_use_the_keys_below_root_prefix_alone_needs_nothing_else(tmp_path, kind):
    """L3, I5: topics with objects, and a table with cursors in metadata, opened again, and deleted."""

    async def main(etcd):
        store = await EtcdMetadata.open(etcd.endpoint, **granted(etcd, "readwrite", "--prefix", f"{ROOT}/"))
        assert await store.version() > 0
        world = kind(tmp_path, store)
        for expected in ({}, {"s": 1}):
            factory = world.factory()
            await factory.start()
            assert factory.problems == {}
            storage = await factory.for_topic("/default/t")
            assert await storage.cursors() == expected
            await storage.append_messages(messages(storage.next_offset, storage.next_offset + 1))
            await storage.ack_checkpoint("s", 1)
            await factory.shutdown()
        factory = world.factory()
        await factory.delete_topic("/default/t")
        await factory.shutdown()
        await store.close()

    with Etcd(user="root", password=CANARY) as etcd:
        run(main(etcd))
        assert etcd.ctl("get", "/", "--prefix", "--keys-only", user=f"root:{CANARY}").split() == [
            f"{ROOT}/storage/topics/default/t"
        ]


@pytest.mark.parametrize(
    ("permission", "read_only", "needed"),
    [
        (("read", "--prefix", f"{ROOT}/"), True, None),
        (("read", "--prefix", f"{ROOT}/"), False, "readwrite"),
        (("readwrite", f"{ROOT}/"), False, "readwrite"),
        (("readwrite", "--prefix", "/elsewhere/"), True, "read"),
    ],
)
def test_a_permission_that_is_missing_is_told_at_start_with_the_command_that_grants_it(permission, read_only, needed):
    """L3."""

    async def main(etcd):
        who = granted(etcd, *permission)
        if needed is None:
            await (await EtcdMetadata.open(etcd.endpoint, **who, read_only=read_only)).close()
            return
        with pytest.raises(InvalidConfigError) as refused:
            await EtcdMetadata.open(etcd.endpoint, **who, read_only=read_only)
        text = str(refused.value)
        assert "permission denied" in text
        assert f"`etcdctl role grant-permission ROLE {needed} --prefix {ROOT}/`" in text

    with Etcd(user="root", password=CANARY) as etcd:
        run(main(etcd))
