from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AckLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK_LEVEL_MEMORY: _ClassVar[AckLevel]
    ACK_LEVEL_WAL: _ClassVar[AckLevel]
    ACK_LEVEL_FSYNC: _ClassVar[AckLevel]
    ACK_LEVEL_CLOUD: _ClassVar[AckLevel]
    ACK_LEVEL_LAKE: _ClassVar[AckLevel]

class Dispatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISPATCH_NON_RELIABLE: _ClassVar[Dispatch]
    DISPATCH_RELIABLE: _ClassVar[Dispatch]

class SubscriptionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBSCRIPTION_TYPE_EXCLUSIVE: _ClassVar[SubscriptionType]
    SUBSCRIPTION_TYPE_SHARED: _ClassVar[SubscriptionType]
    SUBSCRIPTION_TYPE_FAILOVER: _ClassVar[SubscriptionType]
    SUBSCRIPTION_TYPE_KEY_SHARED: _ClassVar[SubscriptionType]

class Backoff(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BACKOFF_FIXED: _ClassVar[Backoff]
    BACKOFF_EXPONENTIAL: _ClassVar[Backoff]

class Poison(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POISON_DEAD_LETTER: _ClassVar[Poison]
    POISON_BLOCK: _ClassVar[Poison]
    POISON_DROP: _ClassVar[Poison]
ACK_LEVEL_MEMORY: AckLevel
ACK_LEVEL_WAL: AckLevel
ACK_LEVEL_FSYNC: AckLevel
ACK_LEVEL_CLOUD: AckLevel
ACK_LEVEL_LAKE: AckLevel
DISPATCH_NON_RELIABLE: Dispatch
DISPATCH_RELIABLE: Dispatch
SUBSCRIPTION_TYPE_EXCLUSIVE: SubscriptionType
SUBSCRIPTION_TYPE_SHARED: SubscriptionType
SUBSCRIPTION_TYPE_FAILOVER: SubscriptionType
SUBSCRIPTION_TYPE_KEY_SHARED: SubscriptionType
BACKOFF_FIXED: Backoff
BACKOFF_EXPONENTIAL: Backoff
POISON_DEAD_LETTER: Poison
POISON_BLOCK: Poison
POISON_DROP: Poison

class SchemaBinding(_message.Message):
    __slots__ = ("subject", "schema_id", "latest_version", "schema_type", "validation_policy", "validates_payload")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    LATEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TYPE_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_POLICY_FIELD_NUMBER: _ClassVar[int]
    VALIDATES_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    subject: str
    schema_id: int
    latest_version: int
    schema_type: str
    validation_policy: str
    validates_payload: bool
    def __init__(self, subject: _Optional[str] = ..., schema_id: _Optional[int] = ..., latest_version: _Optional[int] = ..., schema_type: _Optional[str] = ..., validation_policy: _Optional[str] = ..., validates_payload: _Optional[bool] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("base", "number")
    BASE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    base: str
    number: int
    def __init__(self, base: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Offsets(_message.Message):
    __slots__ = ("start", "next", "synced", "log_start", "cloud_start", "cloud_stop", "lake_upto")
    START_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    CLOUD_START_FIELD_NUMBER: _ClassVar[int]
    CLOUD_STOP_FIELD_NUMBER: _ClassVar[int]
    LAKE_UPTO_FIELD_NUMBER: _ClassVar[int]
    start: int
    next: int
    synced: int
    log_start: int
    cloud_start: int
    cloud_stop: int
    lake_upto: int
    def __init__(self, start: _Optional[int] = ..., next: _Optional[int] = ..., synced: _Optional[int] = ..., log_start: _Optional[int] = ..., cloud_start: _Optional[int] = ..., cloud_stop: _Optional[int] = ..., lake_upto: _Optional[int] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "generation", "dispatch", "level", "policies", "schema", "partition", "offsets", "created_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    dispatch: Dispatch
    level: AckLevel
    policies: str
    schema: SchemaBinding
    partition: Partition
    offsets: Offsets
    created_at_ms: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., dispatch: _Optional[_Union[Dispatch, str]] = ..., level: _Optional[_Union[AckLevel, str]] = ..., policies: _Optional[str] = ..., schema: _Optional[_Union[SchemaBinding, _Mapping]] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., offsets: _Optional[_Union[Offsets, _Mapping]] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class GetSchemaRequest(_message.Message):
    __slots__ = ("schema_id", "version")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    schema_id: int
    version: int
    def __init__(self, schema_id: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class GetSchemaResponse(_message.Message):
    __slots__ = ("schema_id", "version", "subject", "schema_type", "definition", "fingerprint")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    schema_id: int
    version: int
    subject: str
    schema_type: str
    definition: bytes
    fingerprint: str
    def __init__(self, schema_id: _Optional[int] = ..., version: _Optional[int] = ..., subject: _Optional[str] = ..., schema_type: _Optional[str] = ..., definition: _Optional[bytes] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class ListSpansRequest(_message.Message):
    __slots__ = ("topic", "generation", "from_offset", "split_bytes", "splits_max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SPLIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPLITS_MAX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    generation: int
    from_offset: int
    split_bytes: int
    splits_max: int
    def __init__(self, topic: _Optional[str] = ..., generation: _Optional[int] = ..., from_offset: _Optional[int] = ..., split_bytes: _Optional[int] = ..., splits_max: _Optional[int] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("start_offset", "stop_offset", "start_byte", "stop_byte", "log", "object")
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STOP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_BYTE_FIELD_NUMBER: _ClassVar[int]
    STOP_BYTE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    start_offset: int
    stop_offset: int
    start_byte: int
    stop_byte: int
    log: LogFile
    object: Object
    def __init__(self, start_offset: _Optional[int] = ..., stop_offset: _Optional[int] = ..., start_byte: _Optional[int] = ..., stop_byte: _Optional[int] = ..., log: _Optional[_Union[LogFile, _Mapping]] = ..., object: _Optional[_Union[Object, _Mapping]] = ...) -> None: ...

class LogFile(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class Object(_message.Message):
    __slots__ = ("key", "etag", "size")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    key: str
    etag: str
    size: int
    def __init__(self, key: _Optional[str] = ..., etag: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class ListSpansResponse(_message.Message):
    __slots__ = ("generation", "splits", "stop_offset", "synced_offset", "start_offset")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    STOP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SYNCED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    splits: _containers.RepeatedCompositeFieldContainer[Split]
    stop_offset: int
    synced_offset: int
    start_offset: int
    def __init__(self, generation: _Optional[int] = ..., splits: _Optional[_Iterable[_Union[Split, _Mapping]]] = ..., stop_offset: _Optional[int] = ..., synced_offset: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...

class RequestSyncRequest(_message.Message):
    __slots__ = ("topic", "generation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    generation: int
    def __init__(self, topic: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class RequestSyncResponse(_message.Message):
    __slots__ = ("synced_offset",)
    SYNCED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    synced_offset: int
    def __init__(self, synced_offset: _Optional[int] = ...) -> None: ...

class RequestUploadRequest(_message.Message):
    __slots__ = ("topic", "generation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    generation: int
    def __init__(self, topic: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class RequestUploadResponse(_message.Message):
    __slots__ = ("cloud_stop",)
    CLOUD_STOP_FIELD_NUMBER: _ClassVar[int]
    cloud_stop: int
    def __init__(self, cloud_stop: _Optional[int] = ...) -> None: ...

class WatchWakeupsRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Wakeup(_message.Message):
    __slots__ = ("topic", "generation", "upto")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    topic: str
    generation: int
    upto: int
    def __init__(self, topic: _Optional[str] = ..., generation: _Optional[int] = ..., upto: _Optional[int] = ...) -> None: ...

class WakePipelineRequest(_message.Message):
    __slots__ = ("topic", "generation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    generation: int
    def __init__(self, topic: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class WakePipelineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegisterPipelineRequest(_message.Message):
    __slots__ = ("name", "least_epoch", "owner_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    least_epoch: int
    owner_epoch: int
    def __init__(self, name: _Optional[str] = ..., least_epoch: _Optional[int] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class RegisterPipelineResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ReportUptoRequest(_message.Message):
    __slots__ = ("topic", "generation", "epoch", "upto")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    topic: str
    generation: int
    epoch: int
    upto: int
    def __init__(self, topic: _Optional[str] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ..., upto: _Optional[int] = ...) -> None: ...

class ReportUptoResponse(_message.Message):
    __slots__ = ("upto",)
    UPTO_FIELD_NUMBER: _ClassVar[int]
    upto: int
    def __init__(self, upto: _Optional[int] = ...) -> None: ...

class ResetCursorRequest(_message.Message):
    __slots__ = ("topic", "subscription", "offset", "time_ms", "earliest", "latest")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    offset: int
    time_ms: int
    earliest: bool
    latest: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., offset: _Optional[int] = ..., time_ms: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ...) -> None: ...

class ResetCursorResponse(_message.Message):
    __slots__ = ("cursor", "previous")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    previous: int
    def __init__(self, cursor: _Optional[int] = ..., previous: _Optional[int] = ...) -> None: ...

class SetTopicPoliciesRequest(_message.Message):
    __slots__ = ("topic", "policies")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    policies: str
    def __init__(self, topic: _Optional[str] = ..., policies: _Optional[str] = ...) -> None: ...

class SetTopicPoliciesResponse(_message.Message):
    __slots__ = ("effective",)
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    effective: str
    def __init__(self, effective: _Optional[str] = ...) -> None: ...

class GetTopicPoliciesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetTopicPoliciesResponse(_message.Message):
    __slots__ = ("policies", "effective")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    policies: str
    effective: str
    def __init__(self, policies: _Optional[str] = ..., effective: _Optional[str] = ...) -> None: ...

class SetNamespacePoliciesRequest(_message.Message):
    __slots__ = ("namespace", "policies")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    policies: str
    def __init__(self, namespace: _Optional[str] = ..., policies: _Optional[str] = ...) -> None: ...

class SetNamespacePoliciesResponse(_message.Message):
    __slots__ = ("effective",)
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    effective: str
    def __init__(self, effective: _Optional[str] = ...) -> None: ...

class GetNamespacePoliciesRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class GetNamespacePoliciesResponse(_message.Message):
    __slots__ = ("policies", "effective")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    policies: str
    effective: str
    def __init__(self, policies: _Optional[str] = ..., effective: _Optional[str] = ...) -> None: ...

class FailurePolicy(_message.Message):
    __slots__ = ("max_redelivery_count", "ack_timeout_ms", "base_redelivery_delay_ms", "max_redelivery_delay_ms", "backoff", "poison", "dead_letter_topic")
    MAX_REDELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    BASE_REDELIVERY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_REDELIVERY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    POISON_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff: Backoff
    poison: Poison
    dead_letter_topic: str
    def __init__(self, max_redelivery_count: _Optional[int] = ..., ack_timeout_ms: _Optional[int] = ..., base_redelivery_delay_ms: _Optional[int] = ..., max_redelivery_delay_ms: _Optional[int] = ..., backoff: _Optional[_Union[Backoff, str]] = ..., poison: _Optional[_Union[Poison, str]] = ..., dead_letter_topic: _Optional[str] = ...) -> None: ...

class Consumer(_message.Message):
    __slots__ = ("name", "consumer_id", "connected", "active", "unacked", "key_filters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    UNACKED_FIELD_NUMBER: _ClassVar[int]
    KEY_FILTERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    consumer_id: int
    connected: bool
    active: bool
    unacked: int
    key_filters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., consumer_id: _Optional[int] = ..., connected: _Optional[bool] = ..., active: _Optional[bool] = ..., unacked: _Optional[int] = ..., key_filters: _Optional[_Iterable[str]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("name", "type", "dispatch", "cursor", "durable_cursor", "lag", "unacked", "waiting", "redelivered", "window", "blocked", "failure_policy", "consumers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    DURABLE_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    UNACKED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_POLICY_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: SubscriptionType
    dispatch: Dispatch
    cursor: int
    durable_cursor: int
    lag: int
    unacked: int
    waiting: int
    redelivered: int
    window: int
    blocked: bool
    failure_policy: FailurePolicy
    consumers: _containers.RepeatedCompositeFieldContainer[Consumer]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[SubscriptionType, str]] = ..., dispatch: _Optional[_Union[Dispatch, str]] = ..., cursor: _Optional[int] = ..., durable_cursor: _Optional[int] = ..., lag: _Optional[int] = ..., unacked: _Optional[int] = ..., waiting: _Optional[int] = ..., redelivered: _Optional[int] = ..., window: _Optional[int] = ..., blocked: _Optional[bool] = ..., failure_policy: _Optional[_Union[FailurePolicy, _Mapping]] = ..., consumers: _Optional[_Iterable[_Union[Consumer, _Mapping]]] = ...) -> None: ...

class DescribeSubscriptionRequest(_message.Message):
    __slots__ = ("topic", "subscription")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class DescribeSubscriptionResponse(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: Subscription
    def __init__(self, subscription: _Optional[_Union[Subscription, _Mapping]] = ...) -> None: ...

class DescribeSubscriptionsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DescribeSubscriptionsResponse(_message.Message):
    __slots__ = ("subscriptions",)
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicDetail
    def __init__(self, topic: _Optional[_Union[TopicDetail, _Mapping]] = ...) -> None: ...

class ListTopicDetailsRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class ListTopicDetailsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicDetail]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicDetail, _Mapping]]] = ...) -> None: ...

class TopicDetail(_message.Message):
    __slots__ = ("name", "generation", "dispatch", "level", "policies", "schema", "partition", "offsets", "log_bytes", "cloud_bytes", "producers", "consumers", "subscriptions", "created_at_ms", "trouble")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOUD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    dispatch: Dispatch
    level: AckLevel
    policies: str
    schema: SchemaBinding
    partition: Partition
    offsets: Offsets
    log_bytes: int
    cloud_bytes: int
    producers: int
    consumers: int
    subscriptions: _containers.RepeatedScalarFieldContainer[str]
    created_at_ms: int
    trouble: str
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., dispatch: _Optional[_Union[Dispatch, str]] = ..., level: _Optional[_Union[AckLevel, str]] = ..., policies: _Optional[str] = ..., schema: _Optional[_Union[SchemaBinding, _Mapping]] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., offsets: _Optional[_Union[Offsets, _Mapping]] = ..., log_bytes: _Optional[int] = ..., cloud_bytes: _Optional[int] = ..., producers: _Optional[int] = ..., consumers: _Optional[int] = ..., subscriptions: _Optional[_Iterable[str]] = ..., created_at_ms: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...
