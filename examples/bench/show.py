"""The benchmark's tables, its verdict lines and the JSON of both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from examples.bench.caches import VARIANTS, XVER, XVER_KEPT
from examples.bench.plan_cost import KEEP_LIMIT_MS, PlanCost
from examples.bench.request_cost import RequestCost

MAX_RATIO = 3.0
"""Match + insert per request, as a multiple of SGLang's Rust core."""


def request_table(costs: Sequence[RequestCost]) -> Table:
    """Microseconds per request and operation, one row per page size and variant."""
    table = Table(
        title="Tree operations per request (median us)",
        caption="ratio: match + insert of a block over the Rust core's; median of the blocks",
    )
    for name in ("page", "cache"):
        table.add_column(name)
    for name in ("match", "insert", "lock + unlock", "ratio"):
        table.add_column(name, justify="right")
    for cost in costs:
        for variant in VARIANTS:
            row = _request_row(cost, variant)
            table.add_row(str(cost.page_size), variant, *(f"{value:.2f}" for value in row.values()))
        table.add_section()
    return table


def plan_table(costs: Sequence[PlanCost]) -> Table:
    """CPU milliseconds per weight update, the fastest repetition."""
    table = Table(title="A weight update on a full tree (CPU ms, fastest repetition)")
    for name in ("page", "nodes", "tokens", "keep all", "evict all", "SGLang's flush"):
        table.add_column(name, justify="right")
    for cost in costs:
        times = (cost.keep_ms, cost.evict_ms, cost.flush_ms)
        table.add_row(
            str(cost.page_size),
            f"{cost.num_nodes:,}",
            f"{cost.num_tokens:,}",
            *(f"{min(values):.2f}" for values in times),
        )
    return table


class Verdict(NamedTuple):
    """One requirement, with the figure that was measured."""

    line: str
    is_met: bool


def verdicts(requests: Sequence[RequestCost], plans: Sequence[PlanCost]) -> list[Verdict]:
    """Judge every requirement."""
    found = [
        _verdict(
            f"page {cost.page_size}: {variant}: match + insert", cost.ratio(variant), MAX_RATIO
        )
        for cost in requests
        for variant in (XVER, XVER_KEPT)
    ]
    for plan in plans:
        page = f"page {plan.page_size}"
        found.append(_verdict(f"{page}: keep all, ms", min(plan.keep_ms), KEEP_LIMIT_MS))
        found.append(_verdict(f"{page}: evict all, ms", min(plan.evict_ms), plan.evict_limit_ms))
    return found


def _verdict(what: str, measured: float, limit: float) -> Verdict:
    return Verdict(f"{what}: {measured:.2f} (at most {limit:.2f})", measured <= limit)


def print_verdicts(console: Console, found: Sequence[Verdict]) -> None:
    """Print every requirement with its outcome."""
    for line, is_met in found:
        mark = "[bold green]met[/]    " if is_met else "[bold red]not met[/]"
        console.print(f"{mark} {line}", soft_wrap=True, highlight=False)


def write_json(path: Path, requests: Sequence[RequestCost], plans: Sequence[PlanCost]) -> None:
    """Write the figures; replaces an existing file."""
    content: dict[str, Any] = {
        "requests": [
            {"page_size": cost.page_size, "cache": variant, **_request_row(cost, variant)}
            for cost in requests
            for variant in VARIANTS
        ],
        "plans": [vars(plan) for plan in plans],
        "requirements": [verdict._asdict() for verdict in verdicts(requests, plans)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _request_row(cost: RequestCost, variant: str) -> dict[str, float]:
    return {
        "match_us": cost.microseconds(variant, lambda block: block.match),
        "insert_us": cost.microseconds(variant, lambda block: block.insert),
        "lock_us": cost.microseconds(variant, lambda block: block.lock),
        "match_insert_to_rust_ratio": cost.ratio(variant),
    }
