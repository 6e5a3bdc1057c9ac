"""Calls to a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from compat_service.config import DEFAULT_LISTEN, parse_endpoint
from compat_service.errors import ConfigError, XverError

ADDRESS_HELP = "host:port of the service."
TIMEOUT_S = 10.0


@contextmanager
def connect(address: str) -> Iterator[grpc.Channel]:
    """Yield a channel; a failed call ends as an error with the server's own words.

    Raises:
        ConfigError: the address is malformed.
        XverError: the call failed.
    """
    try:
        endpoint = parse_endpoint(address)
    except ValueError as error:
        raise ConfigError(f"--address: {error}") from error
    # A proxy of the environment must not see, nor break, calls to this machine.
    with grpc.insecure_channel(str(endpoint), options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            raise XverError(_message(error, address)) from error


def _message(error: grpc.RpcError, address: str) -> str:
    status = rpc_status.from_call(error)
    code: grpc.StatusCode = error.code()
    if status is None and code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ):
        return (
            f"no service answers at {address} ({code.name}); start it with "
            f"'xver-compat serve --listen {DEFAULT_LISTEN}' or name another with --address"
        )
    if status is None:
        return f"{address} refused the call: {code.name}: {error.details()}"
    info = error_details_pb2.ErrorInfo()
    reason = ""
    for detail in status.details:
        if detail.Unpack(info):
            reason = f" ({info.reason})"
    return f"{status.message}{reason}"
