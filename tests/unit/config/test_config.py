"""The configuration: the document's files, its defaults, where values come from, and what is refused with which line."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from ister.config import Cloud, ConfigError, WalSection, advice, load, loads, values
from ister.config.metadata_models import MetadataSection
from ister.config.reference import PLACES
from ister.core.errors import ClientError
from ister.ports.objects.factory import StoreSettings, open_store
from parts.config import DATA, problems, read, section

AWS = {"AWS_ACCESS_KEY_ID": "an id", "AWS_SECRET_ACCESS_KEY": "a secret"}


def cloud(text, **environ):
    return read(section("wal_cloud.cloud", text), environ).config.wal_cloud.cloud


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_documents_own_file_is_read_as_it_is():
    loaded = load(DATA / "spec_danube_broker.yml", None, {})
    wal_cloud = loaded.config.wal_cloud
    assert wal_cloud.wal == WalSection()
    assert wal_cloud.wal.dir == Path("./danube-data/wal")
    assert (wal_cloud.uploader.enabled, wal_cloud.uploader.interval_seconds) == (True, 300)
    assert (wal_cloud.uploader.root_prefix, wal_cloud.uploader.max_object_mb) == ("/danube-data", 1024)
    assert wal_cloud.cloud.revealed_options() == {
        "region": "us-east-1",
        "endpoint": "http://minio:9000",
        "access_key": "minioadmin",
        "secret_key": "minioadmin123",
    }
    metadata = wal_cloud.metadata
    assert (metadata.kind, metadata.etcd_endpoint) == ("etcd", ("127.0.0.1:2379",))
    unset = (metadata.etcd_ca, metadata.etcd_cert, metadata.etcd_key, metadata.etcd_user, metadata.etcd_password)
    assert unset == (None,) * 5


def test_every_default_is_the_documents():
    config = load(None, None, {}).config.wal_cloud
    wal = config.wal
    assert (wal.dir, wal.file_name, wal.cache_capacity) == (Path("danube-data/wal"), "wal.log", 1024)
    assert (wal.file_sync.interval_ms, wal.file_sync.max_batch_bytes) == (5000, 10 * 1024 * 1024)
    assert (wal.rotation.max_bytes, wal.rotation.max_hours) == (512 * 1024 * 1024, None)
    assert (wal.retention.time_minutes, wal.retention.size_mb, wal.retention.check_interval_minutes) == (
        48 * 60,
        20480,
        5,
    )
    assert wal.sync_mode == "periodic"
    assert (config.uploader.enabled, config.uploader.interval_seconds) == (True, 300)
    assert (config.uploader.root_prefix, config.uploader.max_object_mb) == ("/danube-data", None)
    assert (config.cloud.backend, config.cloud.root) == ("fs", "danube-data/objects")
    assert (config.metadata.kind, config.metadata.sqlite_file) == ("sqlite", Path("danube-data/metadata.db"))


@pytest.mark.parametrize(
    ("name", "root", "options"),
    [
        (
            "s3",
            "s3://my-bucket/prefix",
            {
                "region": "us-east-1",
                "endpoint": "https://s3.us-east-1.amazonaws.com",
                "access_key": "an id",
                "secret_key": "a secret",
            },
        ),
        ("gcs", "gcs://my-bucket/prefix", {"project": "my-gcp-project", "credentials_path": "/path/to/creds.json"}),
        (
            "azblob",
            "my-container/prefix",
            {
                "endpoint": "https://<account>.blob.core.windows.net",
                "account_name": "<account_name>",
                "account_key": "<account_key>",
            },
        ),
        ("memory", "mem-prefix", {}),
        ("fs", "./object_root", {}),
    ],
)
def test_the_documents_provider_examples_are_read_as_they_are(name, root, options):
    found = load(DATA / f"spec_{name}.yml", None, AWS).config.wal_cloud.cloud
    assert (found.backend, found.root, found.revealed_options()) == (name, root, options)


@pytest.mark.parametrize("name", ["s3", "gcs", "memory", "fs"])
def test_the_port_for_objects_takes_what_the_configuration_says(name):
    found = load(DATA / f"spec_{name}.yml", None, AWS).config.wal_cloud.cloud
    assert open_store(StoreSettings(found.backend, found.root, found.revealed_options())).name.startswith(name)


# --- places and origins -----------------------------------------------------------------------------------------------


def test_a_data_directory_holds_everything_that_has_no_place():
    loaded = load(None, Path("/data"), {})
    config = loaded.config.wal_cloud
    assert (config.wal.dir, config.cloud.root) == (Path("/data/wal"), "/data/objects")
    assert (config.metadata.kind, config.metadata.sqlite_file) == ("sqlite", Path("/data/metadata.db"))
    catalog = loaded.config.storage.iceberg_config.catalog
    assert (catalog.uri, catalog.warehouse) == ("sqlite:////data/catalog.db", "/data/warehouse")
    moved = {value.key for value in values(loaded) if value.origin.kind == "--data-dir"}
    assert moved == PLACES


def test_the_file_wins_over_the_data_directory():
    loaded = read(section("wal_cloud.wal", "dir: /fast/wal"), data_dir=Path("/data"))
    config = loaded.config.wal_cloud
    assert (config.wal.dir, config.cloud.root) == (Path("/fast/wal"), "/data/objects")
    assert config.metadata.sqlite_path == Path("/data/metadata.db")
    assert loaded.origin("wal_cloud.wal.dir").at("f.yml") == "f.yml:3"


def test_without_a_data_directory_things_lie_beside_the_log():
    config = read(section("wal_cloud.wal", "dir: /fast/wal")).config.wal_cloud
    assert (config.cloud.root, config.metadata.sqlite_path) == ("/fast/objects", Path("/fast/metadata.db"))


@pytest.mark.parametrize("text", ["etcd_endpoint: a:1", "in_memory: true", "in_memory: ${YES}"])
def test_sqlite_has_no_path_where_it_is_not_used(text):
    metadata = read(section("wal_cloud.metadata", text), {"YES": "true"}, Path("/data")).config.wal_cloud.metadata
    assert metadata.sqlite_path is None
    assert metadata.kind in {"etcd", "memory"}


def test_a_data_directory_without_effect_is_told():
    text = "wal_cloud:\n  wal: {dir: a}\n  cloud: {root: b}\n  metadata: {in_memory: true}\n"
    text += "storage: {iceberg_config: {catalog: {type: rest, uri: 'http://h'}}}\n"
    assert "--data-dir" in [warning.key for warning in advice(read(text, data_dir=Path("/data")))]
    assert "--data-dir" not in [warning.key for warning in advice(read(text))]
    assert advice(load(None, Path("/data"), {})) == []


def test_a_data_directory_that_the_shell_did_not_expand_is_refused():
    with pytest.raises(ConfigError, match="--data-dir: begins with ~"):
        load(None, Path("~/data"), {})
    with pytest.raises(ConfigError, match="--data-dir: holds characters"):
        load(None, Path("/data\udcff"), {})


def test_a_directory_that_only_looks_like_a_home_is_taken():
    config = read(section("wal_cloud.wal", "dir: ./~x/wal")).config.wal_cloud
    assert (config.cloud.root, config.metadata.sqlite_path) == ("./~x/objects", Path("~x/metadata.db"))


def test_every_value_knows_where_it_came_from():
    loaded = read(
        'wal_cloud:\n  wal: {cache_capacity: 7}\n  cloud:\n    backend: s3\n    root: "s3://${B}/${C}"\n    profile: null\n',
        {"B": "bucket", "C": "c"},
    )
    assert loaded.config.wal_cloud.cloud.root == "s3://bucket/c"
    origins = {value.key: value.origin.at("f.yml") for value in values(loaded)}
    assert origins["wal_cloud.wal.cache_capacity"] == "f.yml:2"
    assert origins["wal_cloud.cloud.root"] == "$B, $C (f.yml:5)"
    assert origins["wal_cloud.cloud.profile"] == "f.yml:6"
    assert origins["wal_cloud.uploader.enabled"] == "default"
    hosts = read(section("wal_cloud.metadata", "etcd_endpoint: ['${B}:1', c:2, '${C}:3']"), {"B": "b", "C": "c"})
    assert hosts.origin("wal_cloud.metadata.etcd_endpoint").variables == ("B", "C")
    assert origins["wal_cloud.metadata.sqlite_path"] == "default"


def test_an_empty_file_and_empty_sections_mean_the_defaults():
    for text in ("", "# nothing\n", "---\n", "wal_cloud:\n", "wal_cloud:\n  wal:\n  cloud: {}\n  metadata: ~\n"):
        assert read(text).config == load(None, None, {}).config


def test_a_byte_order_mark_is_skipped():
    assert loads(b"\xef\xbb\xbfwal_cloud: {wal: {cache_capacity: 2}}", "f").config.wal_cloud.wal.cache_capacity == 2


def test_the_environment_is_the_process_s_unless_told(monkeypatch, tmp_path):
    monkeypatch.setenv("ISTER_TEST_CAPACITY", "77")
    path = tmp_path / "f.yml"
    path.write_text(section("wal_cloud.wal", "cache_capacity: ${ISTER_TEST_CAPACITY}"))
    assert load(path).config.wal_cloud.wal.cache_capacity == 77
    with pytest.raises(ConfigError):
        load(path, None, {})


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.yml")


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "environ", "meant"),
    [
        ("${X}", {"X": "value"}, "value"),
        ('"a${X}b${X}"', {"X": "-"}, "a-b-"),
        ("'${X}'", {"X": "null"}, "null"),
        ("$${X}", {"X": "value"}, "${X}"),
        ("$$${X}", {"X": "value"}, "$${X}"),
        ("$X $ $$ {X}", {"X": "value"}, "$X $ $$ {X}"),
        ("${X}", {"X": "${Y} $${Z}"}, "${Y} $${Z}"),
        ("0123", {}, "0123"),
        ("1e3", {}, "1e3"),
        ("yes", {}, "yes"),
        ("2026-01-01", {}, "2026-01-01"),
        ('"null"', {}, "null"),
        ("|\n      two\n      lines", {}, "two\nlines\n"),
    ],
)
def test_text_means_what_it_says_with_its_variables_filled_in(written, environ, meant):
    assert cloud(f"backend: s3\nroot: s3://b\nregion: {written}", **environ).region == meant


def test_numbers_and_truth_values_are_read_after_their_variables_are_filled_in():
    text = "wal_cloud:\n  uploader: {enabled: '${ON}', interval_seconds: '${N}0'}\n  wal: {rotation: {max_hours: '${H}'}}\n"
    config = read(text, {"ON": "false", "N": "6", "H": "1.5"}).config.wal_cloud
    assert (config.uploader.enabled, config.uploader.interval_seconds) == (False, 60)
    assert config.wal.rotation.max_hours == 1.5


@pytest.mark.parametrize("written", ["10_485_760", "10485760", "'10485760'"])
def test_a_whole_number_may_be_written_so(written):
    found = read(section("wal_cloud.wal.file_sync", f"max_batch_bytes: {written}")).config.wal_cloud.wal
    assert found.file_sync.max_batch_bytes == 10485760


@pytest.mark.parametrize(
    ("written", "endpoints"),
    [
        ("127.0.0.1:2379", ("127.0.0.1:2379",)),
        ('"a:1,b:2, c:3"', ("a:1", "b:2", "c:3")),
        ("[a:1, 'b:2']", ("a:1", "b:2")),
        ("\n      - a:1\n      - ${E}", ("a:1", "e:9")),
        ('"[::1]:2379"', ("[::1]:2379",)),
    ],
)
def test_etcd_has_one_endpoint_or_several(written, endpoints):
    loaded = read(section("wal_cloud.metadata", f"etcd_endpoint: {written}"), {"E": "e:9"})
    assert loaded.config.wal_cloud.metadata.etcd_endpoint == endpoints


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("wal_cloud.wal|cache_capacity: 0", "must be at least 1"),
        ("wal_cloud.wal|cache_capacity: many", "must be a whole number"),
        ("wal_cloud.wal|cache_capacity: 1.5", "must be a whole number"),
        ("wal_cloud.wal|cache_capacity: " + "9" * 5000, "must be a whole number"),
        ("wal_cloud.wal|cache_capacity: {}", "must be one value"),
        ("wal_cloud.wal|cache_capacity:", "has no value"),
        ("wal_cloud.wal|dir: ''", "must not be empty"),
        ("wal_cloud.wal|dir: ~/data", "${HOME}"),
        ("wal_cloud.wal|dir: [a, b]", "must be one value"),
        ('wal_cloud.wal|dir: "a\\nb/c"', "must be one line"),
        ("wal_cloud.wal|file_name: wal", "like wal.log"),
        ("wal_cloud.wal|file_name: a/b.log", "like wal.log"),
        ("wal_cloud.wal|file_name: wal.tmp", "must not end in .tmp"),
        ("wal_cloud.wal|file_name: wal.aside", "must not end in .aside"),
        ("wal_cloud.wal|sync_mode: sometimes", "must be one of always, periodic or none"),
        ("wal_cloud.wal.rotation|max_bytes: 4095", "must be at least 4,096"),
        ("wal_cloud.wal.rotation|max_hours: 0", "must be more than 0"),
        ("wal_cloud.wal.rotation|max_hours: nan", "must be a number"),
        ("wal_cloud.wal.rotation|max_hours: .inf", "must be a number"),
        ("wal_cloud.wal.rotation|max_hours: inf", "must be a number"),
        ("wal_cloud.wal.retention|size_mb: -1", "must be at least 1"),
        ("wal_cloud.wal.retention|time_minutes: 99999999999", "must be at most 52,560,000"),
        ("wal_cloud.uploader|enabled: maybe", "must be true or false"),
        ("wal_cloud.uploader|root_prefix: danube", "must begin with /"),
        ("wal_cloud.uploader|root_prefix: /a/../b", "must begin with /"),
        ("wal_cloud.uploader|root_prefix: /a/", "must begin with /"),
        ("wal_cloud.cloud|backend: azure", "did you mean azblob"),
        ("wal_cloud.cloud|backend: S3", "did you mean s3"),
        ("wal_cloud.cloud|backend: memroy", "did you mean memory"),
        ("wal_cloud.cloud|backend: a b", "another OpenDAL service"),
        ("wal_cloud.cloud|root: null", "has no value"),
        ("wal_cloud.cloud|root: file:///x", "must be a directory"),
        ("wal_cloud.cloud|root: ~/x", "${HOME}"),
        ("wal_cloud.cloud|options: text", "must be a section"),
        ("wal_cloud.cloud|options: {a: [1]}", "must be one value"),
        ("wal_cloud.cloud|options: {a: null}", "must be one value"),
        ("wal_cloud.cloud|options: {'a b': 1}", "is no name of an option"),
        ("wal_cloud.metadata|etcd_endpoint: http://a:1", "without http://"),
        ("wal_cloud.metadata|etcd_endpoint: a", "must be host:port"),
        ("wal_cloud.metadata|etcd_endpoint: a:70000", "must be host:port"),
        ("wal_cloud.metadata|etcd_endpoint: 'a:1,,b:2'", "must not be empty"),
        ("wal_cloud.metadata|etcd_endpoint: []", "must not be empty"),
        ("wal_cloud.metadata|etcd_endpoint: [[a:1]]", "must be one value"),
    ],
)
def test_a_bad_value_is_refused_with_its_line_and_a_reason(text, where):
    path, _, line = text.partition("|")
    [problem] = problems(section(path, line))
    assert problem.startswith(f"f.yml:{path.count('.') + 2}: {path}.{line.split(':')[0]}")
    assert where in problem


@pytest.mark.parametrize(
    ("backend", "root"),
    [
        ("s3", "bucket/prefix"),
        ("s3", "gcs://bucket"),
        ("s3", "s3://"),
        ("s3", "s3:///prefix"),
        ("s3", "s3://user:password@bucket"),
        ("s3", "s3://bucket/../other"),
        ("gcs", "s3://bucket"),
        ("azblob", "azblob://container"),
        ("azblob", "/container"),
        ("memory", "mem://x"),
        ("oss", "oss://x"),
    ],
)
def test_a_root_of_the_wrong_form_is_refused_with_the_line_of_its_backend(backend, root):
    [problem] = problems(section("wal_cloud.cloud", f"backend: {backend}\nroot: {root}"))
    assert problem.startswith("f.yml:4: wal_cloud.cloud.root: must ")
    assert problem.endswith("(backend is in line 3)")


@pytest.mark.parametrize(
    ("backend", "root"), [("s3", "s3://b"), ("s3", "s3://b/a/"), ("gcs", "gs://b/p"), ("azblob", "c"), ("fs", "../o")]
)
def test_a_root_of_the_right_form_is_taken(backend, root):
    assert cloud(f"backend: {backend}\nroot: {root}").root == root


def test_a_root_that_is_needed_and_missing_is_told_with_the_section():
    [problem] = problems(section("wal_cloud.cloud", "backend: s3"))
    assert problem == (
        "f.yml:2: wal_cloud.cloud.root: is missing; backend s3 needs a bucket or container (backend is in line 3)"
    )


@pytest.mark.parametrize(("backend", "root"), [("memory", "memory"), ("oss", "/")])
def test_a_store_without_a_bucket_of_ours_has_a_root(backend, root):
    assert cloud(f"backend: {backend}").root == root


@pytest.mark.parametrize(
    "endpoint", ["minio:9000", "ftp://h", "https://", "https://u:p@h", "https://h:x", "http://[::1", "https://h/?a=b"]
)
def test_an_endpoint_is_an_address_without_credentials(endpoint):
    [problem] = problems(section("wal_cloud.cloud", f"backend: s3\nroot: s3://b\nendpoint: '{endpoint}'"))
    assert problem.startswith("f.yml:5: wal_cloud.cloud.endpoint: ")


# --- contradictions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("metadata", "in_memory: true\netcd_endpoint: a:1", "3: {}.in_memory: contradicts etcd_endpoint"),
        ("metadata", "etcd_endpoint: a:1\nsqlite_path: m", "4: {}.sqlite_path: contradicts etcd_endpoint"),
        ("metadata", "in_memory: true\nsqlite_path: m", "4: {}.sqlite_path: contradicts in_memory: true"),
        ("metadata", "in_memory: false\netcd_ca: c", "4: {}.etcd_ca: needs etcd_endpoint too"),
        ("metadata", "etcd_endpoint: a:1\netcd_cert: c", "4: {}.etcd_cert: needs etcd_key too"),
        ("metadata", "etcd_endpoint: a:1\netcd_password: c", "4: {}.etcd_password: needs etcd_user too"),
        (
            "cloud",
            "backend: s3\nroot: s3://b\naccount_key: c\naccount_name: d",
            "5: {}.account_key: belongs to backend azblob",
        ),
        ("cloud", "backend: fs\nregion: c", "4: {}.region: belongs to backend s3, but backend is fs; take it out"),
        (
            "cloud",
            "backend: oss\nregion: c",
            "4: {}.region: belongs to backend s3, but backend is oss; put it under options",
        ),
        ("cloud", "region: c", "3: {}.region: belongs to backend s3, but backend is fs"),
        ("cloud", "backend: s3\nroot: s3://b\naccess_key: c", "5: {}.access_key: needs secret_key too"),
        ("cloud", "backend: s3\nroot: s3://b\nsession_token: c", "5: {}.session_token: needs access_key too"),
        ("cloud", "backend: azblob\nroot: b\naccount_key: c", "5: {}.account_key: needs account_name too"),
        (
            "cloud",
            "backend: s3\nroot: s3://b\nanonymous: true\nprofile: c",
            "6: {}.profile: contradicts anonymous: true; keep one of them (anonymous is in line 5)",
        ),
        (
            "cloud",
            "backend: gcs\nroot: gs://b\ncredentials_json: c\ncredentials_path: d",
            "5: {}.credentials_json: and credentials_path are both given",
        ),
        (
            "cloud",
            "backend: s3\nroot: s3://b\nregion: c\noptions: {region: d}",
            "5: {}.region: stands under options too; keep one of them (options is in line 6)",
        ),
    ],
)
def test_a_contradiction_is_refused_with_both_places(path, text, problem):
    found = problems(section(f"wal_cloud.{path}", text))
    assert found[0].startswith("f.yml:" + problem.format(f"wal_cloud.{path}"))


def test_the_switch_that_is_off_contradicts_nothing():
    read(section("wal_cloud.metadata", "in_memory: false\netcd_endpoint: a:1"))
    assert cloud("backend: gcs\nroot: gs://b\nvirtual_host_style: false").backend == "gcs"
    assert cloud("backend: fs\nroot: b\nregion: null").region is None


def test_a_program_that_builds_a_section_is_checked_too():
    with pytest.raises(ValidationError, match="root is missing"):
        Cloud(backend="s3")
    with pytest.raises(ValidationError, match="contradicts"):
        MetadataSection(in_memory=True, etcd_endpoint=("a:1",))
    with pytest.raises(ValidationError):
        WalSection(nonsense=1)
    with pytest.raises(ValidationError, match="frozen"):
        WalSection().file_name = "x.log"


# --- all problems at once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "typo", "hint"),
    [
        ("", "wal_clud: {}", "did you mean wal_cloud?"),
        ("", "raft: {}", "known here: cluster_name, broker_host, "),
        ("broker", "host: x", "write broker_host at the top of the file"),
        ("auth", "jwt: {}", "tokens come in a later release"),
        ("wal_cloud", "admin_port: 1", "it belongs to the top of the file"),
        ("wal_cloud", "uploaded: {}", "did you mean uploader?"),
        ("wal_cloud.wal", "cache_capcity: 1", "did you mean cache_capacity?"),
        ("wal_cloud.wal", "Dir: x", "did you mean dir?"),
        ("wal_cloud.wal", "interval_ms: 1", "it belongs to wal_cloud.wal.file_sync"),
        ("wal_cloud.cloud", "acess_key: x", "did you mean access_key?"),
        ("wal_cloud.metadata", "etcd_endpoints: x", "did you mean etcd_endpoint?"),
        ("wal_cloud.metadata", "<<: {in_memory: true}", "known here: "),
    ],
)
def test_s15_a_key_that_is_not_known_is_refused_with_the_nearest_one(path, typo, hint):
    [problem] = problems(section(path, typo) if path else typo)
    key = f"{path}.{typo.split(':')[0]}".lstrip(".")
    assert problem.startswith(f"f.yml:{path.count('.') + 2 if path else 1}: {key}: is not a known key; ")
    assert hint in problem


def test_every_problem_is_told_at_once_in_the_order_of_the_file():
    text = """\
