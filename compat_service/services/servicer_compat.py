"""CompatService: answers whether old KV may be reused, and stores each answer."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import grpc
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat
from xver.compat.v1 import compat_pb2_grpc

from compat_service import policy as policies
from compat_service.ids import new_decision_id
from compat_service.services.rpc import rpc
from compat_service.store import DecisionRecord, Repository
from compat_service.validation import validate_check
from compat_service.verdict import PairQuestion, RunEvidence, judge_pair

log = logging.getLogger(__name__)


class CompatServicer(compat_pb2_grpc.CompatServiceServicer):
    """Serves CheckCompat."""

    def __init__(self, repository: Repository, default_policy: str, answer_ttl_s: int) -> None:
        self._repository = repository
        self._default_policy = default_policy
        self._answer_ttl_s = answer_ttl_s

    @rpc
    def CheckCompat(
        self,
        request: compat.CheckCompatRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - part of every method's signature
    ) -> compat.CheckCompatResponse:
        """Answer with the whole plan of one pair.

        An answer that could not be stored is not given: the client evicts, and no reuse happens
        that the audit trail does not know.
        """
        validate_check(request)
        policy = policies.resolve(request.policy or self._default_policy)
        recorded = self._repository.pair_evidence(
            request.source.fingerprint, request.target.fingerprint
        )
        verdict = judge_pair(
            _question(request), [RunEvidence(run.run_id, run) for run in recorded.runs], policy
        )
        decided_at = datetime.now(UTC)
        response = compat.CheckCompatResponse(
            decision_id=new_decision_id(),
            rules=verdict.rules,
            action=verdict.action,
            confidence=verdict.confidence,
            reasons=verdict.reasons,
            policy=policy.name,
            policy_revision=policy.revision,
            evidence_revision=recorded.evidence_revision,
        )
        response.ttl.FromSeconds(self._answer_ttl_s)
        response.decided_at.FromDatetime(decided_at)
        self._repository.store_decision(_record(request, response, policy, decided_at))
        _log_decision(request, response)
        return response


def _question(request: compat.CheckCompatRequest) -> PairQuestion:
    has_target_layout = request.HasField("target_layout")
    return PairQuestion(
        source=request.source,
        target=request.target,
        source_layout=request.source_layout,
        target_layout=request.target_layout if has_target_layout else request.source_layout,
        engine=request.engine,
        task_families=tuple(request.task_families),
    )


def _record(
    request: compat.CheckCompatRequest,
    response: compat.CheckCompatResponse,
    policy: policies.Policy,
    decided_at: datetime,
) -> DecisionRecord:
    return DecisionRecord(
        decision_id=response.decision_id,
        decided_at=decided_at,
        source_fingerprint=request.source.fingerprint,
        target_fingerprint=request.target.fingerprint,
        client=request.client,
        action=response.action,
        confidence=response.confidence,
        policy=policy.name,
        policy_revision=policy.revision,
        policy_content=policy.model_dump_json(),
        evidence_revision=response.evidence_revision,
        request=request.SerializeToString(deterministic=True),
        response=response.SerializeToString(deterministic=True),
    )


def _log_decision(request: compat.CheckCompatRequest, response: compat.CheckCompatResponse) -> None:
    log.info(
        "decision %s: %s (%s) %s -> %s for %s under policy %s: %s",
        response.decision_id,
        common.Action.Name(response.action),
        common.Confidence.Name(response.confidence),
        request.source.fingerprint or "(none)",
        request.target.fingerprint or "(none)",
        request.client or "(unnamed client)",
        response.policy,
        "; ".join(reason.message for reason in response.reasons),
    )
