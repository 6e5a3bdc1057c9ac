"""Statistics behind a verdict, on plain numbers and with the standard library alone.

The service and the calibration tool use the same functions, so that a run is planned by the rule
that later judges it. Nothing here needs scipy, which alone is larger than the whole service.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

DEFAULT_CONFIDENCE_LEVEL = 0.95
_MAX_COUNT = 2**31 - 1
_TINY = 1e-300


class FlipRates(NamedTuple):
    """Rates of one arm against the reference; ``None`` where the denominator is zero."""

    hfr: float | None
    """Harmful flip rate: harmful / reference_correct."""
    bfr: float | None
    """Beneficial flip rate: beneficial / (num_items - reference_correct)."""
    net_gain: float | None
    """(beneficial - harmful) / num_items. Never the difference of the two rates above."""
    flip_ratio: float | None
    """(beneficial + harmful) / num_items."""


def clopper_pearson_upper(
    events: int, trials: int, confidence: float = DEFAULT_CONFIDENCE_LEVEL
) -> float:
    """Return the one-sided exact upper bound of a binomial proportion, 0..1.

    It is the p at which seeing ``events`` or fewer has probability ``1 - confidence`` (Clopper and
    Pearson, 1934). No trials give 1.0: nothing is excluded.

    Raises:
        ValueError: counts are negative or inconsistent, or the confidence is not within (0, 1).
    """
    _check_counts(events, trials, confidence)
    if events == trials:
        return 1.0
    return _upper_bound(events, trials, confidence)


def clopper_pearson_lower(
    events: int, trials: int, confidence: float = DEFAULT_CONFIDENCE_LEVEL
) -> float:
    """Return the one-sided exact lower bound of a binomial proportion, 0..1.

    Raises:
        ValueError: as ``clopper_pearson_upper``.
    """
    _check_counts(events, trials, confidence)
    return 1.0 - clopper_pearson_upper(trials - events, trials, confidence)


def required_items(
    limit: float, events: int = 0, confidence: float = DEFAULT_CONFIDENCE_LEVEL
) -> int:
    """Return the fewest trials whose upper bound falls below ``limit`` when ``events`` are seen.

    Raises:
        ValueError: the limit is not within (0, 1), or as ``clopper_pearson_upper``.
    """
    if not 0.0 < limit < 1.0:
        raise ValueError(f"limit {limit} is outside (0, 1); give a rate such as 0.02 for 2 %")
    _check_counts(events, events, confidence)
    high = max(events + 1, 2)
    while clopper_pearson_upper(events, high, confidence) >= limit:
        high *= 2
        if high > _MAX_COUNT:
            raise ValueError(f"limit {limit} needs more than {_MAX_COUNT} items; raise the limit")
    low = events
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_pearson_upper(events, middle, confidence) < limit:
            high = middle
        else:
            low = middle
    return high


def mcnemar_exact(harmful: int, beneficial: int) -> float:
    """Return the two-sided exact McNemar p-value of the discordant pairs, 0..1.

    Binomial test with probability one half on ``harmful + beneficial`` pairs; no pair gives 1.0.

    Raises:
        ValueError: a count is negative.
    """
    if harmful < 0 or beneficial < 0:
        raise ValueError(
            f"harmful {harmful} and beneficial {beneficial} must be counts of 0 or more"
        )
    if harmful == beneficial:
        return 1.0
    fewer, more = sorted((harmful, beneficial))
    return min(1.0, 2.0 * _regularized_beta(0.5, more, fewer + 1))


def flip_rates(num_items: int, reference_correct: int, harmful: int, beneficial: int) -> FlipRates:
    """Return the rates that belong to paired correctness counts.

    Raises:
        ValueError: the counts contradict each other.
    """
    if not 0 <= reference_correct <= num_items:
        raise ValueError(f"reference_correct {reference_correct} is outside 0..{num_items}")
    if not 0 <= harmful <= reference_correct:
        raise ValueError(f"harmful {harmful} is outside 0..{reference_correct}")
    reference_wrong = num_items - reference_correct
    if not 0 <= beneficial <= reference_wrong:
        raise ValueError(f"beneficial {beneficial} is outside 0..{reference_wrong}")
    return FlipRates(
        hfr=_ratio(harmful, reference_correct),
        bfr=_ratio(beneficial, reference_wrong),
        net_gain=_ratio(beneficial - harmful, num_items),
        flip_ratio=_ratio(beneficial + harmful, num_items),
    )


def harmful_flip_rate_floor(target_accuracy: float, reuse_accuracy: float) -> float | None:
    """Return the least HFR that two accuracies allow, or ``None`` when nothing was correct.

    HFR >= (acc_C - acc_R) / acc_C: enough to evict, never enough to keep.

    Raises:
        ValueError: an accuracy is outside 0..1.
    """
    for name, value in (("target", target_accuracy), ("reuse", reuse_accuracy)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} accuracy {value} is outside 0..1; give a share, not percent")
    if target_accuracy == 0.0:
        return None
    return max(0.0, (target_accuracy - reuse_accuracy) / target_accuracy)


def split_confidence(confidence: float, looks: int) -> float:
    """Return the level of each look so that ``looks`` looks together keep ``confidence``.

    Bonferroni split of alpha: coarser than a spending function and never too optimistic.

    Raises:
        ValueError: fewer than one look.
    """
    if looks < 1:
        raise ValueError(f"looks {looks} must be 1 or more")
    return 1.0 - (1.0 - confidence) / looks


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _check_counts(events: int, trials: int, confidence: float) -> None:
    if not 0 <= events <= trials <= _MAX_COUNT:
        raise ValueError(f"events {events} of {trials} trials: need 0 <= events <= trials < 2**31")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence} is outside (0, 1); 0.95 is the usual level")


@lru_cache(maxsize=4096)
def _upper_bound(events: int, trials: int, confidence: float) -> float:
    alpha = 1.0 - confidence
    low, high = events / trials, 1.0
    while high - low > 1e-15 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        # P(X <= events) falls as p grows; the bound is where it reaches alpha.
        if _regularized_beta(1.0 - middle, trials - events, events + 1) > alpha:
            low = middle
        else:
            high = middle
    return high


def _regularized_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), the regularized incomplete beta function, for positive a and b."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    front = math.exp(log_front)
    # The fraction converges fast only below the mean; the symmetry covers the other side.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(x, a, b) / a
    return 1.0 - front * _beta_fraction(1.0 - x, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function (DLMF 8.17.22, Lentz)."""
    d = _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    d = 1.0 / d
    c = 1.0
    result = d
    max_steps = 200 + int(20 * math.sqrt(max(a, b)))
    for step in range(1, max_steps):
        even = step * (b - step) * x / ((a + 2 * step - 1.0) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1.0))
        factor = 1.0
        for coefficient in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + coefficient * d)
            c = _away_from_zero(1.0 + coefficient / c)
            factor = d * c
            result *= factor
        if abs(factor - 1.0) < 1e-15:
            break
    return result


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
