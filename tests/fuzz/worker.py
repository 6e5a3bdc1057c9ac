"""One process of a run: its own share of the sequences, results as JSON lines on stdout.

``python -m tests.fuzz.worker SEED FIRST STRIDE OPERATIONS SECONDS``: runs the sequences FIRST,
FIRST + STRIDE, ... of SEED until OPERATIONS were done or SECONDS are over, whichever is not 0.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import count

import torch
from sglang.srt.plugins import load_plugins

REPORT_EVERY_S = 20.0


def _share(seed: str, first: int, stride: int, operations: int, seconds: float) -> None:
    from tests.fuzz.driver import Outcome, run_sequence

    outcome = Outcome()
    started = reported = time.monotonic()
    for index in count(first, stride):
        run_sequence(f"{seed}:{index}", outcome)
        now = time.monotonic()
        is_over = (
            outcome.violation is not None
            or (operations and outcome.operations >= operations)
            or (seconds and now - started >= seconds)
        )
        if is_over or now - reported >= REPORT_EVERY_S:
            reported = now
            print(json.dumps({**outcome.to_json(), "is_over": bool(is_over)}), flush=True)
        if is_over:
            return


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_plugins()
    _share(sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5]))
