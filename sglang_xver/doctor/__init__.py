"""Checks for a person, before a rollout: installation, configuration, service, models, a server.

Needs neither torch nor SGLang; what they are needed for is skipped where they are not installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_xver.doctor.findings import Finding, Status, run_check
from sglang_xver.doctor.installation import check_installation
from sglang_xver.doctor.models import check_models
from sglang_xver.doctor.server import check_server
from sglang_xver.doctor.service import check_config, check_service

__all__ = ["DoctorRequest", "Finding", "Status", "diagnose", "run_check"]


@dataclass(frozen=True)
class DoctorRequest:
    """What to look at; None and empty leave a check out or take the configuration's value."""

    config: Path | None = None
    service: str | None = None
    models: tuple[Path, ...] = ()
    server: str | None = None


def diagnose(request: DoctorRequest) -> list[Finding]:
    """Run every check. A check that breaks is a failed finding, never an exception."""
    findings = check_installation()
    config_findings, config = check_config(request.config)
    return [
        *findings,
        *config_findings,
        *check_service(request.service or config.service, config.timeout_ms / 1000),
        *check_models(request.models, config.full_hash_limit_bytes),
        *check_server(request.server),
    ]
