"""The broker's part of the configuration: upstream's keys, what clients are told, and what is refused."""

import pytest

from ister.config import advice, load, values
from parts.config import problems, read, section

UPSTREAM = """\
cluster_name: "MY_CLUSTER"
broker_host: "0.0.0.0"
broker_port: 6650
admin_port: 50051
prom_port: 9040
bootstrap_namespaces:
  - "default"
  - "shop"
auto_create_topics: false
auth:
  mode: none
policies:
  max_producers_per_topic: 1
  max_subscriptions_per_topic: 2
  max_consumers_per_topic: 3
  max_consumers_per_subscription: 4
  max_publish_rate: 5
  max_subscription_dispatch_rate: 6
  max_message_size: 7
"""


def test_without_a_file_the_broker_listens_on_this_machine_only_at_the_usual_ports():
    config = load(None, None, {}).config
    assert config.broker_host == "127.0.0.1"
    assert (config.broker_port, config.admin_port, config.prom_port) == (6650, 50051, 9040)
    assert (config.bootstrap_namespaces, config.auto_create_topics) == (("default",), True)
    assert (config.auth.mode, config.dispatch.max_unacked_messages) == ("none", 10)


def test_every_grace_and_interval_has_the_protocols_default():
    broker = load(None, None, {}).config.broker
    assert (broker.consumer_grace_ms, broker.producer_expiry_ms) == (10_000, 15_000)
    assert (broker.volatile_subscription_expiry_ms, broker.cursor_interval_ms) == (60_000, 1000)
    assert (broker.non_reliable_queue, broker.drain_timeout_ms) == (1024, 10_000)
    assert broker.message_bytes_max < 4 * 1024 * 1024, (
        "official clients cannot receive more, whatever is added on the way"
    )


def test_upstreams_keys_are_read_as_they_are():
    config = read(UPSTREAM).config
    assert config.bootstrap_namespaces == ("default", "shop")
    assert config.auto_create_topics is False
    policies = config.policies
    assert (policies.max_producers_per_topic, policies.max_subscriptions_per_topic) == (1, 2)
    assert (policies.max_consumers_per_topic, policies.max_consumers_per_subscription) == (3, 4)
    assert (policies.max_publish_rate, policies.max_subscription_dispatch_rate) == (5, 6)
    assert policies.max_message_size == 7


def test_upstreams_policies_default_to_no_limit_but_the_size():
    policies = load(None, None, {}).config.policies
    limits = policies.model_dump()
    assert {limits[key] for key in limits if key.startswith("max_") and key != "max_message_size"} == {0}
    assert policies.max_message_size == 10_485_760


@pytest.mark.parametrize("written", ["none", "null", "~", "", "off", '"none"', "${X}"])
def test_metrics_can_be_off(written):
    loaded = read(f"prom_port: {written}\n", {"X": "none"})
    assert loaded.config.prom_port is None
    assert loaded.origin("prom_port").line == 1


@pytest.mark.parametrize("key", ["broker_port", "admin_port", "prom_port"])
def test_a_port_may_be_any_that_is_free(key):
    assert getattr(read(f"{key}: 0").config, key) == 0


@pytest.mark.parametrize(
    ("written", "names"),
    [("[]", ()), ("''", ()), ("a", ("a",)), ("'a, b'", ("a", "b")), ("[a, '${X}']", ("a", "x_1"))],
)
def test_namespaces_are_one_or_several_or_none(written, names):
    assert read(f"bootstrap_namespaces: {written}", {"X": "x_1"}).config.bootstrap_namespaces == names


