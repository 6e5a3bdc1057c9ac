"""Command line: ``python -m tests.mutants [--only TEXT] [--workers 2]``."""

from __future__ import annotations

import argparse
import sys

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import MutantError
from tests.mutants.runner import try_all


def main() -> int:
    """Try every mutant; return 1 when one survives, 2 when the tool itself has to be mended."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name holds TEXT")
    parser.add_argument("--workers", type=int, default=2, help="copies to test at a time")
    options = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.name]
    survivors: list[str] = []
    try:
        for verdict in try_all(mutants, options.workers):
            word = "killed  " if verdict.is_killed else "SURVIVED"
            print(
                f"{word} {verdict.mutant.name:58} {verdict.seconds:4.0f} s  {verdict.by}",
                flush=True,
            )
            if not verdict.is_killed:
                survivors.append(verdict.mutant.name)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"killed {len(mutants) - len(survivors)}/{len(mutants)}")
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
