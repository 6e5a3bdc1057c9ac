"""The operator: reloads weights in every way a trainer does, with and without a pause."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.driver import Driver, Updated
from tests.soak.records import History, Stage

PAUSES = ("", "", "abort", "retract", "retract", "in_place", "in_place")
_LABELS = itertools.count(1)


class Operator:
    """Changes the weights of one server and notes each change in ``history``."""

    def __init__(
        self,
        driver: Driver,
        history: History,
        checkpoints: Mapping[str, Path],
        rng: random.Random,
        *,
        broken: tuple[Path, ...] = (),
        always_keep: bool = False,
    ) -> None:
        """Prepare.

        Args:
            broken: paths whose update must be refused.
            always_keep: never flush and never pause: what stock SGLang serves stale KV with.
        """
        self.driver = driver
        self.history = history
        self.checkpoints = dict(checkpoints)
        self.rng = rng
        self.broken = broken
        self.always_keep = always_keep
        self.outcomes: Counter[str] = Counter()
        self.pauses: Counter[str] = Counter()
        self.problems: list[str] = []

    def act(self) -> None:
        """Do one thing at random; the server is never left paused."""
        pause = "" if self.always_keep else self.rng.choice(PAUSES)
        self.pauses[pause or "none"] += 1
        if pause:
            self.driver.pause(pause)
        try:
            for _ in range(1 if self.rng.random() < 0.85 else 2):
                self._step(bool(pause))
        finally:
            if pause:
                self.driver.resume()

    def _step(self, is_paused: bool) -> None:
        rng = self.rng
        if self.always_keep:
            self._update(flush_cache=False)
            return
        if is_paused:
            time.sleep(rng.choice((0.0, 0.0, 0.05, 0.3)))
        chance = rng.random()
        if chance < 0.10:
            self._flush()
        elif chance < 0.20 and self.broken:
            self._broken_update()
        else:
            self._update(flush_cache=rng.random() < 0.5, abort_all_requests=rng.random() < 0.1)
            if rng.random() < 0.1:
                self._flush()

    def _flush(self) -> None:
        self.outcomes["flush:" + ("done" if self.driver.try_flush() else "refused")] += 1

    def _broken_update(self) -> None:
        path = self.rng.choice(self.broken)
        reply = self.driver.update(path, weight_version=f"{next(_LABELS)}-broken")
        self.outcomes["refused:" + ("shape" if "has shape" in reply.message else "path")] += 1
        if reply.success or "eights were not touched" not in reply.message:
            self.problems.append(f"update to {path} was not refused: {reply}")

    def _update(self, **options: Any) -> None:
        rng = self.rng
        served = self.history.current.checkpoint
        others = sorted(self.checkpoints.keys() - {served})
        name = served if rng.random() < 0.12 else rng.choice(others)
        is_labelled = rng.random() < 0.8
        label = f"{next(_LABELS)}-{name}" if is_labelled else self.history.current.label
        if is_labelled:
            options["weight_version"] = label
        started = time.monotonic()
        reply = self.driver.update(self.checkpoints[name], **options)
        answered = time.monotonic()
        if not reply.success:
            self.problems.append(f"update to {name} failed: {reply}")
            return
        self._note(reply, options, Stage(label, name, started), answered)
        if not is_labelled and rng.random() < 0.5:
            self._relabel(f"{next(_LABELS)}-{name}")

    def _note(
        self, reply: Updated, options: dict[str, Any], stage: Stage, answered_s: float
    ) -> None:
        fields = reply.xver
        action = fields.get("action", "none")
        self.outcomes[f"{action}:{fields.get('reason', '-')}"] += 1
        before = self.history.current
        stage.may_hold_old = action == "KEEP" or (action == "SAME" and before.may_hold_old)
        stage.straddlers = int(fields.get("straddling_requests", 0))
        stage.changed_by = {**options, "message": reply.message}
        self.history.change(stage, answered_s)

    def _relabel(self, label: str) -> None:
        before = self.history.current
        stage = Stage(label, before.checkpoint, time.monotonic())
        self.driver.relabel(label)
        stage.may_hold_old = before.may_hold_old
        stage.changed_by = {"relabelled": True}
        self.history.change(stage, time.monotonic())
        self.outcomes["relabelled"] += 1
