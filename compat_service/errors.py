"""Errors of the service and their form on the wire.

Every error travels as ``google.rpc.Status`` with an ``ErrorInfo`` (domain and a stable reason) and,
for bad input, a ``BadRequest`` that names each field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as PackedAny
from google.rpc import error_details_pb2, status_pb2

ERROR_DOMAIN = "compat.xver"


class FieldViolation(NamedTuple):
    """One bad field of a request."""

    field: str
    """Path, for example ``run.strata[0].flips.harmful``."""
    reason: str
    """Stable name of the broken rule, for example ``OUT_OF_RANGE``."""
    description: str
    """Value, rule and remedy in one sentence."""


class XverError(Exception):
    """Root of the taxonomy. The message names the value, the rule and the remedy."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"

    def __init__(self, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.metadata: Mapping[str, str] = metadata

    def violations(self) -> Sequence[FieldViolation]:
        """Return the bad fields; empty unless the request itself is bad."""
        return ()


class ConfigError(XverError):
    """A setting is unknown, malformed or unsafe; the server does not start."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BAD_CONFIGURATION"


class SchemaError(XverError):
    """The database's schema is not the one that this version reads and writes."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SCHEMA_MISMATCH"


class InvalidRequestError(XverError):
    """A request breaks the contract; carries every violation that was found."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        shown = "; ".join(f"{v.field}: {v.description}" for v in violations[:5])
        hidden = len(violations) - 5
        super().__init__(shown + (f"; and {hidden} more" if hidden > 0 else ""))
        self._violations = tuple(violations)

    def violations(self) -> Sequence[FieldViolation]:
        """Return the bad fields in the order of the request."""
        return self._violations


class UnknownPolicyError(InvalidRequestError):
    """No policy has that name."""

    reason = "UNKNOWN_POLICY"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        text = f"{name[:80]!r} is not a policy; known are {', '.join(known)}"
        super().__init__([FieldViolation("policy", "UNKNOWN_POLICY", text)])


class RunNotFoundError(XverError):
    """No run has that identifier."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "RUN_NOT_FOUND"


class RequestIdReusedError(XverError):
    """The idempotency key was used before with other content."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "REQUEST_ID_REUSED"


class StoreUnavailableError(XverError):
    """The database could not be read or written; nothing was decided or stored."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "STORE_UNAVAILABLE"


def to_status(error: XverError) -> status_pb2.Status:
    """Return the error as a ``google.rpc.Status`` with its details."""
    info = error_details_pb2.ErrorInfo(
        reason=error.reason, domain=ERROR_DOMAIN, metadata=dict(error.metadata)
    )
    status = status_pb2.Status(code=error.code.value[0], message=str(error))
    status.details.append(_packed(info))
    violations = error.violations()
    if violations:
        bad_request = error_details_pb2.BadRequest()
        for violation in violations:
            bad_request.field_violations.add(
                field=violation.field,
                description=violation.description,
                reason=violation.reason,
            )
        status.details.append(_packed(bad_request))
    return status


def _packed(
    message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest,
) -> PackedAny:
    packed = PackedAny()
    packed.Pack(message)
    return packed
