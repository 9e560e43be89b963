"""Make, set, list, describe and delete topics by asking the broker; a partitioned topic is all of its partitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, megabytes, moment, printable, say, tables
from ister.cli.policy_lines import changed, show_policies
from ister.core.errors import NotFoundError
from ister.core.names import TopicName
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as ister

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.cli.remote import Remote

_LEVELS = {
    ister.ACK_LEVEL_MEMORY: "memory",
    ister.ACK_LEVEL_WAL: "wal",
    ister.ACK_LEVEL_FSYNC: "fsync",
    ister.ACK_LEVEL_CLOUD: "cloud",
    ister.ACK_LEVEL_LAKE: "lake",
}


def create_topic(admin: Remote, topic: str, *, partitions: int, reliable: bool, subject: str | None) -> None:
    """Make a topic, or so many partitions of one."""
    TopicName.parse(topic)
    strategy = danube.Reliable if reliable else danube.NonReliable
    if partitions:
        admin.change(
            "/danube_admin.TopicAdmin/CreatePartitionedTopic",
            danube.PartitionedTopicRequest(
                base_name=topic, partitions=partitions, schema_subject=subject, dispatch_strategy=strategy
            ),
            danube.TopicResponse,
        )
    else:
        admin.change(
            "/danube_admin.TopicAdmin/CreateTopic",
            danube.NewTopicRequest(name=topic, schema_subject=subject, dispatch_strategy=strategy),
            danube.TopicResponse,
        )


def list_topics(admin: Remote, namespace: str | None) -> Sequence[ister.TopicDetail]:
    """Return the topics of a namespace, or all."""
    request = ister.ListTopicDetailsRequest(namespace=namespace or "")
    return admin.ask("/ister.v1.Admin/ListTopics", request, ister.ListTopicDetailsResponse).topics


def find_topics(admin: Remote, topic: str) -> list[ister.TopicDetail]:
    """Return a topic, or all partitions of one in their order; NotFoundError when there is neither."""
    name = TopicName.parse(topic)
    found = [
        one
        for one in list_topics(admin, name.namespace)
        if topic in {one.name, one.partition.base if one.HasField("partition") else ""}
    ]
    if not found:
        raise NotFoundError(f"there is no topic {topic}; `ister topics list` names what there is")
    return sorted(found, key=lambda one: one.partition.number)


def describe_topics(admin: Remote, topic: str) -> list[ister.TopicDetail]:
    """Return the same with the sizes of objects, which the broker has to count."""
    requests = [ister.DescribeTopicRequest(topic=one.name) for one in find_topics(admin, topic)]
    return [
        admin.ask("/ister.v1.Admin/DescribeTopic", request, ister.DescribeTopicResponse).topic for request in requests
    ]


def set_policies(admin: Remote, topics: Sequence[ister.TopicDetail], words: Mapping[str, str]) -> None:
    """Change some policies of a topic, or of each of its partitions."""
    for topic in topics:
        own = _policies(admin, topic.name).policies
        admin.change(
            "/ister.v1.Admin/SetTopicPolicies",
            ister.SetTopicPoliciesRequest(topic=topic.name, policies=changed(own or "{}", words)),
            ister.SetTopicPoliciesResponse,
        )


def delete_topic(admin: Remote, topic: str) -> None:
    """Delete a topic, or all partitions of one."""
    TopicName.parse(topic)
    admin.change("/danube_admin.TopicAdmin/DeleteTopic", danube.TopicRequest(name=topic), danube.TopicResponse)


def what_is_lost(topic: str, found: Sequence[ister.TopicDetail]) -> str:
    """Say what deleting a topic would destroy."""
    messages = sum(one.offsets.next - one.offsets.start for one in found)
    names = {name for one in found for name in one.subscriptions}
    parts = f", {many(len(found), 'partition')}" if found[0].name != topic else ""
    return f"{topic} will be gone{parts}: {many(messages, 'message')}, {many(len(names), 'subscription')}."


def show_list(topics: Sequence[ister.TopicDetail]) -> None:
    """Write a row for each topic."""
    if not topics:
        say("There are no topics yet. Next: ister topics create /default/orders")
        return
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("Topic", overflow="fold")
    table.add_column("Delivery")
    table.add_column("Level")
    for heading in ("From offset", "Next offset", "Uploaded below", "Producers", "Consumers", "Subscriptions"):
        table.add_column(heading, justify="right")
    table.add_column("", overflow="fold")
    for topic in topics:
        reliable, offsets = topic.dispatch == ister.DISPATCH_RELIABLE, topic.offsets
        table.add_row(
            Text(printable(topic.name)),
            "reliable" if reliable else "non-reliable",
            _LEVELS.get(topic.level, str(topic.level)),
            f"{offsets.start}" if reliable else "-",
            f"{offsets.next}" if reliable else "-",
            f"{offsets.cloud_stop}" if offsets.HasField("cloud_stop") else "-",
            f"{topic.producers:,}",
            f"{topic.consumers:,}",
            f"{len(topic.subscriptions):,}",
            Text(printable(topic.trouble), "red"),
        )
    console.print(table)
    say(f"{many(len(topics), 'topic')}. Next: ister topics describe {printable(topics[0].name)}")


def show_list_json(topics: Sequence[ister.TopicDetail]) -> None:
    """Write one JSON object."""
    say(json.dumps({"topics": [_fields(topic) for topic in topics]}, separators=(",", ":")))


def show_topics(admin: Remote, topics: Sequence[ister.TopicDetail]) -> None:
    """Write everything about a topic, or about each of its partitions."""
    for topic in topics:
        _show_topic(topic)
    show_topic_policies(admin, topics[0].name)


def show_topic_policies(admin: Remote, topic: str) -> None:
    """Write what holds for a topic, and who says so."""
    policies, namespace = _policies(admin, topic), TopicName.parse(topic).namespace
    request = ister.GetNamespacePoliciesRequest(namespace=namespace)
    above = admin.ask("/ister.v1.Admin/GetNamespacePolicies", request, ister.GetNamespacePoliciesResponse)
    show_policies(policies.effective, {"topic": policies.policies or "{}", "namespace": above.policies or "{}"})


def show_topics_json(admin: Remote, topics: Sequence[ister.TopicDetail]) -> None:
    """Write one JSON object."""
    content = []
    for topic in topics:
        effective = json.loads(_policies(admin, topic.name).effective)
        content.append({**_fields(topic), "effective_policies": effective})
    say(json.dumps({"topics": content}, separators=(",", ":")))


def show_deleted_json(topics: Sequence[ister.TopicDetail]) -> None:
    """Write one JSON object: the topic, or every partition of it."""
    say(json.dumps({"deleted": [{"topic": topic.name} for topic in topics]}, separators=(",", ":")))


def _show_topic(topic: ister.TopicDetail) -> None:
    offsets = topic.offsets
    reliable = topic.dispatch == ister.DISPATCH_RELIABLE
    lines = {"delivery": "reliable" if reliable else "non-reliable: nothing is stored"}
    if reliable:
        lines["acknowledged"] = f"at level {_LEVELS.get(topic.level, str(topic.level))}"
        lines["messages"] = f"{many(offsets.next - offsets.start, 'message')}, [{offsets.start}, {offsets.next})"
        lines["synced"] = f"below offset {offsets.synced}"
        start = f" from offset {offsets.log_start}" if offsets.HasField("log_start") else ""
        lines["log"] = f"{megabytes(topic.log_bytes)}{start}"
        held = f", [{offsets.cloud_start}, {offsets.cloud_stop})" if offsets.HasField("cloud_stop") else ""
        lines["objects"] = f"{megabytes(topic.cloud_bytes)}{held}"
        lines["generation"] = f"{topic.generation}"
    if topic.HasField("schema"):
        schema = topic.schema
        lines["schema"] = f"{schema.subject}, version {schema.latest_version} ({schema.schema_type})"
    lines["producers"] = f"{topic.producers:,}"
    lines["consumers"] = f"{topic.consumers:,}"
    lines["subscriptions"] = ", ".join(topic.subscriptions) or "none"
    if topic.created_at_ms:
        lines["created"] = moment(topic.created_at_ms * 1000)
    if topic.trouble:
        lines["trouble"] = topic.trouble
    say(printable(topic.name))
    for name, text in lines.items():
        say(f"  {name:14} {printable(text)}")
    say()


def _policies(admin: Remote, topic: str) -> ister.GetTopicPoliciesResponse:
    request = ister.GetTopicPoliciesRequest(topic=topic)
    return admin.ask("/ister.v1.Admin/GetTopicPolicies", request, ister.GetTopicPoliciesResponse)


def _fields(topic: ister.TopicDetail) -> dict[str, object]:
    offsets, schema = topic.offsets, topic.schema
    return {
        "topic": topic.name,
        "generation": topic.generation,
        "reliable": topic.dispatch == ister.DISPATCH_RELIABLE,
        "level": _LEVELS.get(topic.level, str(topic.level)),
        "policies": json.loads(topic.policies or "{}"),
        "schema": {
            "subject": schema.subject,
            "id": schema.schema_id,
            "version": schema.latest_version,
            "type": schema.schema_type,
            "validation": schema.validation_policy,
            "validates_payload": schema.validates_payload,
        }
        if topic.HasField("schema")
        else None,
        "partition": {"base": topic.partition.base, "number": topic.partition.number}
        if topic.HasField("partition")
        else None,
        "start": offsets.start,
        "next": offsets.next,
        "synced": offsets.synced,
        "log_start": offsets.log_start if offsets.HasField("log_start") else None,
        "cloud_start": offsets.cloud_start if offsets.HasField("cloud_start") else None,
        "cloud_stop": offsets.cloud_stop if offsets.HasField("cloud_stop") else None,
        "log_bytes": topic.log_bytes,
        "cloud_bytes": topic.cloud_bytes,
        "producers": topic.producers,
        "consumers": topic.consumers,
        "subscriptions": list(topic.subscriptions),
        "created_at_ms": topic.created_at_ms,
        "trouble": topic.trouble or None,
    }
