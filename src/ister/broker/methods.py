"""Properties of every RPC method of the broker, and services built from their protobuf descriptors.

A served method needs a row in METHODS and a handler; without either the broker does not start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final

from google.protobuf.message_factory import GetMessageClass

from ister.transport.service import Prompt, ServerStream, Service, Unary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.message import Message

    from ister.broker.topics.broker import Broker
    from ister.transport.service import Method


class ReadOnly(Enum):
    """What a read-only broker does with a call of a method."""

    REFUSED = auto()
    CACHED = auto()
    """Answers from what it knows."""
    REFRESHED = auto()
    """Answers after it has refreshed its topics from metadata; may change subscriptions, under their leases."""


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties of a method that its protobuf descriptor does not have; `transport.service` explains them."""

    prompt: bool = False
    finishes: bool = False
    large: bool = False
    read_only: ReadOnly = ReadOnly.REFUSED


CACHED, REFRESHED = ReadOnly.CACHED, ReadOnly.REFRESHED

METHODS: Final[Mapping[str, Properties]] = {
    "danube.ProducerService/CreateProducer": Properties(finishes=True),
    "danube.ProducerService/SendMessage": Properties(large=True),
    "danube.ConsumerService/Subscribe": Properties(finishes=True, read_only=REFRESHED),
    "danube.ConsumerService/ReceiveMessages": Properties(read_only=CACHED),
    "danube.ConsumerService/Ack": Properties(prompt=True, read_only=CACHED),
    "danube.ConsumerService/Nack": Properties(prompt=True, read_only=CACHED),
    "danube_schema.SchemaRegistry/RegisterSchema": Properties(finishes=True, large=True),
    "danube_schema.SchemaRegistry/GetSchema": Properties(read_only=REFRESHED),
    "danube_schema.SchemaRegistry/GetLatestSchema": Properties(read_only=REFRESHED),
    "danube_schema.SchemaRegistry/ListVersions": Properties(read_only=REFRESHED),
    "danube_schema.SchemaRegistry/CheckCompatibility": Properties(large=True, read_only=REFRESHED),
    "danube_schema.SchemaRegistry/DeleteSchemaVersion": Properties(finishes=True),
    "danube_schema.SchemaRegistry/SetCompatibilityMode": Properties(finishes=True),
    "danube_schema.SchemaRegistry/ConfigureTopicSchema": Properties(finishes=True),
    "danube_schema.SchemaRegistry/UpdateTopicValidationPolicy": Properties(finishes=True),
    "danube_schema.SchemaRegistry/GetTopicSchemaConfig": Properties(read_only=REFRESHED),
    "danube_schema.SchemaRegistry/ListSubjects": Properties(read_only=REFRESHED),
    "danube_admin.BrokerAdmin/ListBrokers": Properties(read_only=CACHED),
    "danube_admin.BrokerAdmin/GetLeaderBroker": Properties(read_only=CACHED),
    "danube_admin.BrokerAdmin/ListNamespaces": Properties(read_only=REFRESHED),
    "danube_admin.BrokerAdmin/UnloadBroker": Properties(),
    "danube_admin.BrokerAdmin/ActivateBroker": Properties(),
    "danube_admin.BrokerAdmin/GetClusterBalance": Properties(),
    "danube_admin.BrokerAdmin/TriggerRebalance": Properties(),
    "danube_admin.ClusterAdmin/ClusterStatus": Properties(),
    "danube_admin.ClusterAdmin/AddNode": Properties(),
    "danube_admin.ClusterAdmin/PromoteNode": Properties(),
    "danube_admin.ClusterAdmin/RemoveNode": Properties(),
    "danube_admin.SecurityAdmin/CreateRole": Properties(),
    "danube_admin.SecurityAdmin/GetRole": Properties(),
    "danube_admin.SecurityAdmin/ListRoles": Properties(),
    "danube_admin.SecurityAdmin/DeleteRole": Properties(),
    "danube_admin.SecurityAdmin/CreateBinding": Properties(),
    "danube_admin.SecurityAdmin/GetBinding": Properties(),
    "danube_admin.SecurityAdmin/ListBindings": Properties(),
    "danube_admin.SecurityAdmin/ListAllBindings": Properties(),
    "danube_admin.SecurityAdmin/DeleteBinding": Properties(),
    "danube.Discovery/TopicLookup": Properties(read_only=REFRESHED),
    "danube.Discovery/TopicPartitions": Properties(read_only=REFRESHED),
    "danube.HealthCheck/HealthCheck": Properties(read_only=CACHED),
    "ister.v1.Admin/ResetCursor": Properties(finishes=True, read_only=REFRESHED),
    "ister.v1.Admin/SetTopicPolicies": Properties(finishes=True),
    "ister.v1.Admin/GetTopicPolicies": Properties(read_only=REFRESHED),
    "ister.v1.Admin/SetNamespacePolicies": Properties(finishes=True),
    "ister.v1.Admin/GetNamespacePolicies": Properties(read_only=REFRESHED),
    "ister.v1.Admin/DescribeSubscription": Properties(read_only=REFRESHED),
    "ister.v1.Admin/DescribeSubscriptions": Properties(read_only=REFRESHED),
    "ister.v1.Admin/DescribeTopic": Properties(read_only=REFRESHED),
    "ister.v1.Admin/ListTopics": Properties(read_only=REFRESHED),
    "ister.v1.Storage/ListTopics": Properties(),
    "ister.v1.Storage/GetSchema": Properties(),
    "ister.v1.Storage/ListSpans": Properties(),
    "ister.v1.Storage/RequestSync": Properties(),
    "ister.v1.Storage/RequestUpload": Properties(),
    "ister.v1.Storage/WatchWakeups": Properties(),
    "ister.v1.Storage/WakePipeline": Properties(),
    "ister.v1.Storage/RegisterPipeline": Properties(finishes=True),
    "ister.v1.Storage/ReportUpto": Properties(finishes=True),
    "danube_admin.NamespaceAdmin/CreateNamespace": Properties(finishes=True),
    "danube_admin.NamespaceAdmin/DeleteNamespace": Properties(finishes=True),
    "danube_admin.NamespaceAdmin/GetNamespaceTopics": Properties(read_only=REFRESHED),
    "danube_admin.NamespaceAdmin/GetNamespacePolicies": Properties(read_only=REFRESHED),
    "danube.StorageService/ListSegmentDescriptors": Properties(),
    "danube_admin.TopicAdmin/CreateTopic": Properties(finishes=True),
    "danube_admin.TopicAdmin/CreatePartitionedTopic": Properties(finishes=True),
    "danube_admin.TopicAdmin/DeleteTopic": Properties(finishes=True),
    "danube_admin.TopicAdmin/UnloadTopic": Properties(),
    "danube_admin.TopicAdmin/DescribeTopic": Properties(read_only=REFRESHED),
    "danube_admin.TopicAdmin/ListNamespaceTopics": Properties(read_only=REFRESHED),
    "danube_admin.TopicAdmin/ListBrokerTopics": Properties(read_only=REFRESHED),
    "danube_admin.TopicAdmin/ListSubscriptions": Properties(read_only=REFRESHED),
    "danube_admin.TopicAdmin/Unsubscribe": Properties(finishes=True, read_only=REFRESHED),
    "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy": Properties(finishes=True, read_only=REFRESHED),
    "danube_admin.TopicAdmin/GetSubscriptionFailurePolicy": Properties(read_only=REFRESHED),
    "danube_admin.TopicAdmin/SetSubscriptionDispatchConfig": Properties(finishes=True, read_only=REFRESHED),
    "danube_admin.TopicAdmin/GetSubscriptionDispatchConfig": Properties(read_only=REFRESHED),
}


