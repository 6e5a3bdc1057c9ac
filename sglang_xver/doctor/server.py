"""Whether a running server uses the backend, and how it fares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from sglang_xver.doctor.findings import Finding, run_check

_TIMEOUT_S = 10.0


def check_server(url: str | None) -> list[Finding]:
    """Read ``/server_info`` of the server at ``url``; skipped for None."""
    if url is None:
        return [Finding("server", "skipped", "no --server was given")]
    return run_check("server", lambda: _server(url))


def _server(url: str) -> Iterator[Finding]:
    try:
        reply = httpx.get(f"{url.rstrip('/')}/server_info", timeout=_TIMEOUT_S)
        reply.raise_for_status()
        states = reply.json().get("internal_states") or [{}]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        remedy = "Give the address of a running SGLang server, for example http://127.0.0.1:30000."
        yield Finding("server", "fail", f"{url}/server_info: {error}", remedy)
        return
    for state in states:
        yield _state(url, state.get("xver"))


def _state(url: str, block: Mapping[str, Any] | None) -> Finding:
    if block is None:
        remedy = "Start the server with --radix-cache-backend xver."
        return Finding("server", "fail", f"{url} runs without the backend", remedy)
    detail = f"{url}: mode {block['mode']}, current epoch {block['current_epoch']}"
    failures = block["failures"]
    if failures:
        counted = ", ".join(f"{kind}: {count}" for kind, count in sorted(failures.items()))
        remedy = "Each was answered by eviction; the server's log has the cause."
        return Finding("server", "warn", f"{detail}; failures: {counted}", remedy)
    if block["layout"] is None:
        remedy = "Serve a local folder of safetensors; until then every update evicts."
        return Finding("server", "warn", f"{detail}; the cache's layout is unknown", remedy)
    return Finding("server", "ok", f"{detail}, no failures")
