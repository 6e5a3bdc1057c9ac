"""``python -m examples.bench.tree``: what the versioned tree costs, next to SGLang's own cores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from examples.bench.workload import Workload


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 when a requirement is not met."""
    parser = argparse.ArgumentParser(prog="python -m examples.bench.tree", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--requests", type=int, default=Workload.num_requests)
    parser.add_argument("--rounds", type=int, default=3, help="runs of the workload, fresh trees")
    parser.add_argument("--repetitions", type=int, default=5, help="repetitions of each plan")
    parser.add_argument("--pages", type=int, nargs="+", default=[1, 64], help="page sizes")
    arguments = parser.parse_args(argv)

    # Imported here so that --help needs neither torch nor SGLang.
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from examples.bench import show
    from examples.bench.plan_cost import measure_plans
    from examples.bench.request_cost import measure_requests

    workload = Workload(num_requests=arguments.requests)
    block_requests = max(1, arguments.requests // 20)
    requests, plans = [], []
    for page_size in arguments.pages:
        print(f"page size {page_size} ...", file=sys.stderr, flush=True)
        requests.append(measure_requests(workload, page_size, arguments.rounds, block_requests))
        plans.append(measure_plans(workload, page_size, arguments.repetitions))
    console = Console(width=120)
    console.print(show.request_table(requests))
    console.print(show.plan_table(plans))
    found = show.verdicts(requests, plans)
    show.print_verdicts(console, found)
    if arguments.json is not None:
        show.write_json(arguments.json, requests, plans)
    return 0 if all(is_met for _, is_met in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
