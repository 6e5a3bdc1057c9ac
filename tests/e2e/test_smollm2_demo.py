"""A real language model: evidence of the demonstration's shape decides what stays cached."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence

from examples.testbed.lora import smollm2_update
from examples.testbed.niah import ANSWER_TOKENS, NiahDocument, build_document
from examples.testbed.process import SglangServer
from examples.testbed.smollm2 import smollm2_base
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.engine_types import Generation, ServerInfo, UpdateReply
from sglang_xver.calibrate.record import engine_from_server, layout_from_server, model_version
from sglang_xver.client import CompatClient
from sglang_xver.identity import inspect_checkpoint, read_config
from tests.e2e.support import CompatServiceProcess, server_environment

pytestmark = [pytest.mark.e2e, pytest.mark.smollm2, pytest.mark.timeout(900)]

PREFIX_TOKENS = 1024
BUCKET_TOKENS = 2048
FAMILIES = "niah,continuation"


class Prompt(NamedTuple):
    """One question on a shared prefix, as token ids."""

    prefix_ids: tuple[int, ...]
    question_ids: tuple[int, ...]


class Live:
    """The serving server with the base weights loaded."""

    def __init__(self, client: EngineClient, prompts: list[Prompt]) -> None:
        self.client = client
        self.prompts = prompts
        self.salt = uuid.uuid4().hex

    def ask(self, index: int, salt: str = "") -> Generation:
        prompt = self.prompts[index]
        return self.client.generate(
            (*prompt.prefix_ids, *prompt.question_ids),
            max_new_tokens=ANSWER_TOKENS,
            cache_salt=salt or self.salt,
        )

    def update(self, checkpoint: Path) -> UpdateReply:
        return self.client.update_weights_from_disk(checkpoint)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    """Two questions on one prefix: the first fills the cache, the second meets it warm."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_base())
    document: NiahDocument = build_document(tokenizer, PREFIX_TOKENS, needles=2, seed=7)
    prefix_ids = tuple(tokenizer.encode(document.prefix))
    return [
        Prompt(prefix_ids, tuple(tokenizer.encode(question.text)))
        for question in document.questions
    ]


@pytest.fixture(scope="module")
def client(
    service: CompatServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineClient]:
    base = smollm2_base()
    environment = server_environment(
        service.address, POLICY="demo", TASK_FAMILIES=FAMILIES, TIMEOUT_MS="15000"
    )
    log = tmp_path_factory.mktemp("smollm2") / "server.log"
    vocab_size = int(read_config(base)["vocab_size"])
    with SglangServer(base, log, environment=environment) as server:
        server.wait_ready(420)
        with EngineClient(server.url, vocab_size=vocab_size) as connected:
            record(service, connected.server_info(), "mild", harmful=0, fcd=0.006)
            record(service, connected.server_info(), "strong", harmful=5, fcd=0.6)
            yield connected


@pytest.fixture
def live(client: EngineClient, prompts: list[Prompt]) -> Live:
    client.update_weights_from_disk(smollm2_base())
    client.flush_cache()
    return Live(client, prompts)


def record(
    service: CompatServiceProcess, info: ServerInfo, update: str, *, harmful: int, fcd: float
) -> None:
    """Record a run as small as the demonstration's own."""
    needles = evidence.StratumResult(
        flips=evidence.FlipCounts(num_items=16, reference_correct=10, harmful=harmful),
        floor_flips=evidence.FlipCounts(num_items=16, reference_correct=10),
        divergence=divergence(fcd, num_items=8, positions=6),
        floor_divergence=divergence(0.001, num_items=8, positions=6),
        source_correct=10,
        **common_fields("niah", "niah_single@1"),
    )
    text = evidence.StratumResult(
        divergence=divergence(0.012, num_items=8, positions=8),
        floor_divergence=divergence(0.001, num_items=8, positions=8),
        **common_fields("continuation", "opticks_continuation@1"),
    )
    run = evidence.Run(
        source=model_version(inspect_checkpoint(smollm2_base(), 2**40), "base"),
        target=model_version(inspect_checkpoint(smollm2_update(update), 2**40), update),
        layout=layout_from_server(info.layout),
        engine=engine_from_server(info),
        provenance=evidence.PROVENANCE_MEASURED,
        sample_plan=evidence.SamplePlan(
            planned_items=8, planned_looks=1, hfr_limit=0.35, confidence_level=0.8
        ),
        strata=[needles, text],
        tool_version="test",
    )
    with CompatClient(service.address, timeout_s=20) as compat:
        compat.record_run(run)


def common_fields(family: str, task: str) -> dict[str, object]:
    return {
        "task_family": family,
        "task": task,
        "prefix_tokens_min": BUCKET_TOKENS,
        "prefix_tokens_max": BUCKET_TOKENS,
        "action": common.ACTION_KEEP,
        "num_documents": 4,
        "reference_mismatches": 0,
        "synthetic": True,
    }


def divergence(mean: float, num_items: int, positions: int) -> evidence.DivergenceSummary:
    return evidence.DivergenceSummary(
        method=evidence.DIVERGENCE_METHOD_FULL_VOCABULARY,
        num_items=num_items,
        positions_per_item=positions,
        mean=mean,
        mean_upper_bound=mean * 1.3,
        median=mean * 0.9,
        p95=mean * 1.5,
        p99=mean * 1.8,
        max=mean * 2,
        first_position_mean=mean,
    )


class TestRealModel:
    def test_warm_cache_survives_a_mild_update(self, live: Live) -> None:
        assert live.ask(0).cached_tokens == 0
        report = live.update(smollm2_update("mild")).report
        assert (report["action"], report["reason"]) == ("KEEP", "ALL_CRITERIA_PASS")
        assert report["decision_id"].startswith("dec_")
        assert int(report["kept_tokens"]) >= PREFIX_TOKENS
        assert live.ask(1).cached_tokens >= PREFIX_TOKENS
        # Whoever wants the update's own KV gets it under another salt.
        assert live.ask(1, salt=uuid.uuid4().hex).cached_tokens == 0

    def test_what_is_kept_for_one_family_is_not_shown_to_the_strictest(self, live: Live) -> None:
        """Free text bears this update, needles don't, and a request without a hint may be one."""
        live.ask(0)
        report = live.update(smollm2_update("strong")).report
        assert (report["action"], report["reason"]) == ("KEEP", "ALL_CRITERIA_PASS")
        assert report["decision_id"].startswith("dec_")
        assert int(report["kept_tokens"]) >= PREFIX_TOKENS
        after = live.ask(0)
        native = live.ask(0, salt=uuid.uuid4().hex)
        assert (after.cached_tokens, native.cached_tokens) == (0, 0)
        assert after.output_ids == native.output_ids

    def test_an_update_that_nobody_measured_meets_an_empty_cache(self, live: Live) -> None:
        live.ask(0)
        report = live.update(smollm2_update("unknown")).report
        assert (report["action"], report["reason"]) == ("EVICT", "NO_EVIDENCE")
        assert live.ask(0).cached_tokens == 0
