"""Whether the configuration can be read and the compatibility service answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from xver.compat.v1 import evidence_pb2 as evidence
from xver.compat.v1 import evidence_pb2_grpc

from sglang_xver.client.status import error_from_call
from sglang_xver.config import CONFIG_PATH_VARIABLE, XverConfig, load_config
from sglang_xver.doctor.findings import Finding, run_check

_MOST_PAIRS = 500


def check_config(path: Path | None) -> tuple[list[Finding], XverConfig]:
    """Check the configuration at ``path`` and return it, or the defaults if it can't be read."""
    read: list[XverConfig] = []

    def judge() -> Iterator[Finding]:
        read.append(load_config())
        yield _describe(read[0])

    with _config_path(path):
        findings = run_check("config", judge)
    return findings, read[0] if read else XverConfig.model_construct()


@contextmanager
def _config_path(path: Path | None) -> Iterator[None]:
    """Let the configuration be read from ``path``, as if the environment named it."""
    before = os.environ.get(CONFIG_PATH_VARIABLE)
    if path is not None:
        os.environ[CONFIG_PATH_VARIABLE] = str(path)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CONFIG_PATH_VARIABLE, None)
        else:
            os.environ[CONFIG_PATH_VARIABLE] = before


def _describe(config: XverConfig) -> Finding:
    source = os.environ.get(CONFIG_PATH_VARIABLE) or "environment and defaults"
    families = ", ".join(config.task_families) or "none"
    detail = f"{source}: mode {config.mode}, task families: {families}"
    if config.mode == "on" and not config.task_families:
        remedy = "Set task_families, or every update evicts (NO_TASK_FAMILY)."
        return Finding("config", "warn", detail, remedy)
    return Finding("config", "ok", detail)


def check_service(target: str, timeout_s: float) -> list[Finding]:
    """Ask the service at ``target`` for what it knows; stores nothing there."""
    return run_check("service", lambda: _service(target, timeout_s))


def _service(target: str, timeout_s: float) -> Iterator[Finding]:
    # A proxy of the environment must not see calls inside a cluster.
    with grpc.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = evidence_pb2_grpc.EvidenceServiceStub(channel)
        # A listing needs the service and its database both.
        request = evidence.ListPairsRequest(page_size=_MOST_PAIRS)
        try:
            listing: evidence.ListPairsResponse = stub.ListPairs(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_call(error, "ListPairs", target) from error
    count = f"{len(listing.pairs)}{' or more' if listing.next_page_token else ''}"
    detail = f"{target} answers; pairs of versions with evidence: {count}"
    if listing.pairs:
        yield Finding("service", "ok", detail)
    else:
        remedy = "Calibrate a pair and record the run; without evidence every update evicts."
        yield Finding("service", "warn", detail, remedy)
