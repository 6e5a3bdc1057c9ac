"""Synchronous client: one deadline per call, retries only where they are safe."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat
from xver.compat.v1 import compat_pb2_grpc, evidence_pb2_grpc
from xver.compat.v1 import evidence_pb2 as evidence

from sglang_xver.client.answer import CompatAnswer, RecordedRun, answer_from_message
from sglang_xver.client.status import error_from_call
from sglang_xver.errors import ServiceUnavailableError

DEFAULT_TIMEOUT_S = 2.0
_RETRY_PAUSES_S = (0.05, 0.2)
_LAST_ATTEMPT_S = float("inf")
_MAX_MESSAGE_BYTES = 64 * 1024**2
_CHANNEL_OPTIONS = (
    # A proxy of the environment must not see, nor break, calls inside a cluster.
    ("grpc.enable_http_proxy", 0),
    # A service that comes back is found again within half a second, not after minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Clients of one process do not share the back-off of a failed connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
)
Request = TypeVar("Request")
Response = TypeVar("Response")


class CompatClient:
    """Client of one service. Safe to share between threads.

    The channel is opened by the first call, and anew in a forked child, so an instance may be made
    before the process forks. Every method raises ``ServiceUnavailableError`` when no answer comes
    within the deadline and ``CallRefusedError`` (a ``ServiceError``) when the service refuses.
    """

    def __init__(self, target: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Prepare a client; nothing is connected yet.

        Args:
            target: ``host:port`` of the service.
            timeout_s: deadline of calls that name none, in seconds, retries included.
        """
        self._target = target
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._channel_pid = 0

    def check_compat(
        self,
        source: common.ModelVersion,
        target: common.ModelVersion,
        *,
        layout: common.CacheLayout,
        engine: common.Engine,
        target_layout: common.CacheLayout | None = None,
        task_families: Sequence[str] = (),
        policy: str = "",
        client_name: str = "",
        timeout_s: float | None = None,
    ) -> CompatAnswer:
        """Ask whether KV that ``source`` wrote may be read by ``target``.

        Args:
            layout: layout of this server's cache; its digest is required.
            engine: this engine; name and version are required.
            target_layout: layout that the target needs; None means the same.
            task_families: families to judge; empty means all with evidence.
            policy: policy by name; empty means the service's default.
            client_name: name of the asking server, for the audit trail.
        """
        request = compat.CheckCompatRequest(
            source=source,
            target=target,
            source_layout=layout,
            target_layout=target_layout,
            engine=engine,
            task_families=task_families,
            policy=policy,
            client=client_name,
        )
        # A repetition stores a second decision with the same content: harmless.
        response: compat.CheckCompatResponse = self._call(
            lambda channel: compat_pb2_grpc.CompatServiceStub(channel).CheckCompat,
            request,
            "CheckCompat",
            timeout_s,
        )
        return answer_from_message(response)

    def record_run(
        self,
        run: evidence.Run,
        *,
        request_id: str = "",
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> RecordedRun:
        """Store a run once.

        Args:
            run: the run; ``run_id``, ``recorded_at`` and ``evidence_revision`` unset.
            request_id: idempotency key; empty makes a new one, which covers the retries inside
                this call only.
            validate_only: check the run, store nothing.
        """
        request = evidence.RecordRunRequest(
            request_id=request_id or uuid.uuid4().hex, run=run, validate_only=validate_only
        )
        response: evidence.RecordRunResponse = self._call(
            lambda channel: evidence_pb2_grpc.EvidenceServiceStub(channel).RecordRun,
            request,
            "RecordRun",
            timeout_s,
        )
        return RecordedRun(response.run_id, response.evidence_revision, response.already_recorded)

    def get_run(self, run_id: str, *, timeout_s: float | None = None) -> evidence.Run:
        """Return a recorded run."""
        response: evidence.GetRunResponse = self._call(
            lambda channel: evidence_pb2_grpc.EvidenceServiceStub(channel).GetRun,
            evidence.GetRunRequest(run_id=run_id),
            "GetRun",
            timeout_s,
        )
        return response.run

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the service accepts connections. For start-up scripts, not for serving.

        Raises:
            ServiceUnavailableError: it does not within ``timeout_s``.
        """
        try:
            grpc.channel_ready_future(self._open_channel()).result(timeout=timeout_s)
        except grpc.FutureTimeoutError as error:
            raise ServiceUnavailableError(
                f"no service accepted a connection at {self._target} within {timeout_s:g} s; "
                "start it with 'xver-compat serve'"
            ) from error

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        with self._lock:
            if self._channel is not None and self._channel_pid == os.getpid():
                self._channel.close()
            self._channel = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_channel(self) -> grpc.Channel:
        with self._lock:
            # A channel does not survive a fork: its threads stay in the parent.
            if self._channel is None or self._channel_pid != os.getpid():
                self._channel = grpc.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
                self._channel_pid = os.getpid()
            return self._channel

    def _call(
        self,
        method_of: Callable[[grpc.Channel], Callable[..., Response]],
        request: Request,
        name: str,
        timeout_s: float | None,
    ) -> Response:
        """Call an idempotent method, repeating UNAVAILABLE while the deadline allows it."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        method = method_of(self._open_channel())
        for pause_s in (*_RETRY_PAUSES_S, _LAST_ATTEMPT_S):
            try:
                return method(request, timeout=max(deadline - time.monotonic(), 0.001))
            except grpc.RpcError as error:
                out_of_time = time.monotonic() + pause_s >= deadline
                if error.code() != grpc.StatusCode.UNAVAILABLE or out_of_time:
                    raise error_from_call(error, name, self._target) from error
                time.sleep(pause_s)
            except ValueError as error:
                # grpc raises it for a channel that another thread closed.
                raise ServiceUnavailableError(f"{name} at {self._target}: {error}") from error
        raise AssertionError("the last attempt returns or raises")
