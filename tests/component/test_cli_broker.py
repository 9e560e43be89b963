"""The commands that ask a broker, against a real one in its own process."""

import json
import re
import time
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from typer.testing import CliRunner

from interop.broker import Broker
from ister.cli.app import app
from ister.cli.commands import consume as consume_module
from ister.cli.commands import produce as produce_module

pytestmark = pytest.mark.slow

READ = ["--no-follow", "--idle", "0.7"]


@pytest.fixture(scope="module")
def broker():
    with Broker() as running:
        yield running


@pytest.fixture
def run(broker):
    def running(*args, stdin=None):
        environ = {"ISTER_BROKER": broker.url, "ISTER_ADMIN": f"http://{broker.admin_target}", "COLUMNS": "120"}
        return CliRunner(env=environ).invoke(app, [str(arg) for arg in args], input=stdin)

    yield running
    structlog.reset_defaults()


@pytest.fixture
def topic(request):
    """A topic of each test's own."""
    return f"/default/{re.sub(r'[^a-z_]+', '_', request.node.name[5:90])}"


def ok(result):
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result, code=2):
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("ister: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("ister: ").rstrip("\n")


def lines(result):
    return [json.loads(line) for line in ok(result).splitlines()]


# --- produce and consume ----------------------------------------------------------------------------------------------


def test_what_is_produced_is_consumed_in_order(run, topic):
    assert ok(run("produce", topic, "-m", "one", "-m", "two")) == f"2 messages stored in {topic}, from offset 0 to 1.\n"
    assert ok(run("produce", topic, "-m", "three")) == f"1 message stored in {topic} at offset 2.\n"
    result = run("consume", topic, "--from", "earliest", *READ, "-o", "payload")
    assert ok(result) == "one\ntwo\nthree\n"
    assert result.stderr == "ister: 3 messages received.\n"


def test_each_line_of_stdin_is_stored(run, topic):
    sent = json.loads(ok(run("produce", topic, "-o", "json", stdin="a\n\nb\n")))
    assert sent == {
        "topic": topic,
        "messages": 3,
        "stored": [{"topic": topic, "messages": 3, "first_offset": 0, "last_offset": 2}],
    }
    assert ok(run("consume", topic, "--from", "earliest", *READ, "-o", "payload")) == "a\n\nb\n"


def test_a_file_is_one_message(run, topic, tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(256)))
    ok(run("produce", topic, "-f", tmp_path / "f"))
    [found] = lines(run("consume", topic, "--from", "earliest", *READ, "-o", "json"))
    assert (found["offset"], found["topic"]) == (0, topic)
    assert found["payload"].startswith("AAECAwQF")


def test_key_attributes_and_the_producers_name_arrive(run, topic):
    ok(run("produce", topic, "-m", "x", "-k", "k", "-a", "a=1", "-a", "b=", "--producer", "me"))
    [found] = lines(run("consume", topic, "--from", "earliest", *READ, "-o", "json", "-s", "sub"))
    assert (found["routing_key"], found["attributes"], found["producer_name"]) == ("k", {"a": "1", "b": ""}, "me")
    assert abs(found["publish_time"] / 1000 - time.time()) < 60
    table = ok(run("consume", topic, "--from", "earliest", *READ, "-s", "sub")).splitlines()
    assert table[0].split() == ["OFFSET", "PUBLISHED", "(UTC)", "PRODUCER", "KEY", "ATTRS", "SIZE", "PAYLOAD"]
    assert re.fullmatch(r" +0 20\d\d-\S+Z +me +k +2 +1 x", table[1])


def test_a_subscription_goes_on_where_it_was(run, topic):
    ok(run("topics", "create", topic, "start_position=earliest"))
    ok(run("produce", topic, stdin="".join(f"{n}\n" for n in range(30))))
    assert ok(run("consume", topic, "-s", "mine", "-n", 12, "-o", "payload")).split() == [str(n) for n in range(12)]
    assert ok(run("consume", topic, "-s", "mine", *READ, "-o", "payload")).split() == [str(n) for n in range(12, 30)]


def test_what_is_not_acknowledged_comes_again(run, topic):
    ok(run("produce", topic, "-m", "once"))
    ok(run("consume", topic, "-s", "mine", "--from", "earliest", *READ, "--no-ack"))
    assert ok(run("consume", topic, "-s", "mine", *READ, "-o", "payload")) == "once\n"
    assert ok(run("consume", topic, "-s", "mine", *READ, "-o", "payload")) == ""


