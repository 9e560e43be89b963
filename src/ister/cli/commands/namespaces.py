"""`ister namespaces`: list, create and set namespaces of a broker."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from ister.cli.commands.topics import list_topics, policies_not_set
from ister.cli.options import (
    ADMIN,
    AdminOption,
    FirstSettingsArgument,
    OutputOption,
    SettingsArgument,
    command,
    command_group,
    utf8_text,
)
from ister.cli.output import Output, many, print_table, say
from ister.cli.policies import brief, changed, parse_settings, show_policies
from ister.client.channel import Remote
from ister.config.validators import namespace as namespace_name
from ister.core.errors import InputError
from ister.core.names import TopicName
from ister.rpc import danube_admin_pb2 as danube
from ister.rpc import ister_v1_pb2 as ister

NamespaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="A namespace, like default.", parser=utf8_text)
]

app = command_group("List, make and set namespaces, by asking the broker.")


@command(app, "list")
def _list(*, admin: AdminOption = ADMIN, output: OutputOption = Output.TABLE) -> None:
    """List the namespaces.

    Example: ister namespaces list
    """
    with Remote.admin(admin) as broker:
        found = broker.ask("/danube_admin.BrokerAdmin/ListNamespaces", danube.Empty(), danube.NamespaceListResponse)
        topics = Counter(TopicName.parse(topic.name).namespace for topic in list_topics(broker, None))
        report = [
            (name, topics[name], json.loads(_policies(broker, name).policies or "{}"))
            for name in sorted(found.namespaces)
        ]
        output.show(
            report,
            lambda lines: {
                "namespaces": [{"namespace": name, "topics": count, "policies": own} for name, count, own in lines]
            },
            _write_list,
        )


@command(app, "create")
def _create(
    namespace: NamespaceArgument,
    settings: FirstSettingsArgument = None,
    *,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a namespace.

    Example: ister namespaces create shop start_position=earliest
    """
    words = parse_settings(settings or [])
    with Remote.admin(admin) as broker:
        request = danube.NamespaceRequest(name=_checked(namespace))
        broker.change("/danube_admin.NamespaceAdmin/CreateNamespace", request, danube.NamespaceResponse)
        if words:
            with policies_not_set("namespaces", namespace):
                _set_policies(broker, namespace, words)
        output.show(
            namespace,
            lambda name: _fields(name, _policies(broker, name)),
            lambda name: say(f"Made {name}. Next: ister topics create /{name}/orders"),
        )


@command(app, "set")
def _set(
    namespace: NamespaceArgument,
    settings: SettingsArgument,
    *,
    admin: AdminOption = ADMIN,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set policies of a namespace, for all of its topics that do not say otherwise.

    The keys are those of `ister topics set`.

    Example: ister namespaces set shop ack_level=fsync max_message_size=1000000
    """
    words = parse_settings(settings)
    with Remote.admin(admin) as broker:
        _set_policies(broker, namespace, words)
        output.show(
            _policies(broker, namespace),
            lambda found: _fields(namespace, found),
            lambda found: show_policies(found.effective, {"namespace": found.policies or "{}"}),
        )


def _set_policies(admin: Remote, name: str, words: dict[str, str]) -> None:
    own = _policies(admin, _checked(name)).policies
    admin.change(
        "/ister.v1.Admin/SetNamespacePolicies",
        ister.SetNamespacePoliciesRequest(namespace=name, policies=changed(own or "{}", words)),
        ister.SetNamespacePoliciesResponse,
    )


def _policies(admin: Remote, name: str) -> ister.GetNamespacePoliciesResponse:
    request = ister.GetNamespacePoliciesRequest(namespace=name)
    return admin.ask("/ister.v1.Admin/GetNamespacePolicies", request, ister.GetNamespacePoliciesResponse)


def _checked(name: str) -> str:
    try:
        return namespace_name(name)
    except ValueError as error:
        raise InputError(name, str(error)) from None


def _fields(name: str, found: ister.GetNamespacePoliciesResponse) -> object:
    return {
        "namespace": name,
        "policies": json.loads(found.policies or "{}"),
        "effective_policies": json.loads(found.effective),
    }


def _write_list(lines: Sequence[tuple[str, int, Mapping[str, object]]]) -> None:
    rows = [(name, f"{topics:,}", brief(own)) for name, topics, own in lines]
    print_table(("Namespace", ">Topics", "Own policies"), rows)
    say(f"{many(len(lines), 'namespace')}.")
