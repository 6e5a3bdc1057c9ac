"""EvidenceService: stores runs and returns them."""

from __future__ import annotations

import hashlib
import logging

import grpc
from xver.compat.v1 import evidence_pb2 as evidence
from xver.compat.v1 import evidence_pb2_grpc

from compat_service.services.page_token import decode_page_token, encode_page_token
from compat_service.services.rpc import rpc
from compat_service.store import Database, PairSummary, Repository, list_pairs
from compat_service.validation import (
    validate_get_run,
    validate_list_pairs,
    validate_record_run,
)

log = logging.getLogger(__name__)
DEFAULT_PAGE_SIZE = 50


class EvidenceServicer(evidence_pb2_grpc.EvidenceServiceServicer):
    """Serves RecordRun, GetRun and ListPairs."""

    def __init__(self, repository: Repository, database: Database) -> None:
        self._repository = repository
        self._database = database

    @rpc
    def RecordRun(
        self,
        request: evidence.RecordRunRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - part of every method's signature
    ) -> evidence.RecordRunResponse:
        """Store one run; when this returns, it is on disk."""
        validate_record_run(request)
        content_sha256 = hashlib.sha256(
            request.run.SerializeToString(deterministic=True)
        ).hexdigest()
        if request.validate_only:
            known = self._repository.find_request(request.request_id, content_sha256)
            return evidence.RecordRunResponse(
                evidence_revision=self._repository.evidence_revision(),
                already_recorded=known is not None,
            )
        stored = self._repository.record_run(request.request_id, request.run, content_sha256)
        log.info(
            "run %s: %d strata, %s -> %s, evidence revision %d%s",
            stored.run_id,
            len(request.run.strata),
            request.run.source.fingerprint,
            request.run.target.fingerprint,
            stored.evidence_revision,
            " (already recorded)" if stored.already_recorded else "",
        )
        return evidence.RecordRunResponse(
            run_id=stored.run_id,
            evidence_revision=stored.evidence_revision,
            already_recorded=stored.already_recorded,
        )

    @rpc
    def GetRun(
        self,
        request: evidence.GetRunRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - part of every method's signature
    ) -> evidence.GetRunResponse:
        """Return one run."""
        validate_get_run(request)
        return evidence.GetRunResponse(run=self._repository.get_run(request.run_id))

    @rpc
    def ListPairs(
        self,
        request: evidence.ListPairsRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - part of every method's signature
    ) -> evidence.ListPairsResponse:
        """List pairs, newest evidence first."""
        validate_list_pairs(request)
        filters = (request.source_fingerprint, request.target_fingerprint)
        page_size = request.page_size or DEFAULT_PAGE_SIZE
        before = decode_page_token(request.page_token, filters) if request.page_token else None
        # One more than asked for tells whether another page follows.
        found = list_pairs(
            self._database,
            limit=page_size + 1,
            before_revision=before,
            source_fingerprint=request.source_fingerprint,
            target_fingerprint=request.target_fingerprint,
        )
        page = found[:page_size]
        response = evidence.ListPairsResponse(pairs=[_pair(summary) for summary in page])
        if len(found) > page_size:
            response.next_page_token = encode_page_token(page[-1].newest_revision, filters)
        return response


def _pair(summary: PairSummary) -> evidence.Pair:
    return evidence.Pair(
        source=summary.newest_run.source,
        target=summary.newest_run.target,
        num_runs=summary.num_runs,
        task_families=summary.task_families,
        prefix_tokens_max=summary.prefix_tokens_max,
        last_recorded_at=summary.newest_run.recorded_at,
        conditions=[
            evidence.RunConditions(
                layout=conditions.newest_run.layout,
                engine=conditions.newest_run.engine,
                num_runs=conditions.num_runs,
            )
            for conditions in summary.conditions
        ],
    )
