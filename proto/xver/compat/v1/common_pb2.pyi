from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_KEEP: _ClassVar[Action]
    ACTION_REMAP: _ClassVar[Action]
    ACTION_EVICT: _ClassVar[Action]

class Confidence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIDENCE_UNSPECIFIED: _ClassVar[Confidence]
    CONFIDENCE_PASS: _ClassVar[Confidence]
    CONFIDENCE_MARGINAL: _ClassVar[Confidence]
    CONFIDENCE_INCONCLUSIVE: _ClassVar[Confidence]
    CONFIDENCE_NO_EVIDENCE: _ClassVar[Confidence]
    CONFIDENCE_FAIL: _ClassVar[Confidence]

class ReasonCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_CODE_UNSPECIFIED: _ClassVar[ReasonCode]
    REASON_CODE_ALL_CRITERIA_PASS: _ClassVar[ReasonCode]
    REASON_CODE_NO_EVIDENCE: _ClassVar[ReasonCode]
    REASON_CODE_LAYOUT_MISMATCH: _ClassVar[ReasonCode]
    REASON_CODE_GEOMETRY_MISMATCH: _ClassVar[ReasonCode]
    REASON_CODE_HFR_BOUND_TOO_HIGH: _ClassVar[ReasonCode]
    REASON_CODE_HFR_TOO_HIGH: _ClassVar[ReasonCode]
    REASON_CODE_FCD_TOO_HIGH: _ClassVar[ReasonCode]
    REASON_CODE_TOO_FEW_ITEMS: _ClassVar[ReasonCode]
    REASON_CODE_REFERENCE_UNSTABLE: _ClassVar[ReasonCode]
    REASON_CODE_CRITERION_NOT_MEASURED: _ClassVar[ReasonCode]
    REASON_CODE_FAMILY_NOT_MEASURED: _ClassVar[ReasonCode]
    REASON_CODE_BEYOND_MEASURED_PREFIX: _ClassVar[ReasonCode]
    REASON_CODE_SAME_FINGERPRINT: _ClassVar[ReasonCode]
    REASON_CODE_EXPLORATORY: _ClassVar[ReasonCode]
    REASON_CODE_UNKNOWN_VERSION: _ClassVar[ReasonCode]
    REASON_CODE_SHALLOWER_BUCKET_FAILED: _ClassVar[ReasonCode]
    REASON_CODE_PUBLISHED_ONLY: _ClassVar[ReasonCode]
    REASON_CODE_FCD_BOUND_TOO_HIGH: _ClassVar[ReasonCode]
    REASON_CODE_DIVERGENCE_LOWER_BOUND_ONLY: _ClassVar[ReasonCode]
    REASON_CODE_PLAN_NOT_COMPLETED: _ClassVar[ReasonCode]
ACTION_UNSPECIFIED: Action
ACTION_KEEP: Action
ACTION_REMAP: Action
ACTION_EVICT: Action
CONFIDENCE_UNSPECIFIED: Confidence
CONFIDENCE_PASS: Confidence
CONFIDENCE_MARGINAL: Confidence
CONFIDENCE_INCONCLUSIVE: Confidence
CONFIDENCE_NO_EVIDENCE: Confidence
CONFIDENCE_FAIL: Confidence
REASON_CODE_UNSPECIFIED: ReasonCode
REASON_CODE_ALL_CRITERIA_PASS: ReasonCode
REASON_CODE_NO_EVIDENCE: ReasonCode
REASON_CODE_LAYOUT_MISMATCH: ReasonCode
REASON_CODE_GEOMETRY_MISMATCH: ReasonCode
REASON_CODE_HFR_BOUND_TOO_HIGH: ReasonCode
REASON_CODE_HFR_TOO_HIGH: ReasonCode
REASON_CODE_FCD_TOO_HIGH: ReasonCode
REASON_CODE_TOO_FEW_ITEMS: ReasonCode
REASON_CODE_REFERENCE_UNSTABLE: ReasonCode
REASON_CODE_CRITERION_NOT_MEASURED: ReasonCode
REASON_CODE_FAMILY_NOT_MEASURED: ReasonCode
REASON_CODE_BEYOND_MEASURED_PREFIX: ReasonCode
REASON_CODE_SAME_FINGERPRINT: ReasonCode
REASON_CODE_EXPLORATORY: ReasonCode
REASON_CODE_UNKNOWN_VERSION: ReasonCode
REASON_CODE_SHALLOWER_BUCKET_FAILED: ReasonCode
REASON_CODE_PUBLISHED_ONLY: ReasonCode
REASON_CODE_FCD_BOUND_TOO_HIGH: ReasonCode
REASON_CODE_DIVERGENCE_LOWER_BOUND_ONLY: ReasonCode
REASON_CODE_PLAN_NOT_COMPLETED: ReasonCode

class ModelVersion(_message.Message):
    __slots__ = ("label", "fingerprint", "family", "base_fingerprint", "lineage", "lineage_step", "tokenizer_digest")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    BASE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    label: str
    fingerprint: str
    family: str
    base_fingerprint: str
    lineage: str
    lineage_step: int
    tokenizer_digest: str
    def __init__(self, label: _Optional[str] = ..., fingerprint: _Optional[str] = ..., family: _Optional[str] = ..., base_fingerprint: _Optional[str] = ..., lineage: _Optional[str] = ..., lineage_step: _Optional[int] = ..., tokenizer_digest: _Optional[str] = ...) -> None: ...

class CacheLayout(_message.Message):
    __slots__ = ("digest", "num_layers", "num_kv_heads", "head_dim", "kv_lora_rank", "qk_rope_head_dim", "rope_digest", "kv_dtype", "pool_layout", "bytes_per_token", "sliding_windows")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    KV_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    QK_ROPE_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    ROPE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    POOL_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    digest: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    rope_digest: str
    kv_dtype: str
    pool_layout: str
    bytes_per_token: int
    sliding_windows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, digest: _Optional[str] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., kv_lora_rank: _Optional[int] = ..., qk_rope_head_dim: _Optional[int] = ..., rope_digest: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., pool_layout: _Optional[str] = ..., bytes_per_token: _Optional[int] = ..., sliding_windows: _Optional[_Iterable[int]] = ...) -> None: ...

class Engine(_message.Message):
    __slots__ = ("name", "version", "attention_backend")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    attention_backend: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., attention_backend: _Optional[str] = ...) -> None: ...

class MapperRef(_message.Message):
    __slots__ = ("sha256", "name")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    name: str
    def __init__(self, sha256: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...