def test_a_subscription_without_a_name_ends_with_the_command(run, topic):
    ok(run("produce", topic, "-m", "x"))
    result = run("consume", topic, "--from", "earliest", *READ)
    assert (result.exit_code, "warning" in result.stderr) == (0, False)
    assert ok(run("subscriptions", "list", topic)).startswith(f"{topic} has no subscriptions. Next: ister consume")


def next_millisecond():
    """Return a time that is a whole millisecond behind everything so far: the protocol's times have no finer ones."""
    began = datetime.now(UTC)
    while (now := datetime.now(UTC)) - began < timedelta(milliseconds=1):
        pass
    return now


def test_consuming_can_begin_at_an_offset_or_a_time(run, topic):
    ok(run("produce", topic, "-m", "0", "-m", "1"))
    between = next_millisecond().isoformat()
    ok(run("produce", topic, "-m", "2"))
    for place, found in (("1", "1\n2\n"), (between, "2\n"), ("latest", ""), ("earliest", "0\n1\n2\n")):
        assert ok(run("consume", topic, "--from", place, *READ, "-o", "payload")) == found, place


def test_a_non_reliable_topic_stores_nothing(run, topic):
    assert (
        ok(run("produce", topic, "-m", "x", "--non-reliable")) == f"1 message sent to {topic}, which stores nothing.\n"
    )
    assert "non-reliable: nothing is stored" in ok(run("topics", "describe", topic))


@pytest.mark.parametrize("kind", ["shared", "failover", "key-shared"])
def test_every_type_of_subscription_can_be_had(run, topic, kind):
    ok(run("produce", topic, "-m", "x", "-k", "k"))
    assert ok(run("consume", topic, "-s", kind, "-t", kind, "--from", "earliest", *READ, "-o", "payload")) == "x\n"
    found = json.loads(ok(run("subscriptions", "list", topic, "-o", "json")))["subscriptions"]
    assert [line["type"] for line in found if line["subscription"] == kind] == [kind]


def test_what_cannot_be_produced_or_consumed_is_said(run, topic):
    assert refused(run("consume", topic)).startswith(f"there is no topic {topic}; ")
    assert "nowhere" in refused(run("produce", "/nowhere/x", "-m", "x"))
    assert "invalid topic name" in refused(run("produce", "x", "-m", "x"))
    assert "invalid topic name" in refused(run("consume", "/a/b/c"))
    ok(run("produce", topic, "-m", "x"))
    assert refused(run("produce", topic, "-m", "x", "--non-reliable"))
    too_large = refused(run("produce", topic, "-m", "x" * 4_200_000))
    assert "4,19" in too_large or "4190208" in too_large


def test_messages_before_a_failure_are_counted(run, topic, tmp_path):
    result = run("produce", topic, "-m", "x", "-f", tmp_path / "none")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "ister: 1 message had been answered before."


@pytest.mark.parametrize("again", [False, True], ids=["gone", "created_again"])
def test_a_topic_that_is_deleted_while_messages_are_sent_is_not_created_again(run, topic, again, monkeypatch):
    """M2."""

    def deleted_between_two(texts, files):
        yield b"one"
        ok(run("topics", "delete", topic, "--yes"))
        if again:
            ok(run("topics", "create", topic))
        yield b"two"

    monkeypatch.setattr(produce_module, "payloads", deleted_between_two)
    result = run("produce", topic)
    assert result.exit_code == 2
    assert ("was deleted and created again" if again else "not found") in result.stderr
    monkeypatch.undo()
    left = json.loads(ok(run("topics", "list", "-o", "json")))["topics"]
    assert [one["next"] for one in left if one["topic"] == topic] == [0] * again


def test_a_message_that_is_stored_below_its_level_is_said_to_be_stored_and_not_sent_again(run, topic):
    """M3."""
    ok(run("topics", "create", topic, "ack_level=lake", "ack_timeout_ms=50"))
    told = refused(run("produce", topic, "-m", "x"), code=5)
    assert told == f"topic {topic}: all below offset 1 is in the log, not yet in the table; do not send it again."
    assert json.loads(ok(run("topics", "describe", topic, "-o", "json")))["topics"][0]["next"] == 1