wal_cloud:
  wall: {}
  wal:
    file_sync: {interval_ms: soon}
    sync_mode: x
  uploader:
    interval_seconds: ${NOPE}
    interval_seconds: 5
  cloud:
    backend: s3
    root: gcs://b
    secret_key: [1]
    region: !!str a
  metadata: {in_memory: true, etcd_endpoint: a:1, etcd_user: u}
"""
    found = problems(text)
    assert [line.split(": ")[0].removeprefix("f.yml:") for line in found] == [
        "2", "4", "5", "7", "8", "11", "12", "13", "14", "14",
    ]  # fmt: skip
    assert "wal_cloud.uploader.interval_seconds: stands here and in line 7; keep one of them" in found[4]


def test_a_bad_value_does_not_hide_a_contradiction_beside_it():
    text = "wal_cloud:\n  cloud:\n    backend: s3\n    root: s3://b\n    anonymous: maybe\n    account_name: a\n"
    assert [line.split(":")[1] for line in problems(text)] == ["5", "6"]


def test_one_mistake_is_told_once():
    text = "wal_cloud:\n  cloud:\n    backend: s3\n    root: s3://b\n    acces_key: a\n    secret_key: b\n"
    assert len(problems(text)) == 1
    assert len(problems(text.replace("acces_key: a", "access_key: ${NO}"))) == 1
    assert len(problems(text.replace("acces_key: a", "access_key: [a]"))) == 1
    assert len(problems(text.replace("acces_key: a", "access_key: *a"))) == 1
    assert len(problems("wal_cloud:\n  metadata: {etcd_endpoint: x, etcd_user: a, etcd_password: b}\n")) == 1


def test_the_error_is_a_bad_request_that_a_program_can_read():
    with pytest.raises(ClientError) as caught:
        read("wal_cloud:\n  wal:\n    dirr: 1\n    cache_capacity: 0\n")
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [
        (3, "wal_cloud.wal.dirr"),
        (4, "wal_cloud.wal.cache_capacity"),
    ]
    assert str(caught.value) == (
        "f.yml:3: wal_cloud.wal.dirr: is not a known key; did you mean dir? (and 1 more; `ister config check f.yml` lists them)"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "wal_cloud:\n  cloud:\n    region: a${NOPE}b${NOPE}\n    backend: s3\n    root: s3://b",
            "f.yml:3: wal_cloud.cloud.region: needs the environment variable NOPE, which is not set; set it",
        ),
        ("wal_cloud:\n  cloud: {root: '${'}", "f.yml:2: wal_cloud.cloud.root: has ${ without a name and } behind it"),
        ("wal_cloud:\n  cloud: {root: '${A-B}'}", "f.yml:2: wal_cloud.cloud.root: has ${ without a name"),
        (
            "wal_cloud:\n  wal: {cache_capacity: '${WORD}'}",
            "f.yml:2: wal_cloud.wal.cache_capacity: must be a whole number (its value is from $WORD)",
        ),
        ("- a", "f.yml:1: the file must be a section"),
        ("wal_cloud: 3", "f.yml:1: wal_cloud: must be a section"),
        ("wal_cloud:\n  wal: [1]", "f.yml:2: wal_cloud.wal: must be a section"),
        ("wal_cloud:\n  ? [a]\n  : b", "f.yml:2: wal_cloud: has a key that is not a plain word"),
        ("a: 1\n---\nb: 2", "f.yml:2: a second document (---) begins here; keep one"),
        ("wal_cloud:\n\twal: 1", "f.yml:2: is not YAML"),
        ("wal_cloud: {\n", "f.yml:2: is not YAML"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text, problem):
    assert problems(text, {"WORD": "word"})[0].startswith(problem)


# --- advice -----------------------------------------------------------------------------------------------------------

KEYS = "backend: s3\nroot: s3://b\naccess_key: ${K}\nsecret_key: ${K}\nendpoint: "


@pytest.mark.parametrize(
    ("path", "text", "warned"),
    [
        ("wal.retention", "time_minutes: 19", ["wal_cloud.wal.retention.time_minutes"]),
        ("wal.retention", "time_minutes: 20", []),
        ("uploader", "interval_seconds: 43201", ["wal_cloud.wal.retention.time_minutes"]),
        ("uploader", "enabled: false", ["wal_cloud.uploader.enabled"]),
        ("uploader", "enabled: false\ninterval_seconds: 43201", ["wal_cloud.uploader.enabled"]),
        ("metadata", "in_memory: true", ["wal_cloud.metadata.in_memory"]),
        ("cloud", "backend: memory", ["wal_cloud.cloud.backend"]),
        ("cloud", KEYS + "http://minio:9000", ["wal_cloud.cloud.endpoint"]),
        ("cloud", KEYS + "https://minio:9000", []),
        ("cloud", KEYS + "http://127.0.0.9:9000", []),
        ("cloud", KEYS + "http://localhost:9000", []),
        ("cloud", KEYS + "'http://[::1]:9000'", []),
        ("cloud", KEYS + "http://10.0.0.1:9000", ["wal_cloud.cloud.endpoint"]),
        ("cloud", "backend: s3\nroot: s3://b\nanonymous: true\nendpoint: http://minio", []),
        ("cloud", "backend: azblob\nroot: b\naccount_name: a\naccount_key: literal", ["wal_cloud.cloud.account_key"]),
        ("cloud", "backend: oss\noptions: {my_token: literal, bucket: b}", ["wal_cloud.cloud.options.my_token"]),
        ("cloud", "backend: oss\noptions: {my_token: '${K}'}", []),
        ("metadata", "etcd_endpoint: a:1\netcd_user: u\netcd_password: ${K}", ["wal_cloud.metadata.etcd_password"]),
        ("metadata", "etcd_endpoint: a:1\netcd_ca: c\netcd_user: u\netcd_password: ${K}", []),
        ("metadata", "etcd_endpoint: '[::1]:1'\netcd_user: u\netcd_password: ${K}", []),
    ],
)  # fmt: skip
def test_what_will_be_regretted_is_warned_about(path, text, warned):
    loaded = read(section(f"wal_cloud.{path}", text), {"K": "a secret"})
    assert [warning.key for warning in advice(loaded)] == warned
