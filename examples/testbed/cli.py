"""``python -m examples.testbed build``: build every real checkpoint once and print its folder."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from examples.testbed.cache import TestbedError, cache_root


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status (1 with the reason on stderr)."""
    parser = argparse.ArgumentParser(prog="python -m examples.testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build base, mild, strong and unknown (about 1 GB)")
    commands.add_parser("where", help="print the cache folder")
    arguments = parser.parse_args(argv)
    if arguments.command == "where":
        print(cache_root())
        return 0
    try:
        _build_all()
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _build_all() -> None:
    # Imported here so that `where` and `--help` need neither torch nor transformers.
    from examples.testbed.lora import smollm2_update
    from examples.testbed.smollm2 import smollm2_base

    steps: list[tuple[str, Callable[[], Path]]] = [("base", smollm2_base)]
    steps += [(name, partial(smollm2_update, name)) for name in ("mild", "strong", "unknown")]
    for index, (name, step) in enumerate(steps, start=1):
        print(f"[{index}/{len(steps)}] {name} ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        folder = step()
        seconds = time.monotonic() - started
        print(f"[{index}/{len(steps)}] {name} ready in {seconds:.1f} s", file=sys.stderr)
        print(f"{name}\t{folder}", flush=True)