@pytest.mark.parametrize("words", [["-s", "mine"], []], ids=["named", "our_own"])
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made_again"])
def test_a_topic_that_is_deleted_while_it_is_consumed_is_not_found(run, topic, words, again, monkeypatch):
    ok(run("produce", topic, "-m", "one", "-m", "two"))
    shown, deleted_at = consume_module.from_wire, []

    def deleted_before_it_is_acknowledged(message):
        if message.msg_id.topic_offset == 0:
            ok(run("topics", "delete", topic, "--yes"))
            if again:
                ok(run("topics", "create", topic))
            deleted_at.append(time.monotonic())
        return shown(message)

    monkeypatch.setattr(consume_module, "from_wire", deleted_before_it_is_acknowledged)
    result = run("consume", topic, *words, "--from", "earliest", "-o", "payload", "-n", 2)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    assert isinstance(result.exception, SystemExit), "a sentence, no traceback"
    assert "not found" in result.stderr
    assert result.stderr.count("\n") == 1, "nothing is said of a subscription that went with its topic"
    assert time.monotonic() - deleted_at[0] < consume_module.UNSUBSCRIBE_S, "nor is it waited for"


# --- partitions -------------------------------------------------------------------------------------------------------


def test_a_partitioned_topic_is_used_as_one(run, topic):
    ok(run("topics", "create", topic, "ack_level=fsync", "--partitions", 3))
    told = ok(run("produce", topic, "-m", "0", "-m", "1", "-m", "2", "-m", "3"))
    assert told.splitlines() == [
        f"2 messages stored in {topic}-part-0, from offset 0 to 1.",
        f"1 message stored in {topic}-part-1 at offset 0.",
        f"1 message stored in {topic}-part-2 at offset 0.",
    ]
    table = ok(run("consume", topic, "--from", "earliest", *READ)).splitlines()[1:]
    assert sorted((line.split()[0], line.split()[-1]) for line in table) == [
        ("0/0", "0"), ("0/1", "3"), ("1/0", "1"), ("2/0", "2"),
    ]  # fmt: skip
    assert ok(run("topics", "describe", topic)).count("at level fsync") == 3


def test_a_key_has_one_partition(run, topic):
    ok(run("topics", "create", topic, "--partitions", 3))
    sent = json.loads(ok(run("produce", topic, "-k", "customer-7", "-o", "json", stdin="a\nb\nc\n")))
    assert sorted(one["messages"] for one in sent["stored"]) == [0, 0, 3]


def test_an_offset_means_nothing_over_several_partitions(run, topic):
    ok(run("topics", "create", topic, "--partitions", 2))
    assert "in each partition" in refused(run("consume", topic, "--from", "1"))
    ok(run("consume", topic, "-s", "mine", *READ))
    assert "in each partition" in refused(run("subscriptions", "reset", topic, "mine", "--to", "1"))
    assert len(ok(run("subscriptions", "reset", topic, "mine", "--to", "earliest")).splitlines()) == 2


# --- topics -----------------------------------------------------------------------------------------------------------


def test_topics_are_listed_with_how_they_are_used(run, topic):
    ok(run("produce", topic, "-m", "x"))
    ok(run("consume", topic, "-s", "mine", *READ))
    [line] = [line for line in ok(run("topics", "list")).splitlines() if line.startswith(f"{topic} ")]
    assert line.split()[1:5] == ["reliable", "wal", "0", "1"]
    found = json.loads(ok(run("topics", "list", "-n", "default", "-o", "json")))["topics"]
    [one] = [one for one in found if one["topic"] == topic]
    assert (one["next"], one["subscriptions"], one["trouble"]) == (1, ["mine"], None)
    assert json.loads(ok(run("topics", "list", "-n", "system", "-o", "json"))) == {"topics": []}


def test_topics_can_be_listed_without_asking_the_broker(run, broker, topic):
    ok(run("produce", topic, "-m", "x"))
    for words in (["topics"], ["topics", "list"]):
        assert f"{topic} " in ok(run(*words, "--data-dir", broker.data))
    assert refused(run("topics", "-o", "json", "list")) == "an option stands before list; write it behind."


