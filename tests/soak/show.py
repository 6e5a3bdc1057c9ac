"""Prints what a run found."""

from __future__ import annotations

import json
from collections import Counter

from rich.console import Console
from rich.table import Table

from tests.soak.run import Outcome

_MIB = 2**20
SHOWN_VIOLATIONS = 3


def show(outcome: Outcome) -> None:
    """Print the summary, then the problems and violations in full."""
    console = Console(width=150, soft_wrap=True)
    console.print(_table(outcome))
    for problem in outcome.problems:
        console.print(f"PROBLEM {problem}", markup=False)
    for violation in outcome.judgement.violations[:SHOWN_VIOLATIONS]:
        console.print(f"VIOLATION {json.dumps(violation)}", markup=False)
    hidden = len(outcome.judgement.violations) - SHOWN_VIOLATIONS
    if hidden > 0:
        console.print(f"{hidden} more violations")
    console.print("clean" if outcome.is_clean else "NOT CLEAN")


def _table(outcome: Outcome) -> Table:
    scenario = outcome.scenario
    table = Table(
        title=f"Soak: seed {scenario.seed}, pages of {scenario.page_size}, "
        f"overlap {'on' if scenario.overlap else 'off'}, pool {scenario.pool_tokens} tokens",
        show_header=False,
    )
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows(outcome):
        table.add_row(name, value)
    return table


def rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the summary as (name, value)."""
    workload, judgement, self_test = outcome.workload, outcome.judgement, outcome.self_test
    health, served, stock = workload.health, workload.traffic.served, outcome.self_test.stock
    noise = f"{self_test.noise_nats:.4f} nats over {self_test.calm_tokens:,} tokens"
    tolerance = f"{judgement.tolerance_nats:.4f}, {judgement.worst_native_nats:.4f}"
    found = f"{stock.stale_tokens:,} stale tokens in {len(stock.violations):,} answers"
    return [
        ("workload", f"{workload.seconds:.0f} s, {outcome.scenario.clients} clients"),
        ("answers", _counts(Counter(one.kind for one in served))),
        ("answers in all", f"{len(served):,}, refused by an abort {workload.traffic.refused:,}"),
        ("retracted answers", f"{sum(bool(one.retractions) for one in served):,}"),
        ("updates", _counts(workload.operator.outcomes)),
        ("pauses", _counts(workload.operator.pauses)),
        ("answers judged", _counts(judgement.responses)),
        ("tokens judged", _counts(judgement.tokens)),
        ("kept-old answers that differ", f"{judgement.differing_kept_old_responses:,}"),
        ("noise, tolerance, worst native", f"{noise}, {tolerance}"),
        (
            "self-test: another checkpoint",
            f"caught {self_test.foreign_caught} of {self_test.foreign_responses}",
        ),
        (
            "self-test: stock, flush_cache=false",
            f"{found} of {sum(stock.responses.values()):,}",
        ),
        ("stale tokens", f"{judgement.stale_tokens:,}"),
        ("leaked slots", f"{health.leaked_slots:,} in {health.idle_checks} idle checks"),
        ("RSS scheduler", _memory(outcome, "scheduler_bytes")),
        ("RSS main process", _memory(outcome, "main_bytes")),
    ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _memory(outcome: Outcome, name: str) -> str:
    health = outcome.workload.health
    values = [getattr(sample, name) / _MIB for sample in health.samples]
    growth = health.growth_bytes(name) / _MIB
    return f"{values[0]:.0f} -> {values[-1]:.0f} MiB, second half {growth:+.1f} MiB"
