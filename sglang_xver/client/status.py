"""Failed calls as errors of this project."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from sglang_xver.errors import ServiceError, ServiceUnavailableError

_OUT_OF_REACH = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class CallRefusedError(ServiceError):
    """The service answered with an error that a repetition would meet again."""

    def __init__(
        self, message: str, code: str, reason: str, violations: tuple[tuple[str, str], ...]
    ) -> None:
        super().__init__(message)
        self.code = code
        """gRPC status, for example ``INVALID_ARGUMENT``."""
        self.reason = reason
        """Stable reason of the service, for example ``INVALID_FIELD``; empty when it gave none."""
        self.violations = violations
        """Pairs of field path and description."""


def error_from_call(error: grpc.RpcError, method: str, target: str) -> ServiceError:
    """Return the error that stands for a failed call."""
    code, details = error.code(), error.details()
    if code in _OUT_OF_REACH:
        return ServiceUnavailableError(
            f"{method} at {target}: {code.name} ({details}); is 'xver-compat serve' running there?"
        )
    reason, violations = _read_details(error)
    return CallRefusedError(
        f"{method} at {target} refused: {code.name} {reason}: {details}",
        code.name,
        reason,
        violations,
    )


def _read_details(error: grpc.RpcError) -> tuple[str, tuple[tuple[str, str], ...]]:
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        # Details that contradict the status carry no information.
        return "", ()
    reason = ""
    violations: list[tuple[str, str]] = []
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad_request):
            violations.extend((v.field, v.description) for v in bad_request.field_violations)
    return reason, tuple(violations)
