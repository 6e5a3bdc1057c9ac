import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from xver.compat.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(_message.Message):
    __slots__ = ("code", "metric", "value", "bound", "threshold", "num_items", "run_ids", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _common_pb2.ReasonCode
    metric: str
    value: float
    bound: float
    threshold: float
    num_items: int
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    message: str
    def __init__(self, code: _Optional[_Union[_common_pb2.ReasonCode, str]] = ..., metric: _Optional[str] = ..., value: _Optional[float] = ..., bound: _Optional[float] = ..., threshold: _Optional[float] = ..., num_items: _Optional[int] = ..., run_ids: _Optional[_Iterable[str]] = ..., message: _Optional[str] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("task_family", "prefix_tokens_min_exclusive", "prefix_tokens_max", "action", "confidence", "reasons", "mapper")
    TASK_FAMILY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_MIN_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    MAPPER_FIELD_NUMBER: _ClassVar[int]
    task_family: str
    prefix_tokens_min_exclusive: int
    prefix_tokens_max: int
    action: _common_pb2.Action
    confidence: _common_pb2.Confidence
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    mapper: _common_pb2.MapperRef
    def __init__(self, task_family: _Optional[str] = ..., prefix_tokens_min_exclusive: _Optional[int] = ..., prefix_tokens_max: _Optional[int] = ..., action: _Optional[_Union[_common_pb2.Action, str]] = ..., confidence: _Optional[_Union[_common_pb2.Confidence, str]] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., mapper: _Optional[_Union[_common_pb2.MapperRef, _Mapping]] = ...) -> None: ...

class CheckCompatRequest(_message.Message):
    __slots__ = ("source", "target", "source_layout", "target_layout", "engine", "task_families", "policy", "client")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TASK_FAMILIES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    source: _common_pb2.ModelVersion
    target: _common_pb2.ModelVersion
    source_layout: _common_pb2.CacheLayout
    target_layout: _common_pb2.CacheLayout
    engine: _common_pb2.Engine
    task_families: _containers.RepeatedScalarFieldContainer[str]
    policy: str
    client: str
    def __init__(self, source: _Optional[_Union[_common_pb2.ModelVersion, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.ModelVersion, _Mapping]] = ..., source_layout: _Optional[_Union[_common_pb2.CacheLayout, _Mapping]] = ..., target_layout: _Optional[_Union[_common_pb2.CacheLayout, _Mapping]] = ..., engine: _Optional[_Union[_common_pb2.Engine, _Mapping]] = ..., task_families: _Optional[_Iterable[str]] = ..., policy: _Optional[str] = ..., client: _Optional[str] = ...) -> None: ...

class CheckCompatResponse(_message.Message):
    __slots__ = ("decision_id", "rules", "action", "confidence", "reasons", "policy", "policy_revision", "evidence_revision", "ttl", "decided_at")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_REVISION_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    action: _common_pb2.Action
    confidence: _common_pb2.Confidence
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    policy: str
    policy_revision: str
    evidence_revision: int
    ttl: _duration_pb2.Duration
    decided_at: _timestamp_pb2.Timestamp
    def __init__(self, decision_id: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., action: _Optional[_Union[_common_pb2.Action, str]] = ..., confidence: _Optional[_Union[_common_pb2.Confidence, str]] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., policy: _Optional[str] = ..., policy_revision: _Optional[str] = ..., evidence_revision: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decided_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
