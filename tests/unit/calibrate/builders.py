"""Small distributions, documents and a scripted server for the calibration's tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_xver.calibrate.divergence import ItemDivergence, PositionDivergence
from sglang_xver.calibrate.engine_types import TopLogprobs
from sglang_xver.calibrate.plan import MeasurementPlan
from sglang_xver.calibrate.tasks import Document, Item, Task

VOCAB_SIZE = 32
QA = Task("qa@1", "qa", 3, 2, is_correct=lambda answer, gold: answer == gold)
TEXT = Task("text@1", "text", 3, 3, is_correct=None)
LAYOUT: dict[str, Any] = {
    "digest": "layout:1",
    "num_layers": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "kv_lora_rank": 0,
    "qk_rope_head_dim": 0,
    "rope_digest": "r",
    "kv_dtype": "bfloat16",
    "pool_layout": "mha",
    "bytes_per_token": 64,
}
ENGINE = {"name": "sglang", "version": "0.5.23", "attention_backend": "xver_cpu"}


def distribution(probabilities: Sequence[float], first_token: int = 0) -> TopLogprobs:
    """The tokens from ``first_token`` on with these probabilities."""
    ids = np.arange(first_token, first_token + len(probabilities), dtype=np.int64)
    return TopLogprobs(ids, np.array([math.log(p) for p in probabilities]))


def item_divergence(document_id: str, *kls: float) -> ItemDivergence:
    """An item whose positions diverge by these nats, over the whole vocabulary."""
    return ItemDivergence(
        document_id, tuple(PositionDivergence(kl, 0.0, 0.0, True, 1.0, 0.0) for kl in kls)
    )


def make_documents(count: int = 2, prefix_tokens: int = 6) -> tuple[Document, ...]:
    """Documents of different tokens, each with two scored questions and one text opening."""
    documents = []
    for index in range(count):
        name = f"d{index}"
        items = (
            Item(f"{name}/q0", QA, (20, 21), gold="right"),
            Item(f"{name}/q1", QA, (20, 22), gold="right", is_scored_for_divergence=False),
            Item(f"{name}/t0", TEXT, (23,)),
        )
        documents.append(Document(name, tuple(range(index, index + prefix_tokens)), items))
    return tuple(documents)


def make_plan(**changes: Any) -> MeasurementPlan:
    """A plan over two documents."""
    fields = {"documents": make_documents(), "hfr_limit": 0.25, "confidence_level": 0.8}
    return MeasurementPlan(**{**fields, **changes})
