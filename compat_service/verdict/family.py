"""Rules of one task family: buckets of prefix lengths, the shallow end first.

A branch is cut from its deep end, so a bucket may be reused only when all shallower ones may. And
one branch is reused in one way only, because a mixture of kept and remapped KV was never measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

from compat_service.policy import Policy
from compat_service.verdict.evidence import StratumEvidence, Track
from compat_service.verdict.reasons import reason
from compat_service.verdict.stratum import StratumVerdict, judge_stratum

KEEP_TRACK = Track(common.ACTION_KEEP, "")


class Bucket(NamedTuple):
    """Prefix lengths (min_exclusive, max] in tokens with their verdict."""

    min_exclusive: int
    max: int
    verdict: StratumVerdict


class TrackVerdict(NamedTuple):
    """All buckets of one way of reuse."""

    track: Track
    mapper: common.MapperRef
    buckets: tuple[Bucket, ...]

    @property
    def depth(self) -> int:
        """Longest prefix in tokens that may be reused; 0 for none."""
        depth = 0
        for bucket in self.buckets:
            if bucket.verdict.confidence != common.CONFIDENCE_PASS:
                break
            depth = bucket.max
        return depth


def family_rules(
    task_family: str, strata: Sequence[StratumEvidence], policy: Policy
) -> list[compat.Rule]:
    """Return the rules of one family, ordered by length; the last one has no upper limit.

    Args:
        strata: all evidence of the family under the conditions in question.
    """
    if not strata:
        return [
            evict_rule(
                task_family,
                common.CONFIDENCE_NO_EVIDENCE,
                reason(
                    common.REASON_CODE_FAMILY_NOT_MEASURED,
                    f"task family {task_family!r} was not measured for this pair",
                ),
            )
        ]
    chosen = _choose_track([_judge_track(t, strata, policy) for t in _tracks(strata)])
    rules = _bucket_rules(task_family, chosen)
    longest = chosen.buckets[-1].max
    beyond = reason(
        common.REASON_CODE_BEYOND_MEASURED_PREFIX,
        f"longer than the longest measured prefix of {longest} tokens",
        metric="prefix_tokens",
        threshold=longest,
    )
    rules.append(evict_rule(task_family, common.CONFIDENCE_NO_EVIDENCE, beyond, longest))
    return rules


def evict_rule(
    task_family: str,
    confidence: common.Confidence,
    why: compat.Reason,
    min_exclusive: int = 0,
) -> compat.Rule:
    """Return a rule that evicts every prefix longer than ``min_exclusive`` tokens."""
    return compat.Rule(
        task_family=task_family,
        prefix_tokens_min_exclusive=min_exclusive,
        action=common.ACTION_EVICT,
        confidence=confidence,
        reasons=[why],
    )


def _tracks(strata: Sequence[StratumEvidence]) -> list[Track]:
    return sorted({s.track for s in strata}, key=lambda t: (t != KEEP_TRACK, t))


def _judge_track(track: Track, strata: Sequence[StratumEvidence], policy: Policy) -> TrackVerdict:
    own = _without_outranked([s for s in strata if s.track == track])
    buckets = []
    previous = 0
    for length in sorted({s.result.prefix_tokens_max for s in own}):
        members = [s for s in own if s.result.prefix_tokens_max == length]
        verdict = judge_stratum(members, policy, members[0].result.task_family)
        buckets.append(Bucket(previous, length, verdict))
        previous = length
    return TrackVerdict(track, own[0].result.mapper, tuple(buckets))


def _without_outranked(strata: Sequence[StratumEvidence]) -> list[StratumEvidence]:
    """Drop publications about lengths that were measured: a publication is no finer bucket."""
    measured = [s.result.prefix_tokens_max for s in strata if not s.is_published]
    longest = max(measured, default=0)
    return [s for s in strata if not s.is_published or s.result.prefix_tokens_max > longest]


def _choose_track(verdicts: Sequence[TrackVerdict]) -> TrackVerdict:
    # Ties go to the earlier track, and KEEP stands first: it costs nothing.
    return max(verdicts, key=lambda v: v.depth)


def _bucket_rules(task_family: str, chosen: TrackVerdict) -> list[compat.Rule]:
    rules = []
    failed: Bucket | None = None
    for bucket in chosen.buckets:
        reasons = list(bucket.verdict.reasons)
        passes = bucket.verdict.confidence == common.CONFIDENCE_PASS
        confidence = bucket.verdict.confidence
        if passes and failed is not None:
            passes, confidence = False, failed.verdict.confidence
            reasons.insert(0, _shallower_failed(failed))
        if failed is None and not passes:
            failed = bucket
        rules.append(
            compat.Rule(
                task_family=task_family,
                prefix_tokens_min_exclusive=bucket.min_exclusive,
                prefix_tokens_max=bucket.max,
                action=chosen.track.action if passes else common.ACTION_EVICT,
                confidence=confidence,
                reasons=reasons,
                mapper=chosen.mapper if passes and chosen.track != KEEP_TRACK else None,
            )
        )
    return rules


def _shallower_failed(failed: Bucket) -> compat.Reason:
    return reason(
        common.REASON_CODE_SHALLOWER_BUCKET_FAILED,
        f"the bucket up to {failed.max} tokens does not pass, and a branch is reused from its "
        "shallow end only",
        metric="prefix_tokens",
        threshold=failed.max,
    )
