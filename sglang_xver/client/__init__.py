"""Client of the compatibility service, without torch or SGLang."""

from __future__ import annotations

from xver.compat.v1.common_pb2 import CacheLayout, Engine, ModelVersion
from xver.compat.v1.evidence_pb2 import Run

from sglang_xver.client.answer import (
    Action,
    CompatAnswer,
    CompatReason,
    CompatRule,
    Confidence,
    RecordedRun,
)
from sglang_xver.client.compat import CompatClient
from sglang_xver.client.status import CallRefusedError

__all__ = [
    "Action",
    "CacheLayout",
    "CallRefusedError",
    "CompatAnswer",
    "CompatClient",
    "CompatReason",
    "CompatRule",
    "Confidence",
    "Engine",
    "ModelVersion",
    "RecordedRun",
    "Run",
]
