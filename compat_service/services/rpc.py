"""The boundary of every call: errors of this project become a status with details."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, TypeVar

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from compat_service.errors import ERROR_DOMAIN, XverError, to_status

log = logging.getLogger(__name__)
Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Response = TypeVar("Response")
Handler = Callable[[Servicer, Request, grpc.ServicerContext], Response]


def rpc(handler: Handler[Servicer, Request, Response]) -> Handler[Servicer, Request, Response]:
    """Wrap a unary method so that it answers errors as ``google.rpc.Status``.

    Unexpected exceptions are logged with an incident id; the client sees the id only.
    """

    @wraps(handler)
    def guarded(servicer: Servicer, request: Request, context: grpc.ServicerContext) -> Response:
        try:
            return handler(servicer, request, context)
        except XverError as error:
            log.info("%s refused: %s: %s", handler.__qualname__, error.reason, error)
            status = to_status(error)
        except Exception as error:  # noqa: BLE001 - the last barrier: a bug must not leak its text
            status = _internal(handler.__qualname__, error)
        _abort(context, status)

    return guarded


def _internal(method: str, error: Exception) -> status_pb2.Status:
    incident = secrets.token_hex(8)
    log.error("%s failed, incident %s", method, incident, exc_info=error)
    status = status_pb2.Status(
        code=code_pb2.INTERNAL,
        message=f"internal error, incident {incident}; the server's log has the details",
    )
    info = error_details_pb2.ErrorInfo(
        reason="INTERNAL", domain=ERROR_DOMAIN, metadata={"incident": incident}
    )
    status.details.add().Pack(info)
    return status


def _abort(context: grpc.ServicerContext, status: status_pb2.Status) -> NoReturn:
    context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status always raises")
