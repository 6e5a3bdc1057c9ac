"""What must be true at the end; everything else is a failure with a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from examples.demo.documents import PREFIX_TOKENS
from examples.demo.walk import WARM_LIMIT_RATIO, StepResult

MIN_SPEEDUP_RATIO = 3.0
EXPECTED: Mapping[str, tuple[str, frozenset[str]]] = {
    "mild": ("KEEP", frozenset({"ALL_CRITERIA_PASS"})),
    "strong": (
        "EVICT",
        frozenset({"HFR_TOO_HIGH", "HFR_BOUND_TOO_HIGH", "FCD_TOO_HIGH", "FCD_BOUND_TOO_HIGH"}),
    ),
    "unknown": ("EVICT", frozenset({"NO_EVIDENCE"})),
    "mild, service down": ("EVICT", frozenset({"SERVICE_UNAVAILABLE"})),
}


def failures_of_step(step: StepResult) -> list[str]:
    """Compare one step's verdict, reason and cache hits with what was promised."""
    verdict, reasons = EXPECTED[step.name]
    found = []
    if step.verdict != verdict or step.reason not in reasons:
        found.append(
            f"{step.name}: {step.verdict} with {step.reason}, "
            f"expected {verdict} with {' or '.join(sorted(reasons))}"
        )
    if verdict == "KEEP" and not step.after.has_hits_of(PREFIX_TOKENS):
        found.append(f"{step.name}: only {min(step.after.cached_tokens)} tokens were still cached")
    if verdict == "EVICT" and (step.kept_tokens or max(step.after.cached_tokens)):
        found.append(
            f"{step.name}: {step.kept_tokens} tokens kept and {max(step.after.cached_tokens)} "
            "reused after an eviction, expected none"
        )
    return found


def failures_of_timing(stock: StepResult, mild: StepResult) -> list[str]:
    """Compare the kept cache with the warm one of the same run and with stock SGLang's flush."""
    found = []
    if stock.after.has_hits_of(1):
        found.append("stock SGLang: tokens were still cached after its flush, expected none")
    if mild.after_to_warm_ratio > WARM_LIMIT_RATIO:
        found.append(
            f"mild: TTFT after the reload is {mild.after_to_warm_ratio:.2f} x warm in "
            f"{mild.timings} timings, limit {WARM_LIMIT_RATIO}"
        )
    speedup = stock.after.median_ms / mild.after.median_ms
    if speedup < MIN_SPEEDUP_RATIO:
        found.append(
            f"mild: TTFT after the reload is {speedup:.2f} x faster than after stock SGLang's "
            f"flush, expected {MIN_SPEEDUP_RATIO} or more"
        )
    return found
