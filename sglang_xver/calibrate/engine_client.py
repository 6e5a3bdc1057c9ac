"""Typed HTTP client of one running SGLang server."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import numpy as np

from sglang_xver.calibrate.engine_types import (
    Generation,
    Scores,
    ServerInfo,
    TopLogprobs,
    TtftSample,
    UpdateReply,
)
from sglang_xver.calibrate.errors import CalibrationError, EngineRequestError
from sglang_xver.report import parse_message

_POLL_S = 0.25


class EngineClient:
    """Greedy requests and weight updates on one server; not safe for several threads.

    ``vocab_size`` is the model's: SGLang 0.5.23 dies on a top-k above it, so a larger one is cut
    down to it here, and token ids outside it are refused before they are sent.
    """

    def __init__(self, url: str, *, vocab_size: int, timeout_s: float = 600.0) -> None:
        if vocab_size < 1:
            raise CalibrationError(
                f"vocab_size={vocab_size} must be positive; take it from the model's config.json"
            )
        self.vocab_size = vocab_size
        self._http = httpx.Client(base_url=url, timeout=timeout_s, trust_env=False)
        self._info: ServerInfo | None = None

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the server goes on."""
        self._http.close()

    # ---- server ----

    def wait_ready(self, timeout_s: float = 240.0) -> None:
        """Wait until ``/health`` answers 200; raises :class:`EngineRequestError` after the time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if self._http.get("/health", timeout=5.0).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(_POLL_S)
        raise EngineRequestError(
            f"{self._http.base_url} did not become healthy in {timeout_s} s; see the server's log"
        )

    def server_info(self) -> ServerInfo:
        """Read ``/server_info``; raises :class:`EngineRequestError` when it is out of reach."""
        raw = self._json(self._call("GET", "/server_info"))
        try:
            xver = raw["internal_states"][0].get("xver") or {}
            return ServerInfo(
                max_input_tokens=int(raw["max_req_input_len"]),
                pool_tokens=int(raw["max_total_num_tokens"]),
                page_size=int(raw["page_size"]),
                mode=str(xver.get("mode", "")),
                layout=xver.get("layout") or {},
                xver=xver,
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineRequestError(
                f"/server_info lacks a field ({error!r}); SGLang 0.5.23 is supported"
            ) from error

    def flush_cache(self) -> None:
        """Empty the prefix cache; raises :class:`EngineRequestError` while requests run."""
        self._call("POST", "/flush_cache")

    def update_weights_from_disk(
        self, model_path: Path, *, flush_cache: bool = True, weight_version: str | None = None
    ) -> UpdateReply:
        """Load the checkpoint at ``model_path`` into the running server.

        Raises:
            EngineRequestError: the server refused; the message is its own.
        """
        body = {"model_path": str(model_path), "flush_cache": flush_cache}
        if weight_version is not None:
            body["weight_version"] = weight_version
        answer = self._json(self._call("POST", "/update_weights_from_disk", body))
        message = str(answer.get("message", ""))
        if answer.get("success") is not True:
            raise EngineRequestError(f"update to {model_path} refused: {message}")
        return UpdateReply(message, parse_message(message))

    # ---- requests ----

    def generate(
        self,
        input_ids: Sequence[int],
        *,
        max_new_tokens: int,
        cache_salt: str,
        reuse_at_most_tokens: int | None = None,
    ) -> Generation:
        """Continue ``input_ids`` greedily.

        ``reuse_at_most_tokens`` caps the reused prefix, so that several questions on one document
        all split at the document's end; None reuses all that is cached.
        """
        body = self._body(input_ids, max_new_tokens, cache_salt)
        if reuse_at_most_tokens is not None:
            # SGLang caps the match at the first position whose log-probability is asked for.
            body |= {"return_logprob": True, "logprob_start_len": reuse_at_most_tokens}
        answer = self._json(self._call("POST", "/generate", body))
        try:
            meta = answer["meta_info"]
            return Generation(
                text=str(answer["text"]),
                output_ids=tuple(int(token) for token in answer["output_ids"]),
                cached_tokens=int(meta["cached_tokens"]),
                finish_reason=str((meta.get("finish_reason") or {}).get("type", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineRequestError(f"/generate answered without {error!r}") from error

    def score(
        self, input_ids: Sequence[int], *, first_position: int, top_k: int, cache_salt: str
    ) -> Scores:
        """Return the distribution of the token at every position from ``first_position`` on.

        The last one is that of the token after ``input_ids``, so there are
        ``len(input_ids) - first_position + 1``. At most ``first_position - 1`` tokens are reused
        from the cache. ``top_k`` above the vocabulary is cut down to it.
        """
        if not 1 <= first_position <= len(input_ids):
            raise CalibrationError(
                f"first_position={first_position} is outside 1..{len(input_ids)}; "
                "there must be a token before it"
            )
        body = self._body(input_ids, 1, cache_salt) | {
            "return_logprob": True,
            "logprob_start_len": first_position - 1,
            "top_logprobs_num": max(1, min(top_k, self.vocab_size)),
            "return_text_in_logprobs": False,
        }
        answer = self._json(self._call("POST", "/generate", body))
        try:
            meta = answer["meta_info"]
            # The entry of the token at the start itself is empty: nothing was run before it.
            rows = [*meta["input_top_logprobs"][1:], meta["output_top_logprobs"][0]]
            positions = tuple(_top_logprobs(row) for row in rows)
            cached_tokens = int(meta["cached_tokens"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineRequestError(f"/generate answered unusable logprobs: {error!r}") from error
        expected = len(input_ids) - first_position + 1
        if len(positions) != expected:
            raise EngineRequestError(
                f"/generate answered {len(positions)} distributions, {expected} were asked for"
            )
        return Scores(positions, cached_tokens)

    def ttft(self, input_ids: Sequence[int], *, cache_salt: str) -> TtftSample:
        """Stream one token and time the first chunk, as a client sees it."""
        body = self._body(input_ids, 1, cache_salt) | {"stream": True}
        first: TtftSample | None = None
        started = time.perf_counter()
        try:
            with self._http.stream("POST", "/generate", json=body) as response:
                # Read to the end: leaving early would make the server abort the request.
                for line in response.iter_lines():
                    if first is None and line.startswith("data: {"):
                        elapsed_ms = (time.perf_counter() - started) * 1000
                        meta = json.loads(line.removeprefix("data: "))["meta_info"]
                        first = TtftSample(elapsed_ms, int(meta["cached_tokens"]))
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise EngineRequestError(f"streamed /generate failed: {error!r}") from error
        if first is None:
            raise EngineRequestError("streamed /generate held no token; see the server's log")
        return first

    # ---- plumbing ----

    def _body(
        self, input_ids: Sequence[int], max_new_tokens: int, cache_salt: str
    ) -> dict[str, Any]:
        self._check_ids(input_ids)
        if not cache_salt:
            raise CalibrationError(
                "cache_salt is empty; give every arm its own, else arms read each other's KV"
            )
        return {
            "input_ids": list(input_ids),
            "cache_salt": cache_salt,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": max_new_tokens},
        }

    def _check_ids(self, input_ids: Sequence[int]) -> None:
        if not input_ids:
            raise CalibrationError("input_ids is empty; a request needs at least one token")
        outside = [token for token in input_ids if not 0 <= token < self.vocab_size]
        if outside:
            raise CalibrationError(
                f"token id {outside[0]} is outside 0..{self.vocab_size - 1}; "
                "tokenize with the served model's own tokenizer"
            )
        if self._info is None:
            self._info = self.server_info()
        if len(input_ids) > self._info.max_input_tokens:
            raise CalibrationError(
                f"prompt of {len(input_ids)} tokens exceeds the server's limit of "
                f"{self._info.max_input_tokens}; use a shorter prefix"
            )

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise EngineRequestError(
                f"{method} {path} on {self._http.base_url} failed: {error!r}; see the server's log"
            ) from error
        if response.status_code != httpx.codes.OK:
            raise EngineRequestError(
                f"{method} {path} answered {response.status_code}: {response.text[:500]}"
            )
        return response

    @staticmethod
    def _json(response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError as error:
            raise EngineRequestError(
                f"{response.url.path} answered no JSON: {response.text[:200]!r}"
            ) from error
        if not isinstance(answer, dict):
            raise EngineRequestError(f"{response.url.path} answered {type(answer).__name__}")
        return answer


def _top_logprobs(row: Sequence[Sequence[float]]) -> TopLogprobs:
    # Each entry is [logprob, token id, text]; the text is None on request.
    return TopLogprobs(
        np.fromiter((entry[1] for entry in row), dtype=np.int64, count=len(row)),
        np.fromiter((entry[0] for entry in row), dtype=np.float64, count=len(row)),
    )
