"""A service that answers ``CheckCompat`` in every wrong way that a real one could."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat

KEEP = compat.CheckCompatResponse(
    decision_id="dec_good",
    action=common.ACTION_KEEP,
    confidence=common.CONFIDENCE_PASS,
    rules=[
        compat.Rule(
            task_family="*",
            prefix_tokens_max=4096,
            action=common.ACTION_KEEP,
            confidence=common.CONFIDENCE_PASS,
        )
    ],
)


def _with_rule(**fields: Any) -> compat.CheckCompatResponse:
    answer = compat.CheckCompatResponse()
    answer.CopyFrom(KEEP)
    for name, value in fields.items():
        setattr(answer.rules[0], name, value)
    return answer


_ANSWERS: dict[str, bytes] = {
    "keep": KEEP.SerializeToString(),
    "no_answer": b"",
    "garbage": b"\xff\xff\xff\xff garbage \x00",
    "cut_short": KEEP.SerializeToString()[:-3],
    "unknown_action": _with_rule(action=99).SerializeToString(),
    "no_action": _with_rule(action=0).SerializeToString(),
    "no_confidence": _with_rule(confidence=0).SerializeToString(),
    "keep_though_failed": _with_rule(confidence=common.CONFIDENCE_FAIL).SerializeToString(),
    "remap_without_mapper": _with_rule(action=common.ACTION_REMAP).SerializeToString(),
    "another_family": _with_rule(task_family="another").SerializeToString(),
    "gap_at_the_start": _with_rule(prefix_tokens_min_exclusive=1).SerializeToString(),
    "negative_range": _with_rule(prefix_tokens_max=-1).SerializeToString(),
}
_STATUSES = {
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "invalid_argument": grpc.StatusCode.INVALID_ARGUMENT,
    "internal": grpc.StatusCode.INTERNAL,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
}
HANGS = "hangs"
WRONG_WAYS = (*(name for name in _ANSWERS if name != "keep"), *_STATUSES, HANGS)


class FaultyService:
    """Listens on loopback and answers as ``mode`` says; ``calls`` counts the questions."""

    def __init__(self) -> None:
        self.mode = "keep"
        self.calls = 0
        self._release = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(self._answer)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "xver.compat.v1.CompatService", {"CheckCompat": handler}
                ),
            )
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        if self.mode == HANGS:
            self._release.wait(60)
            return b""
        if self.mode in _STATUSES:
            context.abort(_STATUSES[self.mode], "injected")
        return _ANSWERS[self.mode]

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release.set()
        self._server.stop(None).wait()
