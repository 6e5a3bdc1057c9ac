"""One whole run: soak the server, let a stock server prove that the checker can fail, judge."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from examples.testbed.process import CompatServiceProcess, SglangServer, upgrade_database
from sglang_xver.client import CompatClient
from tests.e2e.driver import Driver
from tests.e2e.evidence import fingerprint, record
from tests.e2e.support import server_environment
from tests.soak.clients import Traffic
from tests.soak.health import HealthWatch
from tests.soak.records import History
from tests.soak.reference import Reference
from tests.soak.scenario import FIRST, Scenario, make_broken, make_checkpoints
from tests.soak.updates import Operator
from tests.soak.verdicts import (
    NOISE_FACTOR,
    Judgement,
    judge,
    judge_run,
    noise_of,
    wanted_comparisons,
)

IDLE_EVERY_S = 30.0
GAPS_S = (0.1, 0.5, 1.0, 2.0, 3.0)
FOREIGN_MIN_TOKENS = 8
"""Two checkpoints may agree on a token or two by chance."""
STOCK_GAPS_S = (0.5, 1.0)

DEPTHS_BY_FAMILY = {"niah": 256, "qa": 2048}
"""How deep each family may reuse at most; whoever gives no hint gets the strictest."""

# Checks on every step of the scheduler, not only when it idles, and of single pages.
STRICT_CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}


@dataclass
class Workload:
    """What one server was asked and what it answered."""

    traffic: Traffic
    operator: Operator
    history: History
    health: HealthWatch
    seconds: float


class StockRun(NamedTuple):
    """What the stock server answered, and under which weights."""

    traffic: Traffic
    history: History


@dataclass
class SelfTest:
    """What the checker says where the truth is known."""

    noise_nats: float
    calm_tokens: int
    foreign_responses: int
    foreign_caught: int
    stock: Judgement
    problems: list[str]


@dataclass
class Outcome:
    """Everything that a run found."""

    scenario: Scenario
    workload: Workload
    judgement: Judgement
    self_test: SelfTest
    problems: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.problems and not self.judgement.violations


def run(scenario: Scenario, folder: Path) -> Outcome:
    """Run ``scenario``; logs go to ``folder``."""
    checkpoints = make_checkpoints()
    workload = soak(scenario, checkpoints, folder)
    with _server(scenario, checkpoints[FIRST], folder / "stock.log", backend=None) as server:
        driver = Driver(server.wait_ready().url)
        calm = _stock_workload(scenario, checkpoints, driver, with_updates=False)
        stale = _stock_workload(scenario, checkpoints, driver, with_updates=True)
    with _reference_server(checkpoints[FIRST], folder / "reference.log") as server:
        reference = Reference(Driver(server.wait_ready().url), checkpoints)
        self_test = _self_test(calm, stale, reference)
        tolerance = NOISE_FACTOR * self_test.noise_nats
        judgement = judge_run(workload.traffic.served, workload.history, reference, tolerance)
    outcome = Outcome(scenario, workload, judgement, self_test)
    outcome.problems = _problems(outcome)
    return outcome


def soak(scenario: Scenario, checkpoints: dict[str, Path], folder: Path) -> Workload:
    """Run the workload on a server with the xver backend and real evidence."""
    upgrade_database(folder / "compat.db")
    with CompatServiceProcess(folder / "compat.db", folder / "service.log") as service:
        address = service.wait_ready().address
        families = ",".join(DEPTHS_BY_FAMILY)
        environment = {
            **server_environment(address, TASK_FAMILIES=families),
            **STRICT_CHECKS,
        }
        log = folder / "server.log"
        with _server(scenario, checkpoints[FIRST], log, environment=environment) as server:
            driver = Driver(server.wait_ready().url)
            with CompatClient(address) as client:
                _record_evidence(client, driver, checkpoints)
            health = HealthWatch(driver, server.pid, log)
            workload = _run_workload(scenario, checkpoints, driver, health)
            health.check_log()
            health.check_growth()
            if server.exit_code is not None or not server.is_healthy():
                health.problems.append(f"the server is not healthy: {server.log_tail()}")
    return workload


def _server(
    scenario: Scenario,
    model: Path,
    log: Path,
    *,
    environment: dict[str, str] | None = None,
    backend: str | None = "xver",
) -> SglangServer:
    return SglangServer(
        model,
        log,
        arguments=scenario.server_arguments,
        environment=environment,
        max_total_tokens=scenario.pool_tokens,
        backend=backend,
    )


def _reference_server(model: Path, log: Path) -> SglangServer:
    """Return a stock server with room and chunks of a size that make it fast."""
    arguments = ("--chunked-prefill-size", "2048")
    return SglangServer(model, log, arguments=arguments, max_total_tokens=60_000, backend=None)


def _record_evidence(client: CompatClient, driver: Driver, checkpoints: dict[str, Path]) -> None:
    """Let some updates keep, some cut, some evict for harm; of the rest nothing is known."""
    status = driver.status()
    verdicts: dict[tuple[str, str], dict[str, int]] = {
        (FIRST, "good"): {},
        ("good", FIRST): {},
        ("good", "bad"): {"prefix_tokens_max": 200},
        ("bad", "good"): {"prefix_tokens_max": 96},
        ("bad", FIRST): {},
        (FIRST, "bad"): {"harmful": 120},
        (FIRST, "other"): {"prefix_tokens_max": 128},
        ("other", FIRST): {"prefix_tokens_max": 150},
        ("other", "good"): {},
    }
    for family, limit in DEPTHS_BY_FAMILY.items():
        for (source, target), options in verdicts.items():
            depth = min(limit, options.get("prefix_tokens_max", limit))
            record(
                client,
                status,
                checkpoints[source],
                checkpoints[target],
                prefix_tokens_max=depth,
                harmful=options.get("harmful", 0),
                family=family,
            )


def _run_workload(
    scenario: Scenario, checkpoints: dict[str, Path], driver: Driver, health: HealthWatch
) -> Workload:
    traffic = Traffic(str(driver.http.base_url), scenario.seed, scenario.clients)
    history = History(FIRST)
    rng = random.Random(scenario.seed)
    operator = Operator(driver, history, checkpoints, rng, broken=make_broken())
    known = frozenset(fingerprint(path) for path in checkpoints.values()) | {"initial"}
    started = time.monotonic()
    ends, next_idle = started + 60 * scenario.minutes, started + IDLE_EVERY_S
    traffic.start()
    while (now := time.monotonic()) < ends:
        if now >= next_idle:
            traffic.hold()
            health.check_idle(known, flush=rng.random() < 0.3)
            traffic.release()
            next_idle = time.monotonic() + IDLE_EVERY_S
        operator.act()
        health.sample(time.monotonic() - started)
        time.sleep(rng.choice(GAPS_S))
    traffic.stop()
    health.check_idle(known, flush=True)
    return Workload(traffic, operator, history, health, time.monotonic() - started)


def _stock_workload(
    scenario: Scenario, checkpoints: dict[str, Path], driver: Driver, *, with_updates: bool
) -> StockRun:
    """Run the same clients on the stock server, which serves ``FIRST`` with an empty cache."""
    driver.reset_to(checkpoints[FIRST])
    traffic = Traffic(str(driver.http.base_url), scenario.seed + 1, scenario.clients)
    history = History(FIRST, driver.http.get("/model_info").json()["weight_version"])
    rng = random.Random(scenario.seed)
    operator = Operator(driver, history, checkpoints, rng, always_keep=True)
    started = time.monotonic()
    traffic.start()
    while time.monotonic() < started + scenario.self_test_s:
        time.sleep(rng.choice(STOCK_GAPS_S))
        if with_updates:
            operator.act()
    traffic.stop()
    return StockRun(traffic, history)


def _self_test(calm: StockRun, stale: StockRun, reference: Reference) -> SelfTest:
    """Measure the noise without updates, then let the checker find what is known to be wrong."""
    answers = calm.traffic.served
    compared = reference.compare(wanted_comparisons(answers, calm.history))
    noise = noise_of(compared)
    foreign_history = History("good", calm.history.current.label)
    sample = [served for served in answers if served.checked_tokens >= FOREIGN_MIN_TOKENS][:200]
    foreign = judge(
        sample,
        foreign_history,
        reference.compare(wanted_comparisons(sample, foreign_history)),
        NOISE_FACTOR * noise,
    )
    return SelfTest(
        noise_nats=noise,
        calm_tokens=sum(served.checked_tokens for served in answers),
        foreign_responses=len(sample),
        foreign_caught=len(foreign.violations),
        stock=judge_run(stale.traffic.served, stale.history, reference, NOISE_FACTOR * noise),
        problems=calm.traffic.problems + stale.traffic.problems,
    )


def _problems(outcome: Outcome) -> list[str]:
    workload, self_test = outcome.workload, outcome.self_test
    problems = [
        *workload.traffic.problems,
        *workload.operator.problems,
        *workload.health.problems,
        *self_test.problems,
    ]
    if not self_test.stock.stale_tokens:
        problems.append("the checker found nothing on a server that serves stale KV")
    if self_test.foreign_caught < self_test.foreign_responses:
        problems.append(
            f"the checker caught {self_test.foreign_caught} of {self_test.foreign_responses} "
            "answers of another checkpoint"
        )
    if not outcome.judgement.tokens["native"]:
        problems.append("no token was checked")
    return problems
