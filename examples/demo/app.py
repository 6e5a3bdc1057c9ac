"""``python -m examples.demo``: the whole chain on real processes, in about five minutes."""

from __future__ import annotations

import argparse
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo import calibration, checks, documents, show
from examples.demo.outcome import Outcome
from examples.demo.processes import END_SIGNALS, POLICY, Session
from examples.demo.walk import StepResult, Walk, stock_step
from examples.testbed.cache import TestbedError
from examples.testbed.lora import smollm2_update
from examples.testbed.niah import is_correct
from examples.testbed.process import CompatServiceProcess, ProcessFailedError
from examples.testbed.smollm2 import smollm2_base
from sglang_xver.calibrate.engine_client import EngineClient
from sglang_xver.calibrate.tasks import Document
from sglang_xver.errors import XverError

SERVED_PREFIXES = 3
# Three documents are twelve needle questions: few, so the policy says what that proves.
CALIBRATION_DOCUMENTS = 3
SCORED_PER_DOCUMENT = 2
_MEASURED = ("mild", "strong")
_UPDATES = (*_MEASURED, "unknown")


class Demo:
    """Runs the phases in order; every phase prints what it does and how long it took."""

    def __init__(self, console: Console, session: Session) -> None:
        self._console = console
        self._session = session
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run everything; failed expectations are in the outcome, anything else raises."""
        with self._phase("build the models"):
            base = smollm2_base()
            updates = {name: smollm2_update(name) for name in _UPDATES}
            tokenizer = documents.load_tokenizer(base)
            prefixes = documents.served_prefixes(tokenizer, SERVED_PREFIXES)
            measured = documents.calibration_documents(
                tokenizer, CALIBRATION_DOCUMENTS, SCORED_PER_DOCUMENT
            )
        with self._phase("start the compatibility service (fresh SQLite file)"):
            service = self._session.start_service()
        with self._phase("start a calibration server (xver mode off: stock behaviour)"):
            server = self._session.start_calibration_server(base)
            client = self._session.connect(server, base)
        for name in _MEASURED:
            self._calibrate(client, base, updates[name], name, measured, service)
        with self._phase("stock behaviour: an update flushes"):
            stock = stock_step(client, base, updates["mild"], prefixes)
            self.outcome.steps.append(stock)
            self._session.stop(server)
        with self._phase("start the serving server (--radix-cache-backend xver, mode on)"):
            client = self._session.connect(self._session.start_serving_server(base, service), base)
        self._walk(Walk(client, base), client, updates, prefixes, service)
        self.outcome.failures += checks.failures_of_timing(stock, self.outcome.steps[1])
        return self.outcome

    def _calibrate(
        self,
        client: EngineClient,
        base: Path,
        update: Path,
        name: str,
        measured: tuple[Document, ...],
        service: CompatServiceProcess,
    ) -> None:
        with self._phase(f"measure base -> {name} on {len(measured)} documents, record it"):
            with self._progress() as progress:
                task = progress.add_task(f"base -> {name}", total=None)
                measurement, run = calibration.measure_pair(
                    client,
                    base,
                    update,
                    measured,
                    name,
                    lambda at: progress.update(
                        task,
                        description=f"base -> {name}, arm {at.arm}",
                        completed=at.done,
                        total=at.total,
                    ),
                )
            pair = calibration.record(service.address, measurement, run)
        self.outcome.pairs[name] = pair
        for line in calibration.evidence_lines(pair):
            self._console.print(f"  {name}: {line}", highlight=False, soft_wrap=True)
        if name == "strong":
            self.outcome.harm = calibration.find_harm(measured, pair)

    def _walk(
        self,
        walk: Walk,
        client: EngineClient,
        updates: dict[str, Path],
        prefixes: tuple[documents.ServedPrefix, ...],
        service: CompatServiceProcess,
    ) -> None:
        with self._phase("mild update"):
            self._add(walk.step("mild", updates["mild"], prefixes))
        with self._phase("strong update"):
            self._strong_step(walk, client, updates["strong"], prefixes)
        with self._phase("unknown update"):
            self._add(walk.step("unknown", updates["unknown"], prefixes))
        with self._phase("mild update while the service is stopped"):
            self._add(
                walk.step(
                    "mild, service down",
                    updates["mild"],
                    prefixes,
                    before_update=lambda _: self._session.stop(service),
                )
            )

    def _strong_step(
        self,
        walk: Walk,
        client: EngineClient,
        update: Path,
        prefixes: tuple[documents.ServedPrefix, ...],
    ) -> None:
        harm, live = self.outcome.harm, self.outcome.live
        if harm is None:
            self.outcome.failures.append(
                "strong: no measured item is right by the target and wrong under reuse"
            )
            self._add(walk.step("strong", update, prefixes))
            return
        # The prompt that reuse answers wrong is among those that are cached now.
        timing = prefixes[0].question_ids
        shown = documents.ServedPrefix("harm", harm.document.prefix_ids, timing)
        prompt = (*harm.document.prefix_ids, *harm.question_ids)

        def ask(cache_salt: str) -> str:
            return client.generate(
                prompt,
                max_new_tokens=documents.NEEDLE_TASK.max_new_tokens,
                cache_salt=cache_salt,
            ).text

        def ask_before(cache_salt: str) -> None:
            live.before = ask(cache_salt)

        def ask_after(cache_salt: str) -> None:
            live.after = ask(cache_salt)

        self._add(
            walk.step(
                "strong",
                update,
                (shown, *prefixes[1:]),
                before_update=ask_before,
                after_update=ask_after,
            )
        )
        if not is_correct(live.after, harm.gold):
            self.outcome.failures.append(
                f"strong: after the eviction the server answered {live.after!r}, "
                f"expected {harm.gold}"
            )

    def _add(self, step: StepResult) -> None:
        self.outcome.steps.append(step)
        self.outcome.failures += checks.failures_of_step(step)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._console.print(f"[bold]{escape(name)}[/] ...")
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self.outcome.seconds[name] = seconds
        self._console.print(f"  done in {seconds:.1f} s", style="dim", highlight=False)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: 0 when all was as stated, 1 when not, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--keep", action="store_true", help="keep the work folder with the logs")
    arguments = parser.parse_args(argv)
    console = Console(width=None if Console().is_terminal else 150)
    for number in END_SIGNALS:
        signal.signal(number, _interrupt)
    session = Session()
    code = _guarded(console, lambda: _run(console, session, arguments.json))
    if code == 0 and not arguments.keep:
        session.remove_folder()
    else:
        console.print(f"logs, database and configuration: {session.folder}", highlight=False)
    return code


def _run(console: Console, session: Session, json_path: Path | None) -> int:
    started = time.monotonic()
    with session:
        outcome = Demo(console, session).run()
    outcome.seconds["total"] = time.monotonic() - started
    console.print()
    console.print(show.results_table(outcome.steps, documents.PREFIX_TOKENS, SERVED_PREFIXES))
    if outcome.harm is not None:
        console.print(show.harm_panel(outcome.harm, outcome.live))
    stock, mild = outcome.steps[0], outcome.steps[1]
    console.print(
        f"Mild update: TTFT after the reload is {mild.after_to_warm_ratio:.2f} x warm and "
        f"{stock.after.median_ms / mild.after.median_ms:.1f} x faster than after stock SGLang's "
        "flush, on this CPU.",
        highlight=False,
    )
    console.print(
        f"The policy {POLICY!r} lets a few items decide: it shows the chain and proves nothing "
        "about rare harm. Serve users under 'standard' or 'strict'."
    )
    if json_path is not None:
        show.write_json(json_path, outcome.to_json())
    show.print_failures(console, outcome.failures)
    verdict = "[bold red]FAILED[/]" if outcome.failures else "[bold green]All as stated[/]"
    console.print(f"{verdict} after {outcome.seconds['total']:.0f} s.", highlight=False)
    return 1 if outcome.failures else 0


def _guarded(console: Console, run: Callable[[], int]) -> int:
    try:
        return run()
    except KeyboardInterrupt:
        console.print("[bold red]interrupted[/]; every process was stopped")
        return 130
    except (XverError, TestbedError, ProcessFailedError, subprocess.SubprocessError) as error:
        console.print(f"[bold red]{type(error).__name__}:[/] {escape(str(error))}")
        return 1


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
