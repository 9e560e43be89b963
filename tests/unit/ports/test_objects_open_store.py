"""Which store a configuration means, and that no secret of it is ever told."""

import asyncio
import base64
import itertools
import json
import traceback

import pytest

from ister.core.errors import InvalidConfigError, IsterError
from ister.ports.objects import FsStore, RetryOptions, Root, StoreSettings, open_store, parse_root
from ister.ports.objects import factory as root_module
from ister.ports.objects.opendal_store import Redactor
from services.objects_contract import keys

HASTY = RetryOptions(attempt_s=0.5, retries=0, pause_s_min=0.01, pause_s_max=0.01)


@pytest.mark.parametrize(
    ("backend", "root", "expected"),
    [
        ("s3", "s3://danube-messages/cluster-data", Root("danube-messages", "cluster-data")),
        ("s3", "s3://bucket", Root("bucket", "")),
        ("s3", "s3://bucket/a/b/", Root("bucket", "a/b")),
        ("gcs", "gcs://my-bucket/prefix", Root("my-bucket", "prefix")),
        ("gcs", "gs://my-bucket/prefix", Root("my-bucket", "prefix")),
        ("azblob", "my-container/prefix", Root("my-container", "prefix")),
        ("azblob", "my-container", Root("my-container", "")),
        ("memory", "mem-prefix", Root("", "mem-prefix")),
        ("fs", "./object_root", Root("", "./object_root")),
        ("fs", "/var/lib/o/../p", Root("", "/var/lib/o/../p")),
        ("oss", "/anything/", Root("", "/anything/")),
    ],
)
def test_a_root_is_read_as_its_backend_means_it(backend, root, expected):
    assert parse_root(backend, root) == expected


@pytest.mark.parametrize(
    ("backend", "root", "hint"),
    [
        ("s3", "bucket/prefix", "s3://bucket/prefix"),
        ("s3", "gcs://bucket/prefix", "s3://bucket/prefix"),
        ("s3", "s3://", "s3://bucket/prefix"),
        ("s3", "s3:///prefix", "s3://bucket/prefix"),
        ("s3", "s3://bucket//x", "s3://bucket/prefix"),
        ("s3", "s3://bucket/../x", "s3://bucket/prefix"),
        ("s3", "", "s3://bucket/prefix"),
        ("gcs", "s3://bucket", "gcs://bucket/prefix"),
        ("azblob", "azblob://container", "container/prefix"),
        ("azblob", "/container", "container/prefix"),
        ("azblob", "", "container/prefix"),
        ("fs", "s3://bucket", "a directory"),
        ("fs", "", "a directory"),
        ("memory", "", "a name"),
    ],
)
def test_a_wrong_root_is_refused_with_what_is_expected(backend, root, hint):
    with pytest.raises(InvalidConfigError, match=hint) as error:
        parse_root(backend, root)
    assert error.value.setting == "wal_cloud.cloud.root"


def options_of(monkeypatch, settings):
    """Return the service and the options that OpenDAL would get."""
    given = []

    class Spy:
        def __init__(self, service, **options):
            given.append((service, options))
            self.real = REAL("memory")

        def __getattr__(self, name):
            return getattr(self.real, name)

    monkeypatch.setattr(root_module, "AsyncOperator", Spy)
    open_store(settings)
    return given[0]


REAL = root_module.AsyncOperator


def test_our_names_of_options_become_those_of_opendal(monkeypatch):
    s3 = {
        "endpoint": "http://x", "region": "r", "access_key": "k", "secret_key": "s", "session_token": "t",
        "role_arn": "arn", "profile": "p", "anonymous": "false", "virtual_host_style": "true",
        "default_storage_class": "STANDARD_IA",
    }  # fmt: skip
    assert options_of(monkeypatch, StoreSettings("s3", "s3://b/p/q", s3)) == (
        "s3",
        {
            "endpoint": "http://x", "region": "r", "access_key_id": "k", "secret_access_key": "s",
            "session_token": "t", "role_arn": "arn", "profile": "p", "skip_signature": "false",
            "enable_virtual_host_style": "true", "default_storage_class": "STANDARD_IA",
            "checksum_algorithm": "crc32c", "bucket": "b", "root": "/p/q",
        },
    )  # fmt: skip
    gcs = {"project": "p", "credentials_json": '{"a": "b"}', "credentials_path": "/f", "endpoint": "http://x"}
    assert options_of(monkeypatch, StoreSettings("gcs", "gs://b", gcs)) == (
        "gcs",
        {
            "credential": base64.b64encode(b'{"a": "b"}').decode(), "credential_path": "/f", "endpoint": "http://x",
            "bucket": "b",
        },
    )  # fmt: skip
    azure = {"endpoint": "http://x", "account_name": "n", "account_key": "k"}
    assert options_of(monkeypatch, StoreSettings("azblob", "c/p", azure)) == (
        "azblob",
        azure | {"container": "c", "root": "/p"},
    )
    oss = {"bucket": "b", "endpoint": "http://x", "access_key_id": "k"}
    assert options_of(monkeypatch, StoreSettings("oss", "/r", oss)) == ("oss", oss | {"root": "/r"})
    assert options_of(monkeypatch, StoreSettings("oss", "", oss)) == ("oss", oss)


def test_empty_options_are_as_good_as_none(monkeypatch):
    settings = StoreSettings("s3", "s3://b", {"region": "r", "access_key": "", "secret_key": "", "profile": ""})
    assert options_of(monkeypatch, settings)[1].keys() == {"region", "checksum_algorithm", "bucket"}


