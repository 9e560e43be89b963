from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListSegmentDescriptorsRequest(_message.Message):
    __slots__ = ("topic", "after_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after_offset: int
    def __init__(self, topic: _Optional[str] = ..., after_offset: _Optional[int] = ...) -> None: ...

class ListSegmentDescriptorsResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentDescriptorProto]
    def __init__(self, segments: _Optional[_Iterable[_Union[SegmentDescriptorProto, _Mapping]]] = ...) -> None: ...

class SegmentDescriptorProto(_message.Message):
    __slots__ = ("segment_id", "start_offset", "end_offset", "size", "etag", "created_at")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    segment_id: str
    start_offset: int
    end_offset: int
    size: int
    etag: str
    created_at: int
    def __init__(self, segment_id: _Optional[str] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., size: _Optional[int] = ..., etag: _Optional[str] = ..., created_at: _Optional[int] = ...) -> None: ...
