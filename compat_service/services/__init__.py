"""gRPC services: they translate between messages and the pure parts, and hold no rules."""

from __future__ import annotations

from compat_service.services.servicer_compat import CompatServicer
from compat_service.services.servicer_evidence import EvidenceServicer

__all__ = ["CompatServicer", "EvidenceServicer"]
