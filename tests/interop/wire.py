"""The messages of the admin plane and of storage, built from the tables of the protocol's specification.

They are written down here a second time on purpose: a field that has another number in the broker's own proto files
fails a test. They live in a pool of their own, so nothing clashes with the stubs in this process.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
TYPES = {
    "str": FIELD.TYPE_STRING,
    "bytes": FIELD.TYPE_BYTES,
    "bool": FIELD.TYPE_BOOL,
    "u32": FIELD.TYPE_UINT32,
    "u64": FIELD.TYPE_UINT64,
    "i32": FIELD.TYPE_INT32,
    "enum": FIELD.TYPE_INT32,  # the same bytes, and any number can be sent
}

ADMIN = """
Empty:
NewTopicRequest: 1 name str, 2 schema_subject opt str, 3 dispatch_strategy enum
PartitionedTopicRequest: 1 base_name str, 2 partitions u32, 3 schema_subject opt str, 4 dispatch_strategy enum
TopicRequest: 1 name str
TopicResponse: 1 success bool
NamespaceRequest: 1 name str
BrokerRequest: 1 broker_id str
TopicInfo: 1 name str, 2 broker_id str, 3 delivery str
TopicInfoListResponse: 1 topics rep TopicInfo
DescribeTopicRequest: 1 name str
DescribeTopicResponse: 1 name str, 2 subscriptions rep str, 3 broker_id str, 4 delivery str, 5 schema_subject opt str, 6 schema_id opt u64, 7 schema_version opt u32, 8 schema_type opt str, 9 compatibility_mode opt str
SubscriptionListResponse: 1 subscriptions rep str
SubscriptionRequest: 1 topic str, 2 subscription str
SubscriptionResponse: 1 success bool
FailurePolicy: 1 max_redelivery_count u32, 2 ack_timeout_ms u64, 3 base_redelivery_delay_ms u64, 4 max_redelivery_delay_ms u64, 5 backoff_strategy enum, 6 dead_letter_topic opt str, 7 poison_policy enum
SetFailurePolicyRequest: 1 topic str, 2 subscription str, 3 failure_policy FailurePolicy
GetFailurePolicyResponse: 1 failure_policy FailurePolicy, 2 subscription_type i32
DispatchConfig: 1 max_unacked_messages u32
SetDispatchConfigRequest: 1 topic str, 2 subscription str, 3 dispatch_config DispatchConfig
GetDispatchConfigResponse: 1 dispatch_config DispatchConfig
NamespaceTopicsResponse: 1 topics rep str
NamespacePoliciesResponse: 1 policies str
NamespaceResponse: 1 success bool
BrokerInfo: 1 broker_id str, 2 broker_addr str, 3 broker_role str, 4 admin_addr str, 5 metrics_addr str, 6 broker_status str
BrokerListResponse: 1 brokers rep BrokerInfo
LeaderResponse: 1 leader str
NamespaceListResponse: 1 namespaces rep str
SegmentsRequest: 1 topic str, 2 after_offset u64
Segment: 1 segment_id str, 2 start_offset u64, 3 end_offset u64, 4 size u64, 5 etag str, 6 created_at u64
SegmentsResponse: 1 segments rep Segment
SubjectSummary: 1 subject str, 2 schema_type str, 3 latest_version u32, 4 compatibility_mode str, 5 schema_id u64, 6 tags rep str
SubjectsResponse: 1 subjects rep SubjectSummary
Consumer: 1 name str, 2 consumer_id u64, 3 connected bool, 4 active bool, 5 unacked u64
Subscription: 1 name str, 4 cursor u64, 6 lag u64, 7 unacked u64, 10 window u32, 11 blocked bool, 13 consumers rep Consumer
DescribeSubscriptionResponse: 1 subscription Subscription
ResetCursorRequest: 1 topic str, 2 subscription str, 3 offset opt u64, 4 time_ms opt u64, 5 earliest opt bool, 6 latest opt bool
ResetCursorResponse: 1 cursor u64, 2 previous u64
SetTopicPoliciesRequest: 1 topic str, 2 policies str
SetTopicPoliciesResponse: 1 effective str
SetNamespacePoliciesRequest: 1 namespace str, 2 policies str
RequestSyncResponse: 1 synced_offset u64
RequestUploadRequest: 1 topic str, 2 generation u64
RequestUploadResponse: 1 cloud_stop u64
"""

CALLS = {
    "CreateTopic": ("danube_admin.TopicAdmin", "NewTopicRequest", "TopicResponse"),
    "CreatePartitionedTopic": ("danube_admin.TopicAdmin", "PartitionedTopicRequest", "TopicResponse"),
    "DeleteTopic": ("danube_admin.TopicAdmin", "TopicRequest", "TopicResponse"),
    "UnloadTopic": ("danube_admin.TopicAdmin", "TopicRequest", "TopicResponse"),
    "ListNamespaceTopics": ("danube_admin.TopicAdmin", "NamespaceRequest", "TopicInfoListResponse"),
    "ListBrokerTopics": ("danube_admin.TopicAdmin", "BrokerRequest", "TopicInfoListResponse"),
    "DescribeTopic": ("danube_admin.TopicAdmin", "DescribeTopicRequest", "DescribeTopicResponse"),
    "ListSubscriptions": ("danube_admin.TopicAdmin", "TopicRequest", "SubscriptionListResponse"),
    "Unsubscribe": ("danube_admin.TopicAdmin", "SubscriptionRequest", "SubscriptionResponse"),
    "SetSubscriptionFailurePolicy": ("danube_admin.TopicAdmin", "SetFailurePolicyRequest", "SubscriptionResponse"),
    "GetSubscriptionFailurePolicy": ("danube_admin.TopicAdmin", "SubscriptionRequest", "GetFailurePolicyResponse"),
    "SetSubscriptionDispatchConfig": ("danube_admin.TopicAdmin", "SetDispatchConfigRequest", "SubscriptionResponse"),
    "GetSubscriptionDispatchConfig": ("danube_admin.TopicAdmin", "SubscriptionRequest", "GetDispatchConfigResponse"),
    "GetNamespaceTopics": ("danube_admin.NamespaceAdmin", "NamespaceRequest", "NamespaceTopicsResponse"),
    "GetNamespacePolicies": ("danube_admin.NamespaceAdmin", "NamespaceRequest", "NamespacePoliciesResponse"),
    "CreateNamespace": ("danube_admin.NamespaceAdmin", "NamespaceRequest", "NamespaceResponse"),
    "DeleteNamespace": ("danube_admin.NamespaceAdmin", "NamespaceRequest", "NamespaceResponse"),
    "ListBrokers": ("danube_admin.BrokerAdmin", "Empty", "BrokerListResponse"),
    "GetLeaderBroker": ("danube_admin.BrokerAdmin", "Empty", "LeaderResponse"),
    "ListNamespaces": ("danube_admin.BrokerAdmin", "Empty", "NamespaceListResponse"),
    "ListSegmentDescriptors": ("danube.StorageService", "SegmentsRequest", "SegmentsResponse"),
    "DescribeSubscription": ("ister.v1.Admin", "SubscriptionRequest", "DescribeSubscriptionResponse"),
    "ResetCursor": ("ister.v1.Admin", "ResetCursorRequest", "ResetCursorResponse"),
    "RequestSync": ("ister.v1.Storage", "RequestUploadRequest", "RequestSyncResponse"),
    "RequestUpload": ("ister.v1.Storage", "RequestUploadRequest", "RequestUploadResponse"),
    "SetNamespacePolicies": ("ister.v1.Admin", "SetNamespacePoliciesRequest", "SetTopicPoliciesResponse"),
    "SetTopicPolicies": ("ister.v1.Admin", "SetTopicPoliciesRequest", "SetTopicPoliciesResponse"),
    "ListSubjects": ("danube_schema.SchemaRegistry", "Empty", "SubjectsResponse"),
}
"""Each call with its service, and what goes in and out."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="tests/wire.proto", package="wire", syntax="proto3")
    for line in ADMIN.split("\n"):
        name, _, fields = line.partition(":")
        if not name:
            continue
        message = file.message_type.add(name=name)
        for text in filter(None, map(str.strip, fields.split(","))):
            number, field_name, *how, kind = text.split(" ")
            field = message.field.add(
                name=field_name,
                number=int(number),
                label=FIELD.LABEL_REPEATED if how == ["rep"] else FIELD.LABEL_OPTIONAL,
            )
            if kind in TYPES:
                field.type = TYPES[kind]
            else:
                field.type = FIELD.TYPE_MESSAGE
                field.type_name = f".wire.{kind}"
            if how == ["opt"]:
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def message(name: str) -> type:
    """Return the class of one of the messages above."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"wire.{name}"))
