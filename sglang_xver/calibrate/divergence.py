"""Divergence between the next-token distributions of two arms, and its summary over items.

FCD is KL(p_W || p_R) in nats: how far the target, reading KV of the source, strays from the target
reading its own KV.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_xver.calibrate.engine_types import TopLogprobs
from sglang_xver.calibrate.errors import CalibrationError, InvalidRunError

_BOOTSTRAP_ROUNDS = 2000
_BOOTSTRAP_SEED = 20_251
_UPPER_LEVEL = 0.95
# The lumped remainder of a top-k list may round to zero; a floor only lowers the divergence.
_SMALLEST_MASS = 1e-12
_MASS_TOLERANCE = 1e-2
_OVERLAP_TOKENS = 10
# Where arms are computed bit by bit alike the floor is 0, and any rounding would lie above it.
_SMALLEST_CONTROL_NATS = 1e-3

Vector = npt.NDArray[np.float64]


class PositionDivergence(NamedTuple):
    """Two distributions at one position; divergences in nats, the rest 0..1."""

    kl: float
    jensen_shannon: float
    total_variation: float
    top1_agrees: bool
    top10_overlap: float
    remainder_mass: float
    """Probability that only the lumped remainder covers, of the two the larger; 0 if none."""


class ItemDivergence(NamedTuple):
    """One item's positions; ``document_id`` names the cluster it belongs to."""

    document_id: str
    positions: tuple[PositionDivergence, ...]

    @property
    def mean_kl(self) -> float:
        """Mean over positions in nats: the item's FCD."""
        return float(np.mean([position.kl for position in self.positions]))


class DivergenceStats(NamedTuple):
    """FCD over items in nats; see ``DivergenceSummary`` of the API for each field."""

    is_full_vocabulary: bool
    num_items: int
    num_documents: int
    positions_per_item: int
    mean: float
    mean_upper_bound: float
    median: float
    p95: float
    p99: float
    max: float
    first_position_mean: float
    remainder_mass: float


class AgreementStats(NamedTuple):
    """Means over all positions of all items."""

    total_variation: float
    jensen_shannon: float
    top1_agreement: float
    top10_overlap: float


def compare(p: TopLogprobs, q: TopLogprobs, vocab_size: int) -> PositionDivergence:
    """Return the divergence of ``q`` from the reference ``p`` at one position.

    With the whole vocabulary on both sides it is exact. Otherwise all tokens that are not in both
    lists are lumped into one: by the data-processing inequality a lower bound of KL, JS and TV.

    Raises:
        InvalidRunError: a distribution has values that are no probabilities.
    """
    _check(p)
    _check(q)
    p_common, q_common, remainder = _on_common_tokens(p, q, vocab_size)
    middle = 0.5 * (p_common + q_common)
    jensen_shannon = 0.5 * (_kl(p_common, middle) + _kl(q_common, middle))
    p_top, q_top = _most_likely(p), _most_likely(q)
    wanted = min(_OVERLAP_TOKENS, len(p_top), len(q_top))
    overlap = len(set(p_top[:wanted]) & set(q_top[:wanted])) / wanted
    return PositionDivergence(
        kl=_kl(p_common, q_common),
        jensen_shannon=jensen_shannon,
        total_variation=min(1.0, 0.5 * float(np.abs(p_common - q_common).sum())),
        top1_agrees=p_top[0] == q_top[0],
        top10_overlap=overlap,
        remainder_mass=remainder,
    )


def compare_item(
    document_id: str,
    reference: Sequence[TopLogprobs],
    other: Sequence[TopLogprobs],
    vocab_size: int,
) -> ItemDivergence:
    """Compare position by position; both sides follow the same forced tokens.

    Raises:
        InvalidRunError: the sides have no, or not equally many, positions.
    """
    if not reference or len(reference) != len(other):
        raise InvalidRunError(
            f"{len(reference)} against {len(other)} positions; both arms must score the same text"
        )
    pairs = zip(reference, other, strict=True)
    return ItemDivergence(document_id, tuple(compare(p, q, vocab_size) for p, q in pairs))


