import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from xver.compat.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Provenance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVENANCE_UNSPECIFIED: _ClassVar[Provenance]
    PROVENANCE_MEASURED: _ClassVar[Provenance]
    PROVENANCE_PUBLISHED: _ClassVar[Provenance]

class DivergenceMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIVERGENCE_METHOD_UNSPECIFIED: _ClassVar[DivergenceMethod]
    DIVERGENCE_METHOD_FULL_VOCABULARY: _ClassVar[DivergenceMethod]
    DIVERGENCE_METHOD_TOP_K_LOWER_BOUND: _ClassVar[DivergenceMethod]
PROVENANCE_UNSPECIFIED: Provenance
PROVENANCE_MEASURED: Provenance
PROVENANCE_PUBLISHED: Provenance
DIVERGENCE_METHOD_UNSPECIFIED: DivergenceMethod
DIVERGENCE_METHOD_FULL_VOCABULARY: DivergenceMethod
DIVERGENCE_METHOD_TOP_K_LOWER_BOUND: DivergenceMethod

class SamplePlan(_message.Message):
    __slots__ = ("planned_items", "planned_looks", "hfr_limit", "confidence_level")
    PLANNED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_LOOKS_FIELD_NUMBER: _ClassVar[int]
    HFR_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    planned_items: int
    planned_looks: int
    hfr_limit: float
    confidence_level: float
    def __init__(self, planned_items: _Optional[int] = ..., planned_looks: _Optional[int] = ..., hfr_limit: _Optional[float] = ..., confidence_level: _Optional[float] = ...) -> None: ...

class DivergenceSummary(_message.Message):
    __slots__ = ("method", "num_items", "positions_per_item", "mean", "mean_upper_bound", "median", "p95", "p99", "max", "first_position_mean", "remainder_mass")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_PER_ITEM_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MEAN_UPPER_BOUND_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_FIELD_NUMBER: _ClassVar[int]
    P95_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_MEAN_FIELD_NUMBER: _ClassVar[int]
    REMAINDER_MASS_FIELD_NUMBER: _ClassVar[int]
    method: DivergenceMethod
    num_items: int
    positions_per_item: int
    mean: float
    mean_upper_bound: float
    median: float
    p95: float
    p99: float
    max: float
    first_position_mean: float
    remainder_mass: float
    def __init__(self, method: _Optional[_Union[DivergenceMethod, str]] = ..., num_items: _Optional[int] = ..., positions_per_item: _Optional[int] = ..., mean: _Optional[float] = ..., mean_upper_bound: _Optional[float] = ..., median: _Optional[float] = ..., p95: _Optional[float] = ..., p99: _Optional[float] = ..., max: _Optional[float] = ..., first_position_mean: _Optional[float] = ..., remainder_mass: _Optional[float] = ...) -> None: ...

class AgreementSummary(_message.Message):
    __slots__ = ("total_variation", "jensen_shannon", "top1_agreement", "top10_overlap")
    TOTAL_VARIATION_FIELD_NUMBER: _ClassVar[int]
    JENSEN_SHANNON_FIELD_NUMBER: _ClassVar[int]
    TOP1_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    TOP10_OVERLAP_FIELD_NUMBER: _ClassVar[int]
    total_variation: float
    jensen_shannon: float
    top1_agreement: float
    top10_overlap: float
    def __init__(self, total_variation: _Optional[float] = ..., jensen_shannon: _Optional[float] = ..., top1_agreement: _Optional[float] = ..., top10_overlap: _Optional[float] = ...) -> None: ...

class FlipCounts(_message.Message):
    __slots__ = ("num_items", "reference_correct", "harmful", "beneficial")
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_CORRECT_FIELD_NUMBER: _ClassVar[int]
    HARMFUL_FIELD_NUMBER: _ClassVar[int]
    BENEFICIAL_FIELD_NUMBER: _ClassVar[int]
    num_items: int
    reference_correct: int
    harmful: int
    beneficial: int
    def __init__(self, num_items: _Optional[int] = ..., reference_correct: _Optional[int] = ..., harmful: _Optional[int] = ..., beneficial: _Optional[int] = ...) -> None: ...

class TtftSummary(_message.Message):
    __slots__ = ("ratio_median", "ratio_lower", "ratio_upper", "num_pairs")
    RATIO_MEDIAN_FIELD_NUMBER: _ClassVar[int]
    RATIO_LOWER_FIELD_NUMBER: _ClassVar[int]
    RATIO_UPPER_FIELD_NUMBER: _ClassVar[int]
    NUM_PAIRS_FIELD_NUMBER: _ClassVar[int]
    ratio_median: float
    ratio_lower: float
    ratio_upper: float
    num_pairs: int
    def __init__(self, ratio_median: _Optional[float] = ..., ratio_lower: _Optional[float] = ..., ratio_upper: _Optional[float] = ..., num_pairs: _Optional[int] = ...) -> None: ...

