"""The demonstration's table, the harm that was avoided, and the JSON of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from examples.demo.calibration import HarmExample
from examples.demo.walk import StepResult

_STYLES = {"KEEP": "bold green", "EVICT": "bold red", "FLUSH": "bold yellow"}


@dataclass
class LiveAnswers:
    """What the serving server answered to the harmful item's prompt."""

    before: str = ""
    """By the base weights."""
    after: str = ""
    """By the strong update, once the old KV was evicted."""


def results_table(steps: Sequence[StepResult], prefix_tokens: int, num_prefixes: int) -> Table:
    """One row per update; times are medians in milliseconds."""
    table = Table(
        title=f"Hot reloads with {num_prefixes} shared prefixes of {prefix_tokens:,} tokens",
        caption="TTFT: median ms. ratio: after the reload / warm; 1 means nobody felt the update.",
    )
    for name in ("update", "verdict", "reason", "decision id"):
        table.add_column(name, overflow="fold")
    for name in ("kept", "evicted", "TTFT cold", "warm", "after", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in steps:
        table.add_row(
            step.name,
            f"[{_STYLES.get(step.verdict, 'bold')}]{step.verdict}[/]",
            step.reason,
            step.decision_id or "-",
            f"{step.kept_tokens:,}",
            f"{step.evicted_tokens:,}",
            f"{step.cold.median_ms:,.0f}",
            f"{step.warm.median_ms:,.0f}",
            f"{step.after.median_ms:,.0f}",
            f"{step.after_to_warm_ratio:.2f}",
        )
    return table


def harm_panel(harm: HarmExample, live: LiveAnswers) -> Panel:
    """One prompt, as every way of serving it answers it."""
    rows = (
        ("right answer", harm.gold),
        ("base weights, before the update", _one_line(live.before)),
        ("strong update reading the base's KV (measured, arm R)", _one_line(harm.reuse_answer)),
        ("strong update by itself (measured, arm C)", _one_line(harm.target_answer)),
        ("this server after the strong update: old KV evicted", _one_line(live.after)),
    )
    body = "\n".join(f"{escape(name):<56}{escape(value)}" for name, value in rows)
    return Panel(f"{escape(harm.question)}\n\n{body}", title="The harm that the eviction avoided")


def _one_line(answer: str) -> str:
    return " ".join(answer.split()) or "(nothing)"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write the figures; replaces an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def step_json(step: StepResult) -> dict[str, Any]:
    """One step with every single timing."""
    visits = {
        name: {
            "median_ms": round(value.median_ms, 1),
            "ttft_ms": [round(ttft_ms, 1) for ttft_ms in value.ttft_ms],
            "cached_tokens": list(value.cached_tokens),
        }
        for name, value in (("cold", step.cold), ("warm", step.warm), ("after", step.after))
    }
    ratio = round(step.after_to_warm_ratio, 3)
    return {**asdict(step), **visits, "after_to_warm_ratio": ratio}


def print_failures(console: Console, failures: Sequence[str]) -> None:
    """Say what was not as stated."""
    for failure in failures:
        console.print(f"[bold red]not as stated:[/] {escape(failure)}")