def test_policies_are_set_and_shown_with_who_says_so(run, topic):
    ok(run("topics", "create", topic))
    shown = ok(run("topics", "set", topic, "ack_level=fsync", "max_message_size=2", "lake=false"))
    assert re.search(r"^ack_level +fsync +topic *$", shown, re.MULTILINE)
    assert re.search(r"^start_position +latest +broker *$", shown, re.MULTILINE)
    assert "2" in refused(run("produce", topic, "-m", "xxx"))
    shown = ok(run("topics", "set", topic, "max_message_size=default"))
    assert re.search(r"^max_message_size +10485760 +broker *$", shown, re.MULTILINE)
    assert re.search(r"^ack_level +fsync +topic *$", shown, re.MULTILINE)
    ok(run("produce", topic, "-m", "xxx"))
    [found] = json.loads(ok(run("topics", "describe", topic, "-o", "json")))["topics"]
    assert found["policies"] == {"ack_level": "fsync", "lake": False}
    assert found["effective_policies"]["start_position"] == "latest"
    assert found["level"] == "fsync"


def test_a_topic_is_described(run, topic):
    ok(run("produce", topic, "-m", "x", "-m", "y"))
    shown = ok(run("topics", "describe", topic))
    assert shown.splitlines()[0] == topic
    assert re.search(r"^  messages +2 messages, \[0, 2\)$", shown, re.MULTILINE)
    assert re.search(r"^  subscriptions +none$", shown, re.MULTILINE)


def test_a_deleted_topic_is_gone(run, topic):
    ok(run("produce", topic, "-m", "x"))
    assert "give --yes" in refused(run("topics", "delete", topic))
    assert ok(run("topics", "delete", topic, "--yes")) == f"Deleted {topic}.\n"
    assert "there is no topic" in refused(run("topics", "delete", topic, "--yes"))
    assert "there is no topic" in refused(run("topics", "describe", topic))


def test_what_cannot_be_done_with_a_topic_is_said(run, topic):
    ok(run("topics", "create", topic))
    assert "exist" in refused(run("topics", "create", topic))
    assert refused(run("topics", "create", topic, "--partitions", 2))
    assert "nowhere" in refused(run("topics", "create", "/nowhere/x"))
    assert "did you mean ack_level?" in refused(run("topics", "set", topic, "acklevel=fsync"))
    assert "invalid topic name" in refused(run("topics", "describe", "x"))


def test_every_change_of_a_topic_can_be_told_in_json(run, topic):
    [made] = json.loads(ok(run("topics", "create", topic, "ack_level=fsync", "-o", "json")))["topics"]
    assert (made["topic"], made["policies"], made["next"]) == (topic, {"ack_level": "fsync"}, 0)
    assert made["effective_policies"]["ack_level"] == "fsync"
    [changed] = json.loads(ok(run("topics", "set", topic, "max_message_size=7", "-o", "json")))["topics"]
    assert changed["policies"] == {"ack_level": "fsync", "max_message_size": 7}
    assert changed == json.loads(ok(run("topics", "describe", topic, "-o", "json")))["topics"][0]
    assert json.loads(ok(run("topics", "delete", topic, "--yes", "-o", "json"))) == {"deleted": [{"topic": topic}]}


def test_the_changes_of_a_partitioned_topic_are_told_of_each_partition(run, topic):
    parts = [f"{topic}-part-{number}" for number in range(2)]
    made = json.loads(ok(run("topics", "create", topic, "--partitions", 2, "-o", "json")))["topics"]
    assert [one["topic"] for one in made] == parts
    changed = json.loads(ok(run("topics", "set", topic, "lake=false", "-o", "json")))["topics"]
    assert [(one["topic"], one["policies"]) for one in changed] == [(part, {"lake": False}) for part in parts]
    deleted = json.loads(ok(run("topics", "delete", topic, "--yes", "-o", "json")))
    assert deleted == {"deleted": [{"topic": part} for part in parts]}


def test_a_topic_that_was_made_without_its_policies_is_said_to_be_there(run, topic):
    told = refused(run("topics", "create", topic, "ack_level=lake", "lake=false"))
    assert told.startswith(f"{topic} was made, but not with these policies (")
    assert "lake=false" in told
    assert f"`ister topics set {topic}`" in told
    [found] = json.loads(ok(run("topics", "describe", topic, "-o", "json")))["topics"]
    assert found["policies"] == {}


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_a_namespace_is_made_set_and_listed(run):
    assert ok(run("namespaces", "create", "shop", "start_position=earliest")).startswith(
        "Made shop. Next: ister topics"
    )
    ok(run("produce", "/shop/orders", "-m", "before"))
    assert ok(run("consume", "/shop/orders", *READ, "-o", "payload")) == "before\n"
    shown = ok(run("namespaces", "set", "shop", "ack_level=fsync"))
    assert re.search(r"^ack_level +fsync +namespace *$", shown, re.MULTILINE)
    assert re.search(r"^ack_level +fsync +namespace *$", ok(run("topics", "describe", "/shop/orders")), re.MULTILINE)
    [line] = [line for line in ok(run("namespaces", "list")).splitlines() if line.startswith("shop")]
    assert line.split() == ["shop", "1", "ack_level=fsync,", "start_position=earliest"]
    found = json.loads(ok(run("namespaces", "list", "-o", "json")))["namespaces"]
    assert {"namespace": "system", "topics": 0, "policies": {}} in found