def summarize(items: Sequence[ItemDivergence]) -> DivergenceStats:
    """Summarize items; the upper bound of the mean is a bootstrap over whole documents.

    Items of one document share its KV, so documents are drawn, not items. With fewer than about
    ten documents the bound is rough and tends to be too low.

    Raises:
        CalibrationError: there is no item.
    """
    if not items:
        raise CalibrationError("no item to summarize; measure at least one")
    values = np.array([item.mean_kl for item in items])
    median, p95, p99 = np.percentile(values, [50, 95, 99])
    mean = float(values.mean())
    remainders = [p.remainder_mass for item in items for p in item.positions]
    return DivergenceStats(
        is_full_vocabulary=not any(remainders),
        num_items=len(items),
        num_documents=len({item.document_id for item in items}),
        positions_per_item=max(len(item.positions) for item in items),
        mean=mean,
        mean_upper_bound=max(mean, _clustered_upper_bound(items)),
        median=float(median),
        p95=float(p95),
        p99=float(p99),
        max=float(values.max()),
        first_position_mean=float(np.mean([item.positions[0].kl for item in items])),
        remainder_mass=float(np.mean(remainders)),
    )


def summarize_agreement(items: Sequence[ItemDivergence]) -> AgreementStats:
    """Return the means over all positions; raises :class:`CalibrationError` when there is none."""
    positions = [position for item in items for position in item.positions]
    if not positions:
        raise CalibrationError("no position to summarize; measure at least one item")
    return AgreementStats(
        total_variation=float(np.mean([p.total_variation for p in positions])),
        jensen_shannon=float(np.mean([p.jensen_shannon for p in positions])),
        top1_agreement=float(np.mean([p.top1_agrees for p in positions])),
        top10_overlap=float(np.mean([p.top10_overlap for p in positions])),
    )


def require_control_caught(
    control: Sequence[ItemDivergence], floor: Sequence[ItemDivergence]
) -> None:
    """Check that the metric tells KV of another document (arm X) from the target's own (arm W).

    The smallest control must lie above the largest floor, and above what bf16 rounding alone can
    do: a metric that calls the wrong document noise would call any harm noise.

    Raises:
        InvalidRunError: it doesn't, so the divergences of this run mean nothing.
    """
    if not control or not floor:
        raise InvalidRunError("control or floor was not measured; a run needs both")
    smallest = min(item.mean_kl for item in control)
    largest = max(_SMALLEST_CONTROL_NATS, *(item.mean_kl for item in floor))
    if not smallest > largest:
        raise InvalidRunError(
            f"control X (KV of another document) diverges by {smallest:.3g} nats, the noise floor "
            f"reaches {largest:.3g}: the metric can't tell them apart. Check that the arms use "
            "their own cache_salt and that documents differ"
        )


def _check(distribution: TopLogprobs) -> None:
    logprobs = distribution.logprobs
    if len(logprobs) == 0 or not np.isfinite(logprobs).all():
        raise InvalidRunError(
            "log-probabilities are empty or not finite; the served weights may be broken"
        )
    mass = float(np.exp(logprobs).sum())
    if mass > 1.0 + _MASS_TOLERANCE:
        raise InvalidRunError(f"probabilities sum up to {mass:.4f}; they must not exceed 1")


def _on_common_tokens(
    p: TopLogprobs, q: TopLogprobs, vocab_size: int
) -> tuple[Vector, Vector, float]:
    """Return both distributions on the same outcomes, and the mass of the lumped one."""
    common, p_index, q_index = np.intersect1d(
        p.token_ids, q.token_ids, assume_unique=True, return_indices=True
    )
    p_common, q_common = np.exp(p.logprobs[p_index]), np.exp(q.logprobs[q_index])
    if len(common) == vocab_size:
        # The server's log-softmax sums to 1 within float32; make both exact distributions.
        return p_common / p_common.sum(), q_common / q_common.sum(), 0.0
    p_rest = max(_SMALLEST_MASS, 1.0 - float(p_common.sum()))
    q_rest = max(_SMALLEST_MASS, 1.0 - float(q_common.sum()))
    return np.append(p_common, p_rest), np.append(q_common, q_rest), max(p_rest, q_rest)


def _kl(p: Vector, q: Vector) -> float:
    seen = p > 0
    total = float(np.sum(p[seen] * (np.log(p[seen]) - np.log(q[seen]))))
    return max(0.0, total)


def _most_likely(distribution: TopLogprobs) -> list[int]:
    order = np.argsort(-distribution.logprobs, kind="stable")[:_OVERLAP_TOKENS]
    return [int(token) for token in distribution.token_ids[order]]


def _clustered_upper_bound(items: Sequence[ItemDivergence]) -> float:
    by_document: dict[str, list[float]] = defaultdict(list)
    for item in items:
        by_document[item.document_id].append(item.mean_kl)
    sums = np.array([sum(values) for values in by_document.values()])
    counts = np.array([len(values) for values in by_document.values()])
    drawn = np.random.default_rng(_BOOTSTRAP_SEED).integers(
        0, len(sums), size=(_BOOTSTRAP_ROUNDS, len(sums))
    )
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return float(np.quantile(means, _UPPER_LEVEL))