class StratumResult(_message.Message):
    __slots__ = ("task_family", "task", "prefix_tokens_max", "prefix_tokens_min", "action", "mapper", "num_documents", "flips", "floor_flips", "divergence", "floor_divergence", "agreement", "reference_mismatches", "stop_mismatches", "ttft", "source_correct", "synthetic")
    TASK_FAMILY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_MIN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MAPPER_FIELD_NUMBER: _ClassVar[int]
    NUM_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    FLIPS_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FLIPS_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    FLOOR_DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    STOP_MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CORRECT_FIELD_NUMBER: _ClassVar[int]
    SYNTHETIC_FIELD_NUMBER: _ClassVar[int]
    task_family: str
    task: str
    prefix_tokens_max: int
    prefix_tokens_min: int
    action: _common_pb2.Action
    mapper: _common_pb2.MapperRef
    num_documents: int
    flips: FlipCounts
    floor_flips: FlipCounts
    divergence: DivergenceSummary
    floor_divergence: DivergenceSummary
    agreement: AgreementSummary
    reference_mismatches: int
    stop_mismatches: int
    ttft: TtftSummary
    source_correct: int
    synthetic: bool
    def __init__(self, task_family: _Optional[str] = ..., task: _Optional[str] = ..., prefix_tokens_max: _Optional[int] = ..., prefix_tokens_min: _Optional[int] = ..., action: _Optional[_Union[_common_pb2.Action, str]] = ..., mapper: _Optional[_Union[_common_pb2.MapperRef, _Mapping]] = ..., num_documents: _Optional[int] = ..., flips: _Optional[_Union[FlipCounts, _Mapping]] = ..., floor_flips: _Optional[_Union[FlipCounts, _Mapping]] = ..., divergence: _Optional[_Union[DivergenceSummary, _Mapping]] = ..., floor_divergence: _Optional[_Union[DivergenceSummary, _Mapping]] = ..., agreement: _Optional[_Union[AgreementSummary, _Mapping]] = ..., reference_mismatches: _Optional[int] = ..., stop_mismatches: _Optional[int] = ..., ttft: _Optional[_Union[TtftSummary, _Mapping]] = ..., source_correct: _Optional[int] = ..., synthetic: _Optional[bool] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "source", "target", "layout", "engine", "provenance", "sample_plan", "strata", "tool_version", "note", "measured_at", "recorded_at", "evidence_revision")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_PLAN_FIELD_NUMBER: _ClassVar[int]
    STRATA_FIELD_NUMBER: _ClassVar[int]
    TOOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    RECORDED_AT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    source: _common_pb2.ModelVersion
    target: _common_pb2.ModelVersion
    layout: _common_pb2.CacheLayout
    engine: _common_pb2.Engine
    provenance: Provenance
    sample_plan: SamplePlan
    strata: _containers.RepeatedCompositeFieldContainer[StratumResult]
    tool_version: str
    note: str
    measured_at: _timestamp_pb2.Timestamp
    recorded_at: _timestamp_pb2.Timestamp
    evidence_revision: int
    def __init__(self, run_id: _Optional[str] = ..., source: _Optional[_Union[_common_pb2.ModelVersion, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.ModelVersion, _Mapping]] = ..., layout: _Optional[_Union[_common_pb2.CacheLayout, _Mapping]] = ..., engine: _Optional[_Union[_common_pb2.Engine, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, str]] = ..., sample_plan: _Optional[_Union[SamplePlan, _Mapping]] = ..., strata: _Optional[_Iterable[_Union[StratumResult, _Mapping]]] = ..., tool_version: _Optional[str] = ..., note: _Optional[str] = ..., measured_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., recorded_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., evidence_revision: _Optional[int] = ...) -> None: ...

class RecordRunRequest(_message.Message):
    __slots__ = ("request_id", "run", "validate_only")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    run: Run
    validate_only: bool
    def __init__(self, request_id: _Optional[str] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class RecordRunResponse(_message.Message):
    __slots__ = ("run_id", "evidence_revision", "already_recorded")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    ALREADY_RECORDED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    evidence_revision: int
    already_recorded: bool
    def __init__(self, run_id: _Optional[str] = ..., evidence_revision: _Optional[int] = ..., already_recorded: _Optional[bool] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListPairsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "source_fingerprint", "target_fingerprint")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    source_fingerprint: str
    target_fingerprint: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., source_fingerprint: _Optional[str] = ..., target_fingerprint: _Optional[str] = ...) -> None: ...

class RunConditions(_message.Message):
    __slots__ = ("layout", "engine", "num_runs")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    layout: _common_pb2.CacheLayout
    engine: _common_pb2.Engine
    num_runs: int
    def __init__(self, layout: _Optional[_Union[_common_pb2.CacheLayout, _Mapping]] = ..., engine: _Optional[_Union[_common_pb2.Engine, _Mapping]] = ..., num_runs: _Optional[int] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("source", "target", "num_runs", "task_families", "prefix_tokens_max", "last_recorded_at", "conditions")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    TASK_FAMILIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    LAST_RECORDED_AT_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    source: _common_pb2.ModelVersion
    target: _common_pb2.ModelVersion
    num_runs: int
    task_families: _containers.RepeatedScalarFieldContainer[str]
    prefix_tokens_max: int
    last_recorded_at: _timestamp_pb2.Timestamp
    conditions: _containers.RepeatedCompositeFieldContainer[RunConditions]
    def __init__(self, source: _Optional[_Union[_common_pb2.ModelVersion, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.ModelVersion, _Mapping]] = ..., num_runs: _Optional[int] = ..., task_families: _Optional[_Iterable[str]] = ..., prefix_tokens_max: _Optional[int] = ..., last_recorded_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., conditions: _Optional[_Iterable[_Union[RunConditions, _Mapping]]] = ...) -> None: ...

class ListPairsResponse(_message.Message):
    __slots__ = ("pairs", "next_page_token")
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[Pair]
    next_page_token: str
    def __init__(self, pairs: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
