"""Reasons: one place that builds them and words their figures."""

from __future__ import annotations

from collections.abc import Iterable

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

# From the weakest support to the strongest objection. The worst of several findings decides, and
# a violation outranks missing data: harm that was seen stays visible.
_SEVERITY = (
    common.CONFIDENCE_PASS,
    common.CONFIDENCE_NO_EVIDENCE,
    common.CONFIDENCE_INCONCLUSIVE,
    common.CONFIDENCE_MARGINAL,
    common.CONFIDENCE_FAIL,
)


def worst(confidences: Iterable[common.Confidence]) -> common.Confidence:
    """Return the confidence that decides among several; NO_EVIDENCE when there is none."""
    return max(confidences, key=_SEVERITY.index, default=common.CONFIDENCE_NO_EVIDENCE)


def reason(
    code: common.ReasonCode,
    message: str,
    *,
    metric: str = "",
    value: float | None = None,
    bound: float | None = None,
    threshold: float | None = None,
    num_items: int = 0,
    run_ids: Iterable[str] = (),
) -> compat.Reason:
    """Return a reason; figures that do not exist stay unset."""
    return compat.Reason(
        code=code,
        metric=metric,
        value=value,
        bound=bound,
        threshold=threshold,
        num_items=num_items,
        run_ids=sorted(set(run_ids)),
        message=message,
    )


def percent(share: float) -> str:
    """Return a share as percent with three significant digits, for example ``34.1 %``."""
    return f"{share * 100:.3g} %"


def nats(value: float) -> str:
    """Return a divergence with its unit."""
    return f"{value:.3g} nats"