@pytest.mark.parametrize(
    ("host", "meant"),
    [("0.0.0.0", "0.0.0.0"), ("'::'", "::"), ("'[::1]'", "::1"), ("broker-1.example.com", "broker-1.example.com")],
)
def test_a_host_is_a_name_or_an_address(host, meant):
    assert read(f"broker_host: {host}").config.broker_host == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("b-1:6650", "http://b-1:6650"),
        ("http://b-1:6650/", "http://b-1:6650"),
        ("https://proxy.example.com:443", "https://proxy.example.com:443"),
        ("'[::1]:7'", "http://[::1]:7"),
    ],
)
def test_what_clients_are_told_is_absolute(written, meant):
    told = read(section("advertised_listeners", f"broker_url: {written}\nconnect_url: {written}")).config
    assert told.advertised_listeners.broker_url == told.advertised_listeners.connect_url == meant


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("|broker_host: http://a", "must be a host name or an IP address alone"),
        ("|broker_host: a:6650", "must be a host name or an IP address alone"),
        ("|broker_host: a b", "must be a host name or an IP address alone"),
        ("|broker_port: 65536", "must be at most 65,535"),
        ("|broker_port: none", "must be a whole number"),
        ("|admin_port:", "has no value"),
        ("|prom_port: often", "must be a whole number"),
        ("|bootstrap_namespaces: [a/b]", "must be made of letters, digits, _ and -"),
        ("|bootstrap_namespaces: [[a]]", "must be one value"),
        ("|auto_create_topics: sometimes", "must be true or false"),
        ("auth|mode: tls", "TLS and tokens come in a later release"),
        ("auth|mode: tlswithjwt", "TLS and tokens come in a later release"),
        ("dispatch|max_unacked_messages: 0", "must be at least 1"),
        ("dispatch|max_unacked_messages: 10001", "must be at most 10,000"),
        ("broker|message_bytes_max: 99999999999", "must be at most 66,060,288"),
        ("broker|drain_timeout_ms: 0", "must be at least 1"),
        ("advertised_listeners|broker_url: b", "must be an address with a port"),
        ("advertised_listeners|broker_url: ftp://b:1", "must be an address with a port"),
        ("advertised_listeners|broker_url: http://b:1/path", "must be an address with a port"),
        ("advertised_listeners|broker_url: http://user:pw@b:1", "must be an address with a port"),
        ("advertised_listeners|broker_url: http://b:70000", "must be an address with a port"),
        ("policies|max_message_size: -1", "must be at least 0"),
        ("policies|ack_level: disk", "must be one of wal, fsync, cloud or lake"),
        ("policies|retention_policy: soon", "must be one of none, retain_until_ack or retain_until_expire"),
        ("policies|start_position: middle", "must be one of latest or earliest"),
        ("policies|ack_level: lake\nlake: false", "needs a table; lake: false says that there is none"),
    ],
)
def test_a_bad_value_is_refused_with_its_line_and_a_reason(text, where):
    path, _, line = text.partition("|")
    [problem] = problems(section(path, line) if path else f"{line}\n")
    key = f"{path}.{line.split(':')[0]}".lstrip(".")
    assert problem.startswith(f"f.yml:{2 if path else 1}: {key}: ")
    assert where in problem


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("broker_host: localhost", []),
        ("broker_host: 10.0.0.1", ["broker_host"]),
        ("broker_host: 0.0.0.0", ["broker_host", "broker_host"]),
        ("broker_host: 0.0.0.0\nadvertised_listeners: {broker_url: b:1}", ["broker_host"]),
        ("policies: {ack_level: cloud}", []),
        (
            "policies: {ack_level: cloud}\nwal_cloud: {uploader: {enabled: false}}",
            ["policies.ack_level", "wal_cloud.uploader.enabled"],
        ),
    ],
)
def test_what_will_be_regretted_is_warned_about(text, warned):
    assert [warning.key for warning in advice(read(text))] == warned


@pytest.mark.parametrize(("mode", "level"), [("always", "fsync"), ("periodic", "wal"), ("none", "wal")])
def test_the_level_is_the_sync_modes_unless_it_is_given(mode, level):
    text = section("wal_cloud.wal", f"sync_mode: {mode}")
    assert read(text).config.policy_defaults().ack_level == level
    assert read(f"{text}policies: {{ack_level: cloud}}\n").config.policy_defaults().ack_level == "cloud"


def test_the_data_directory_is_what_was_told_or_where_the_log_is(tmp_path):
    assert load(None, tmp_path, {}).home == tmp_path
    assert read(section("wal_cloud.wal", "dir: /fast/wal")).home.as_posix() == "/fast"


def test_every_value_can_be_shown():
    shown = {value.key: value.shown for value in values(read(UPSTREAM))}
    assert shown["bootstrap_namespaces"] == ["default", "shop"]
    assert shown["policies.max_message_size"] == 7
    assert shown["advertised_listeners.broker_url"] is None