def test_what_cannot_be_done_with_a_namespace_is_said(run):
    assert "exist" in refused(run("namespaces", "create", "default"))
    assert "made of letters" in refused(run("namespaces", "create", "a/b"))
    assert "none-such" in refused(run("namespaces", "set", "none-such", "lake=false"))


def test_every_change_of_a_namespace_can_be_told_in_json(run):
    made = json.loads(ok(run("namespaces", "create", "told", "ack_level=fsync", "-o", "json")))
    assert (made["namespace"], made["policies"]) == ("told", {"ack_level": "fsync"})
    changed = json.loads(ok(run("namespaces", "set", "told", "lake=false", "-o", "json")))
    assert (changed["namespace"], changed["policies"]) == ("told", {"ack_level": "fsync", "lake": False})
    assert changed["effective_policies"]["start_position"] == "latest"


def test_a_namespace_that_was_made_without_its_policies_is_said_to_be_there(run):
    told = refused(run("namespaces", "create", "half", "ack_level=lake", "lake=false"))
    assert told.startswith("half was made, but not with these policies (")
    assert "`ister namespaces set half`" in told
    found = json.loads(ok(run("namespaces", "list", "-o", "json")))["namespaces"]
    assert {"namespace": "half", "topics": 0, "policies": {}} in found


# --- subscriptions ----------------------------------------------------------------------------------------------------


def test_subscriptions_are_listed_with_how_far_they_are(run, topic):
    ok(run("produce", topic, *(["-m", "x"] * 5)))
    ok(run("consume", topic, "-s", "mine", "--from", "earliest", "-n", 3, "-t", "shared"))
    [line] = [line for line in ok(run("subscriptions", "list", topic)).splitlines() if "mine" in line]
    assert line.split()[:5] == [topic, "mine", "shared", "3", "2"]
    [found] = json.loads(ok(run("subscriptions", "list", topic, "-o", "json")))["subscriptions"]
    assert (found["cursor"], found["lag"], found["window"], found["blocked"]) == (3, 2, 10, False)
    assert found["failure_policy"]["poison"] == "block"


def test_a_subscription_is_moved(run, topic):
    ok(run("produce", topic, "-m", "0", "-m", "1", "-m", "2"))
    ok(run("consume", topic, "-s", "mine", "--from", "earliest", *READ))
    assert ok(run("subscriptions", "reset", topic, "mine", "--to", "1")) == (
        f"mine of {topic} goes on at offset 1; it was at 3.\n"
    )
    assert ok(run("consume", topic, "-s", "mine", *READ, "-o", "payload")) == "1\n2\n"
    moved = json.loads(ok(run("subscriptions", "reset", topic, "mine", "--to", "earliest", "-o", "json")))
    assert moved == {"subscriptions": [{"topic": topic, "subscription": "mine", "cursor": 0, "previous": 3}]}
    assert ok(run("subscriptions", "delete", topic, "mine", "--yes")) == f"Deleted mine of {topic}.\n"
    assert "mine" in refused(run("subscriptions", "reset", topic, "mine", "--to", "0"))


def test_the_end_of_a_subscription_can_be_told_in_json(run, topic):
    ok(run("produce", topic, "-m", "0"))
    ok(run("consume", topic, "-s", "mine", "--from", "earliest", *READ))
    told = json.loads(ok(run("subscriptions", "delete", topic, "mine", "--yes", "-o", "json")))
    assert told == {"deleted": [{"topic": topic, "subscription": "mine"}]}


def test_what_cannot_be_done_with_a_subscription_is_said(run, topic):
    assert "there is no topic" in refused(run("subscriptions", "list", topic))
    ok(run("topics", "create", topic))
    assert "is no place" in refused(run("subscriptions", "reset", topic, "mine", "--to", "soon"))
    assert "mine" in refused(run("subscriptions", "delete", topic, "mine", "--yes"))
    assert "give --yes" in refused(run("subscriptions", "delete", topic, "mine"))
