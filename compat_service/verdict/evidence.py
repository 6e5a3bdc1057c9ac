"""Evidence as the verdict sees it: strata of runs, grouped and pooled.

Only what was measured under equal conditions is pooled. Every run counts: a bad run cannot be
hidden behind a good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.ids import engine_release


class Conditions(NamedTuple):
    """What must be equal for runs to be pooled and for an answer to apply to a server."""

    layout_digest: str
    engine_name: str
    engine_release: str
    """The major.minor part of the version."""


@dataclass(frozen=True)
class RunEvidence:
    """A recorded run of the pair in question."""

    run_id: str
    run: evidence.Run

    @property
    def conditions(self) -> Conditions:
        """Conditions under which the run was measured."""
        return conditions_of(self.run.layout, self.run.engine)

    @property
    def is_published(self) -> bool:
        """True for figures from a publication: they can object, never allow."""
        return self.run.provenance != evidence.PROVENANCE_MEASURED


class Track(NamedTuple):
    """One way to reuse KV: as it is (no mapper) or through one mapper."""

    action: common.Action
    mapper_sha256: str


@dataclass(frozen=True)
class StratumEvidence:
    """One stratum of one run."""

    run_id: str
    plan: evidence.SamplePlan | None
    is_published: bool
    result: evidence.StratumResult

    @property
    def track(self) -> Track:
        """The way of reuse that was measured."""
        return Track(self.result.action, self.result.mapper.sha256)

    @property
    def is_exploratory(self) -> bool:
        """True when no sample plan was fixed before the first item."""
        return self.plan is None


class FlipPool(NamedTuple):
    """Summed correctness counts, with those of the same runs' floor."""

    num_items: int
    reference_correct: int
    harmful: int
    beneficial: int
    floor_harmful: int
    floor_reference_correct: int


class DivergencePool(NamedTuple):
    """Divergence above its floor in nats: each figure is that of the worst run."""

    excess_mean: float
    excess_bound: float
    excess_p95: float
    floor_mean: float | None
    """Floor mean of the run with the worst bound; None when it has no floor."""
    floor_mean_max: float
    """Largest floor mean over all runs; 0 when none has a floor."""
    num_items: int
    """Items over all runs."""
    lower_bound_runs: tuple[str, ...]
    """Runs whose figures come from top-k log-probabilities."""
    remainder_mass: float | None
    """Largest unseen mass over those runs; None when one of them does not say."""


def conditions_of(layout: common.CacheLayout, engine: common.Engine) -> Conditions:
    """Return the conditions that a layout and an engine stand for."""
    return Conditions(layout.digest, engine.name, engine_release(engine.version))


def strata_of(runs: Iterable[RunEvidence]) -> list[StratumEvidence]:
    """Return the strata of the runs in their order."""
    return [
        StratumEvidence(
            run_id=run.run_id,
            plan=run.run.sample_plan if run.run.HasField("sample_plan") else None,
            is_published=run.is_published,
            result=result,
        )
        for run in runs
        for result in run.run.strata
    ]


def by_task(strata: Iterable[StratumEvidence]) -> list[list[StratumEvidence]]:
    """Group strata of one bucket by task and version: other questions are not pooled."""
    groups: dict[str, list[StratumEvidence]] = {}
    for stratum in strata:
        groups.setdefault(stratum.result.task, []).append(stratum)
    return [groups[task] for task in sorted(groups)]


def pool_flips(strata: Sequence[StratumEvidence]) -> FlipPool | None:
    """Sum the counts of all strata that have them; None when none has."""
    scored = [s.result for s in strata if s.result.HasField("flips")]
    if not scored:
        return None
    return FlipPool(
        num_items=sum(r.flips.num_items for r in scored),
        reference_correct=sum(r.flips.reference_correct for r in scored),
        harmful=sum(r.flips.harmful for r in scored),
        beneficial=sum(r.flips.beneficial for r in scored),
        floor_harmful=sum(r.floor_flips.harmful for r in scored),
        floor_reference_correct=sum(r.floor_flips.reference_correct for r in scored),
    )


def pool_divergence(strata: Sequence[StratumEvidence]) -> DivergencePool | None:
    """Take the worst run for each figure; None when no run has a divergence.

    Summaries cannot be pooled exactly, and an average would let a good run hide a bad one. A run
    without a floor is judged as if the floor were zero.
    """
    measured = [s for s in strata if s.result.HasField("divergence")]
    if not measured:
        return None
    worst = max(measured, key=lambda s: _excess_bound(s.result))
    lower_bounds = [
        s
        for s in measured
        if s.result.divergence.method == evidence.DIVERGENCE_METHOD_TOP_K_LOWER_BOUND
    ]
    return DivergencePool(
        excess_mean=max(
            s.result.divergence.mean - s.result.floor_divergence.mean for s in measured
        ),
        excess_bound=_excess_bound(worst.result),
        excess_p95=max(s.result.divergence.p95 - s.result.floor_divergence.p95 for s in measured),
        floor_mean=(
            worst.result.floor_divergence.mean
            if worst.result.HasField("floor_divergence")
            else None
        ),
        floor_mean_max=max(s.result.floor_divergence.mean for s in measured),
        num_items=sum(s.result.divergence.num_items for s in measured),
        lower_bound_runs=tuple(s.run_id for s in lower_bounds),
        remainder_mass=_largest_remainder(lower_bounds),
    )


def items_of(result: evidence.StratumResult) -> int:
    """Return the items that a stratum rests on: the larger of its two samples."""
    return max(result.flips.num_items, result.divergence.num_items)


def planned_sample_of(result: evidence.StratumResult) -> int:
    """Return the items that a sample plan counts: scored ones, else those with a divergence."""
    return result.flips.num_items if result.HasField("flips") else result.divergence.num_items


def _excess_bound(result: evidence.StratumResult) -> float:
    return result.divergence.mean_upper_bound - result.floor_divergence.mean


def _largest_remainder(strata: Sequence[StratumEvidence]) -> float | None:
    divergences = [s.result.divergence for s in strata]
    if not divergences or any(not d.HasField("remainder_mass") for d in divergences):
        return None
    return max(d.remainder_mass for d in divergences)
