"""``python -m tests.soak --minutes 10 --seed 0``: exit 1 when anything is wrong."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.soak.run import run
from tests.soak.scenario import scenario
from tests.soak.show import show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where logs go; a temporary one by default")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="xver-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, logs in {folder}", flush=True)
    outcome = run(scenario(options.minutes, options.seed), folder)
    with (folder / "violations.jsonl").open("w") as file:
        file.writelines(json.dumps(each) + "\n" for each in outcome.judgement.violations)
    show(outcome)
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