@pytest.mark.parametrize(
    ("backend", "root", "options", "setting", "hint"),
    [
        ("s4", "x", {}, "backend", "fs, memory, s3, gcs, azblob"),
        ("file", "/x", {}, "backend", "'fs'"),
        ("http", "/", {"endpoint": "http://x"}, "backend", "cannot write"),
        ("s3", "s3://b", {"region": "r", "secret_acces_key": "x"}, "secret_acces_key", "secret_access_key"),
        ("s3", "s3://b", {"region": "r", "bucket": "other"}, "bucket", "no option"),
        ("s3", "s3://b", {"region": "r", "access_key": "x"}, "access_key", "goes with secret_key"),
        ("fs", "/x", {"region": "r"}, "region", "no option"),
        ("gcs", "gs://b", {"credentials_json": "{CANARY"}, "credentials_json", "not JSON"),
        ("azblob", "c", {"endpoint": "http://x", "account_name": "n", "account_key": "CANARY"}, "", "account_key"),
        ("s3", "s3://b", {"region": "r", "server_side_encryption_customer_key": "x", "anonymous": "CANARY"}, "", "s3"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(backend, root, options, setting, hint):
    with pytest.raises(InvalidConfigError, match=hint) as error:
        open_store(StoreSettings(backend, root, options))
    assert error.value.setting == f"wal_cloud.cloud.{setting}".rstrip(".")
    if "anonymous" not in options:
        assert "CANARY" not in str(error.value)


def test_a_memory_is_shared_by_its_name_and_a_directory_by_its_path(tmp_path):
    async def main():
        for backend, root, other in (
            ("memory", "shared-1", "shared-2"),
            ("fs", str(tmp_path / "1"), str(tmp_path / "2")),
        ):
            await open_store(StoreSettings(backend, root)).put_if_absent("k", b"1")
            assert await keys(open_store(StoreSettings(backend, root))) == ["k"]
            assert await keys(open_store(StoreSettings(backend, other))) == []

    asyncio.run(main())
    assert isinstance(open_store(StoreSettings("fs", str(tmp_path))), FsStore)


def test_s9_a_secret_is_hidden_in_every_shape_it_may_take():
    inner = "line one\nline/two+="
    whole = json.dumps({"private_key": inner, "client_email": "me"})
    hide = Redactor(["a b/c+d", whole]).hide
    for shape in (
        "a b/c+d", "a%20b%2Fc%2Bd", "a+b%2Fc%2Bd", base64.b64encode(b"a b/c+d").decode(), whole, inner,
        repr(inner)[1:-1], base64.b64encode(whole.encode()).decode(),
    ):  # fmt: skip
        assert hide(f"x {shape} y") == "x *** y"
    assert hide("me and true") == "me and true"
    assert Redactor(["", "true"]).hide("true") == "true"
    assert Redactor(["("]).text("Kind", "Kind at x => (") == "***"


_canaries = itertools.count(1)


def canary(kind):
    return f"CANARY{next(_canaries)}+/{kind}=="


async def told(settings):
    """Provoke every error there is, with a server that repeats whatever it hears; return all that was said."""
    said = [repr(settings), str(settings)]
    try:
        store = open_store(settings, retry=HASTY)
    except InvalidConfigError as error:
        return [*said, *traceback.format_exception(error), repr(vars(error))]
    said += [store.name, repr(store)]
    for call in (
        lambda: store.put_if_absent("k", b"1"),
        lambda: store.read("k", 0, 1),
        lambda: store.stat("k"),
        lambda: keys(store),
        lambda: store.delete("k"),
    ):
        try:
            await call()
        except IsterError as error:
            context = error.__context__
            said += [*traceback.format_exception(error), repr(vars(error)), repr(context), repr(error.__cause__)]
    return said


SECRETS = {
    "s3": ("access_key", "secret_key", "session_token"),
    "gcs": ("credentials_json", "token"),
    "azblob": ("account_key",),
    "oss": ("access_key_id", "access_key_secret"),
}


@pytest.mark.parametrize("status", [403, 404, 400, 500])
@pytest.mark.parametrize("backend", SECRETS)
def test_s9_no_secret_is_in_any_repr_or_error(backend, status):
    values = {name: canary(name) for name in SECRETS[backend]}
    inner = canary("private_key")
    if backend == "gcs":
        values["credentials_json"] = json.dumps({"type": "service_account", "private_key": inner, "client_email": "e"})
        if status == 500:
            del values["token"]
    if backend == "azblob":
        values["account_key"] = base64.b64encode(b"CANARY of a key").decode()
    secrets = [*values.values(), *([inner] if backend == "gcs" else [])]
    heard = []

    async def echo(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        heard.append(head)
        everything = " ".join(secrets) + head.decode()
        text = everything.replace("&", "").replace("<", "").replace('"', "")
        body = f"<Error><Code>Denied</Code><Message>{text}</Message></Error>".encode()
        writer.write(b"HTTP/1.1 %d Error\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
        writer.write(b"" if head.startswith(b"HEAD") else body)
        await writer.drain()
        writer.close()

    async def main():
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            usual = {"endpoint": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
            if backend == "s3":
                usual["region"] = "us-east-1"
            if backend == "azblob":
                usual["account_name"] = "n"
            if backend == "oss":
                usual["bucket"] = "b"
            root = {"s3": "s3://b/p", "gcs": "gs://b/p", "azblob": "c/p"}.get(backend, "/p")
            return await told(StoreSettings(backend, root, usual | values))

    said = "\n".join(asyncio.run(main()))
    assert heard or backend in {"gcs", "oss"}, "the server was asked"  # those need a real key, or a real host name
    assert "Error" in said, "something went wrong, as it should"
    for secret in (*secrets, "CANARY", "SharedKey", "AWS4-HMAC"):
        assert secret not in said