class Handlers:
    """Base of the handlers of a broker's gRPC services."""

    descriptors: ClassVar[tuple[ServiceDescriptor, ...]]

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def services(self) -> tuple[Service, ...]:
        """Return the services."""
        return tuple(build_service(descriptor, self) for descriptor in self.descriptors)


def build_service(
    descriptor: ServiceDescriptor,
    handlers: object,
    extra: Mapping[str, tuple[type[Message], type[Message]]] | None = None,
) -> Service:
    """Return a service whose handlers are the attributes of `handlers` that have the methods' names in snake case.

    `extra` maps methods that the descriptor lacks to their request and response types. Raises LookupError for a method
    without a row in METHODS or without a handler.
    """
    methods = [
        _build_method(
            f"{descriptor.full_name}/{method.name}",
            handlers,
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            streams=method.server_streaming,
        )
        for method in descriptor.methods
    ]
    for name, (request, response) in (extra or {}).items():
        methods.append(_build_method(f"{descriptor.full_name}/{name}", handlers, request, response, streams=False))
    return Service(descriptor.full_name, tuple(methods))


def _build_method(
    path: str, handlers: object, request: type[Message], response: type[Message], *, streams: bool
) -> Method:
    name = path.rpartition("/")[2]
    handler: Any = getattr(handlers, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
    properties = METHODS.get(path)
    if handler is None or properties is None:
        raise LookupError(f"method {path} has no {'handler' if properties else 'row in METHODS'}")
    if streams:
        return ServerStream(name, handler, request, response)
    if properties.prompt:
        return Prompt(name, handler, request, response)
    return Unary(name, handler, request, response, finishes=properties.finishes, large=properties.large)
