"""Checks of what a run measured in one stratum."""

from __future__ import annotations

from itertools import pairwise

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.validation.fields import (
    MAX_COUNT,
    MAX_DIGEST_CHARS,
    MAX_NAME_CHARS,
    Violations,
)

_PERCENTILES = ("median", "p95", "p99", "max")
_REUSE_ACTIONS = (common.ACTION_KEEP, common.ACTION_REMAP)


def check_stratum(found: Violations, path: str, stratum: evidence.StratumResult) -> None:
    """Check one stratum."""
    found.family(f"{path}.task_family", stratum.task_family)
    if found.require(f"{path}.task", stratum.task, "name task and version, for example niah@1"):
        found.text(f"{path}.task", stratum.task, MAX_NAME_CHARS)
    _check_prefix(found, path, stratum)
    _check_action(found, path, stratum)
    if not stratum.HasField("flips") and not stratum.HasField("divergence"):
        found.add(path, "REQUIRED", "has neither flips nor divergence; give at least one of them")
    for name in ("flips", "floor_flips"):
        if stratum.HasField(name):
            _check_flips(found, f"{path}.{name}", getattr(stratum, name))
    for name in ("divergence", "floor_divergence"):
        if stratum.HasField(name):
            _check_divergence(found, f"{path}.{name}", getattr(stratum, name))
    if stratum.HasField("agreement"):
        _check_agreement(found, f"{path}.agreement", stratum.agreement)
    if stratum.HasField("ttft"):
        _check_ttft(found, f"{path}.ttft", stratum.ttft)
    _check_item_counts(found, path, stratum)


def _check_prefix(found: Violations, path: str, stratum: evidence.StratumResult) -> None:
    found.count(
        f"{path}.prefix_tokens_max",
        stratum.prefix_tokens_max,
        1,
        MAX_COUNT,
        "it is the longest measured prefix in tokens",
    )
    low = stratum.prefix_tokens_min
    if found.count(f"{path}.prefix_tokens_min", low, 0, MAX_COUNT, "a length is 0 or more"):
        found.ordered(
            f"{path}.prefix_tokens_min", low, "prefix_tokens_max", stratum.prefix_tokens_max
        )


def _check_action(found: Violations, path: str, stratum: evidence.StratumResult) -> None:
    if stratum.action not in _REUSE_ACTIONS:
        found.add(
            f"{path}.action",
            "BAD_VALUE",
            f"{stratum.action} is not a way of reuse; give ACTION_KEEP (arm R) or ACTION_REMAP "
            "(arm M)",
        )
    mapper = stratum.mapper.sha256
    found.text(f"{path}.mapper.sha256", mapper, MAX_DIGEST_CHARS)
    found.text(f"{path}.mapper.name", stratum.mapper.name, MAX_NAME_CHARS)
    if stratum.action == common.ACTION_REMAP:
        found.require(f"{path}.mapper.sha256", mapper, "ACTION_REMAP needs the mapper's digest")
    elif mapper:
        found.add(
            f"{path}.mapper.sha256",
            "BAD_VALUE",
            "a mapper stands with ACTION_REMAP only; clear it or change the action",
        )


def _check_flips(found: Violations, path: str, flips: evidence.FlipCounts) -> None:
    total = flips.num_items
    if not found.count(f"{path}.num_items", total, 1, MAX_COUNT, "leave flips unset for no items"):
        return
    correct = flips.reference_correct
    if not found.count(
        f"{path}.reference_correct",
        correct,
        0,
        total,
        f"at most num_items {total} can be correct",
    ):
        return
    found.count(
        f"{path}.harmful",
        flips.harmful,
        0,
        correct,
        f"only the reference_correct {correct} items can be harmed",
    )
    found.count(
        f"{path}.beneficial",
        flips.beneficial,
        0,
        total - correct,
        f"only the {total - correct} items that the reference got wrong can be repaired",
    )


def _check_divergence(found: Violations, path: str, summary: evidence.DivergenceSummary) -> None:
    known = (
        evidence.DIVERGENCE_METHOD_FULL_VOCABULARY,
        evidence.DIVERGENCE_METHOD_TOP_K_LOWER_BOUND,
    )
    if summary.method not in known:
        found.add(
            f"{path}.method",
            "BAD_VALUE",
            f"{summary.method} does not say how it was computed; give "
            "DIVERGENCE_METHOD_FULL_VOCABULARY or DIVERGENCE_METHOD_TOP_K_LOWER_BOUND",
        )
    for name in ("num_items", "positions_per_item"):
        found.count(f"{path}.{name}", getattr(summary, name), 1, MAX_COUNT, "it must be counted")
    for name in ("mean", "mean_upper_bound", *_PERCENTILES, "first_position_mean"):
        found.non_negative(f"{path}.{name}", getattr(summary, name), "nats")
    found.ordered(f"{path}.mean", summary.mean, "mean_upper_bound", summary.mean_upper_bound)
    found.ordered(f"{path}.mean", summary.mean, "max", summary.max)
    for lower, upper in pairwise(_PERCENTILES):
        found.ordered(f"{path}.{lower}", getattr(summary, lower), upper, getattr(summary, upper))
    if summary.HasField("remainder_mass"):
        found.share(f"{path}.remainder_mass", summary.remainder_mass)


def _check_agreement(found: Violations, path: str, agreement: evidence.AgreementSummary) -> None:
    for name in ("total_variation", "top1_agreement", "top10_overlap"):
        found.share(f"{path}.{name}", getattr(agreement, name))
    found.non_negative(f"{path}.jensen_shannon", agreement.jensen_shannon, "nats")


def _check_ttft(found: Violations, path: str, ttft: evidence.TtftSummary) -> None:
    for name in ("ratio_lower", "ratio_median", "ratio_upper"):
        found.non_negative(f"{path}.{name}", getattr(ttft, name), "(a ratio)")
    found.ordered(f"{path}.ratio_lower", ttft.ratio_lower, "ratio_median", ttft.ratio_median)
    found.ordered(f"{path}.ratio_median", ttft.ratio_median, "ratio_upper", ttft.ratio_upper)
    found.count(f"{path}.num_pairs", ttft.num_pairs, 1, MAX_COUNT, "a ratio needs pairs")


def _check_item_counts(found: Violations, path: str, stratum: evidence.StratumResult) -> None:
    items = max(stratum.flips.num_items, stratum.divergence.num_items, 0)
    rule = f"the stratum has {items} items"
    found.count(f"{path}.num_documents", stratum.num_documents, 0, items, rule)
    for name in ("reference_mismatches", "stop_mismatches", "source_correct"):
        if stratum.HasField(name):
            found.count(f"{path}.{name}", getattr(stratum, name), 0, items, rule)
