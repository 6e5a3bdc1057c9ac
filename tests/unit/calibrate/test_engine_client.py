"""What is sent to a server and how its answers are read; the wire is a transport stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.errors import CalibrationError, EngineRequestError
from tests.unit.calibrate.builders import ENGINE, LAYOUT

VOCAB_SIZE = 8
Handler = Callable[[dict[str, Any]], httpx.Response]
SERVER_INFO = {
    "max_req_input_len": 100,
    "max_total_num_tokens": 5000,
    "page_size": 1,
    "internal_states": [{"xver": {"mode": "off", "layout": LAYOUT, "engine": ENGINE}}],
}


class Wire:
    """Answers every POST with the handler and remembers the bodies."""

    def __init__(self, handler: Handler) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._handler = handler
        self.client = EngineClient("http://server", vocab_size=VOCAB_SIZE)
        self.client._http = httpx.Client(
            base_url="http://server", transport=httpx.MockTransport(self._answer)
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/server_info":
            return httpx.Response(200, json=SERVER_INFO)
        body = json.loads(request.content) if request.content else {}
        self.bodies.append(body)
        return self._handler(body)


def answer(**meta: Any) -> dict[str, Any]:
    fields = {"cached_tokens": 2, "finish_reason": {"type": "stop"}, **meta}
    return {"text": "ok", "output_ids": [1, 2], "meta_info": fields}


def scored(positions: int, k: int = 2) -> dict[str, Any]:
    row = [[-0.5 * (i + 1), i, None] for i in range(k)]
    return answer(input_top_logprobs=[None, *[row] * (positions - 1)], output_top_logprobs=[row])


class TestRequests:
    def test_generate_is_greedy_salted_and_capped(self) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=answer()))
        found = wire.client.generate(
            [1, 2, 3], max_new_tokens=4, cache_salt="s", reuse_at_most_tokens=2
        )
        assert (found.text, found.output_ids, found.cached_tokens) == ("ok", (1, 2), 2)
        body = wire.bodies[0]
        assert body["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 4}
        assert (body["cache_salt"], body["logprob_start_len"]) == ("s", 2)
        # SGLang ignores the cap where no log-probabilities are asked for.
        assert body["return_logprob"] is True

    @pytest.mark.parametrize("asked, sent", [(3, 3), (8, 8), (9, 8), (10**6, 8), (0, 1)])
    def test_top_k_is_cut_to_the_vocabulary(self, asked: int, sent: int) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=scored(2)))
        wire.client.score([1, 2, 3], first_position=2, top_k=asked, cache_salt="s")
        assert wire.bodies[0]["top_logprobs_num"] == sent

    def test_score_returns_every_position_and_the_next(self) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=scored(3)))
        found = wire.client.score([1, 2, 3, 4], first_position=2, top_k=2, cache_salt="s")
        assert len(found.positions) == 3
        assert wire.bodies[0]["logprob_start_len"] == 1
        assert found.positions[0].token_ids.tolist() == [0, 1]
        assert found.positions[0].logprobs.tolist() == [-0.5, -1.0]

    def test_score_with_positions_missing_is_an_error(self) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=scored(2)))
        with pytest.raises(EngineRequestError, match="2 distributions, 3"):
            wire.client.score([1, 2, 3, 4], first_position=2, top_k=2, cache_salt="s")

    def test_ttft_ends_at_the_first_chunk_with_a_token(self) -> None:
        chunk = f"data: {json.dumps(answer(cached_tokens=7))}\n\n"
        last = f"data: {json.dumps(answer(cached_tokens=9))}\n\ndata: [DONE]\n\n"
        wire = Wire(lambda _: httpx.Response(200, text=chunk + last))
        found = wire.client.ttft([1], cache_salt="s")
        assert found.cached_tokens == 7
        assert found.ttft_ms > 0
        assert wire.bodies[0]["stream"] is True

    def test_an_empty_stream_is_an_error(self) -> None:
        wire = Wire(lambda _: httpx.Response(200, text="data: [DONE]\n\n"))
        with pytest.raises(EngineRequestError, match="no token"):
            wire.client.ttft([1], cache_salt="s")


class TestRefusedBeforeSending:
    @pytest.mark.parametrize("ids", [[8], [-1], [0, 99]])
    def test_token_ids_outside_the_vocabulary(self, ids: list[int]) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=answer()))
        with pytest.raises(CalibrationError, match=r"outside 0\.\.7"):
            wire.client.generate(ids, max_new_tokens=1, cache_salt="s")
        assert wire.bodies == []

    def test_prompts_beyond_the_context(self) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=answer()))
        with pytest.raises(CalibrationError, match="limit of 100"):
            wire.client.generate([1] * 101, max_new_tokens=1, cache_salt="s")

    @pytest.mark.parametrize("ids, salt", [([], "s"), ([1], "")])
    def test_empty_prompts_and_salts(self, ids: list[int], salt: str) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=answer()))
        with pytest.raises(CalibrationError, match="empty"):
            wire.client.generate(ids, max_new_tokens=1, cache_salt=salt)

    @pytest.mark.parametrize("first", [0, 4])
    def test_positions_outside_the_text(self, first: int) -> None:
        wire = Wire(lambda _: httpx.Response(200, json=answer()))
        with pytest.raises(CalibrationError, match="first_position"):
            wire.client.score([1, 2, 3], first_position=first, top_k=1, cache_salt="s")


class TestServer:
    def test_info_is_read(self) -> None:
        info = Wire(lambda _: httpx.Response(200)).client.server_info()
        assert (info.mode, info.pool_tokens, info.layout) == ("off", 5000, LAYOUT)

    def test_update_reply_is_parsed(self) -> None:
        message = "Succeeded. [xver action=KEEP reason=ALL_CRITERIA_PASS kept_tokens=9]"
        wire = Wire(lambda _: httpx.Response(200, json={"success": True, "message": message}))
        reply = wire.client.update_weights_from_disk("/m", flush_cache=False)  # type: ignore[arg-type]
        assert reply.report["action"] == "KEEP"
        assert wire.bodies[0] == {"model_path": "/m", "flush_cache": False}

    @pytest.mark.parametrize("status", [200, 400])
    def test_refused_update_keeps_the_servers_words(self, status: int) -> None:
        body = {"success": False, "message": "no such folder"}
        wire = Wire(lambda _: httpx.Response(status, json=body))
        with pytest.raises(EngineRequestError, match="no such folder"):
            wire.client.update_weights_from_disk("/m")  # type: ignore[arg-type]

    def test_a_server_that_is_gone(self) -> None:
        def gone(_: dict[str, Any]) -> httpx.Response:
            raise httpx.ConnectError("refused")

        with pytest.raises(EngineRequestError, match="server's log"):
            Wire(gone).client.flush_cache()
