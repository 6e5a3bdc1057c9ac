"""Command line: ``python -m tests.fuzz --minutes 30``, or ``--replay SEED:NUMBER``."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime

from tests.fuzz import pool


def _replay(seed: str) -> int:
    import torch
    from sglang.srt.plugins import load_plugins

    torch.set_num_threads(1)
    load_plugins()
    from tests.fuzz.driver import Outcome, run_sequence

    outcome = Outcome()
    run_sequence(seed, outcome)
    if outcome.violation is None:
        print(f"sequence {seed}: {outcome.operations} operations, no violation")
        return 0
    print(outcome.violation.describe())
    return 1


def main() -> int:
    """Run and return the exit status: 1 when a violation was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to run")
    parser.add_argument("--operations", type=int, default=0, help="how much to run instead")
    parser.add_argument("--seed", help="seed of the run; without it a new one, or today's")
    parser.add_argument("--workers", type=int, default=2, help="processes to run (default 2)")
    parser.add_argument("--replay", metavar="SEED:NUMBER", help="run one sequence again")
    options = parser.parse_args()
    if options.replay:
        return _replay(options.replay)
    if options.minutes > 0:
        seed = options.seed or f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
        operations = 0
    else:
        seed = options.seed or pool.seed_of_the_day()
        operations = options.operations or pool.DEFAULT_OPERATIONS
    print(f"seed {seed}, {options.workers} workers", flush=True)
    started = time.monotonic()
    total = pool.run(
        seed,
        operations=operations,
        seconds=options.minutes * 60,
        workers=options.workers,
        report=lambda text: print(text, flush=True),
    )
    for violation in total.violations:
        print(violation)
    for name, number in sorted(total.by_name.items()):
        print(f"  {name:14} {number:>9,}")
    print(total.to_text(time.monotonic() - started))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
