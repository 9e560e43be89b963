"""List, make and set namespaces by asking the broker."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ister.cli.display import many, printable, say, tables
from ister.cli.exits import InputError
from ister.cli.policy_lines import brief, changed, show_policies
from ister.cli.topics_remote import list_topics
from ister.config.forms import namespace as namespace_name
from ister.core.names import TopicName
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as ister

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.cli.remote import Remote


@dataclass(frozen=True, slots=True)
class NamespaceLine:
    """One namespace: its topics, and the policies that it has of its own, in JSON."""

    name: str
    topics: int
    policies: str


def list_namespaces(admin: Remote) -> list[NamespaceLine]:
    """Return every namespace by name."""
    found = admin.ask("/danube_admin.BrokerAdmin/ListNamespaces", danube.Empty(), danube.NamespaceListResponse)
    topics = Counter(TopicName.parse(topic.name).namespace for topic in list_topics(admin, None))
    return [NamespaceLine(name, topics[name], _policies(admin, name).policies) for name in sorted(found.namespaces)]


def create_namespace(admin: Remote, name: str) -> None:
    """Make a namespace."""
    request = danube.NamespaceRequest(name=_checked(name))
    admin.change("/danube_admin.NamespaceAdmin/CreateNamespace", request, danube.NamespaceResponse)


def set_policies(admin: Remote, name: str, words: Mapping[str, str]) -> None:
    """Change some policies of a namespace."""
    own = _policies(admin, _checked(name)).policies
    admin.change(
        "/ister.v1.Admin/SetNamespacePolicies",
        ister.SetNamespacePoliciesRequest(namespace=name, policies=changed(own or "{}", words)),
        ister.SetNamespacePoliciesResponse,
    )


def show_list(lines: Sequence[NamespaceLine]) -> None:
    """Write a row for each namespace."""
    console = tables()
    table = Table(box=SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("Namespace", overflow="fold")
    table.add_column("Topics", justify="right")
    table.add_column("Own policies", overflow="fold")
    for line in lines:
        table.add_row(Text(printable(line.name)), f"{line.topics:,}", Text(brief(line.policies)))
    console.print(table)
    say(f"{many(len(lines), 'namespace')}.")


def show_list_json(lines: Sequence[NamespaceLine]) -> None:
    """Write one JSON object."""
    content = [
        {"namespace": line.name, "topics": line.topics, "policies": json.loads(line.policies or "{}")} for line in lines
    ]
    say(json.dumps({"namespaces": content}, separators=(",", ":")))


def show_namespace(admin: Remote, name: str) -> None:
    """Write the policies of a namespace."""
    found = _policies(admin, name)
    show_policies(found.effective, {"namespace": found.policies or "{}"})


def show_namespace_json(admin: Remote, name: str) -> None:
    """Write one JSON object."""
    found = _policies(admin, name)
    content = {
        "namespace": name,
        "policies": json.loads(found.policies or "{}"),
        "effective_policies": json.loads(found.effective),
    }
    say(json.dumps(content, separators=(",", ":")))


def _policies(admin: Remote, name: str) -> ister.GetNamespacePoliciesResponse:
    request = ister.GetNamespacePoliciesRequest(namespace=name)
    return admin.ask("/ister.v1.Admin/GetNamespacePolicies", request, ister.GetNamespacePoliciesResponse)


def _checked(name: str) -> str:
    try:
        return namespace_name(name)
    except ValueError as error:
        raise InputError(name, str(error)) from None
