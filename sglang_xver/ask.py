"""Asks the compatibility service about one pair, with earlier answers as a fallback."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

CompatClient = object
from sglang_xver.config import XverConfig
from sglang_xver.decision import SourceEpoch, Verdict, VerdictRule
from sglang_xver.errors import ServiceError, ServiceUnavailableError
from sglang_xver.identity import Checkpoint

logger = logging.getLogger(__name__)


class PairContext(NamedTuple):
    """What the main process knows about the versions and the cache of this server."""

    checkpoints: dict[str, Checkpoint]
    labels: dict[str, str]
    layout: dict[str, Any] | None
    target: Checkpoint


@dataclass(frozen=True)
class _KeptAnswer:
    verdict: Verdict
    answered_at_s: float


class LastGoodAnswers:
    """Earlier answers by question, in memory and, with a path, in a file that survives restarts.

    An answer older than ``max_age_s`` is never returned. A file that can't be read or written is
    logged and does without: it only ever saves an eviction.
    """

    def __init__(self, path: Path | None, max_age_s: float) -> None:
        self._path = path
        self._max_age_s = max_age_s
        self._answers: dict[str, _KeptAnswer] = self._load()

    def get(self, question: str) -> Verdict | None:
        """Return the kept answer to ``question`` unless there is none or it is too old."""
        kept = self._answers.get(question)
        if kept is None or not 0 <= time.time() - kept.answered_at_s <= self._max_age_s:
            return None
        return kept.verdict

    def put(self, question: str, verdict: Verdict) -> None:
        """Keep ``verdict``, replacing an earlier answer to the same question."""
        if self._max_age_s == 0:
            return
        self._answers[question] = _KeptAnswer(verdict, time.time())
        self._save()

    def _load(self) -> dict[str, _KeptAnswer]:
        if self._path is None or not self._path.is_file():
            return {}
        try:
            raw = json.loads(self._path.read_text())
            return {
                question: _KeptAnswer(
                    Verdict(
                        **{
                            **entry["verdict"],
                            "rules": tuple(VerdictRule(*rule) for rule in entry["verdict"]["rules"]),
                        }
                    ),
                    float(entry["answered_at_s"]),
                )
                for question, entry in raw.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("xver: last good answers in %s ignored: %r", self._path, error)
            return {}

    def _save(self) -> None:
        if self._path is None:
            return
        content = {
            question: {"verdict": asdict(kept.verdict), "answered_at_s": kept.answered_at_s}
            for question, kept in self._answers.items()
        }
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(content))
            temporary.replace(self._path)
        except OSError as error:
            logger.warning("xver: last good answers not written to %s: %r", self._path, error)


class CompatAsker:
    """Puts one question per source epoch to the service; used from the main process only."""

    def __init__(self, config: XverConfig) -> None:
        self._config = config
        self._client: CompatClient | None = None
        self._last_good = LastGoodAnswers(config.last_good_path, config.last_good_max_age_s)

    def ask(self, source: SourceEpoch, context: PairContext) -> Verdict:
        """Return the service's verdict, or an earlier one while the service is out of reach.

        Raises:
            ServiceUnavailableError: out of reach and no earlier answer that is young enough.
            ServiceError: the service refused the question, or the layout is unknown.
        """
        if context.layout is None:
            raise ServiceError("the layout of this server's KV cache is unknown")
        question = self._question(source, context)
        try:
            verdict = self._ask_service(source, context, context.layout)
        except ServiceUnavailableError as error:
            kept = self._last_good.get(question)
            if kept is None:
                raise
            logger.warning("xver: service out of reach, using the last good answer: %s", error)
            return kept
        self._last_good.put(question, verdict)
        return verdict

    def _question(self, source: SourceEpoch, context: PairContext) -> str:
        layout = {} if context.layout is None else context.layout
        return "|".join(
            [
                source.fingerprint,
                context.target.fingerprint,
                str(layout.get("digest")),
                self._config.policy,
                ",".join(self._config.task_families),
            ]
        )

    def _ask_service(
        self, source: SourceEpoch, context: PairContext, layout: dict[str, Any]
    ) -> Verdict:
        raise ServiceUnavailableError("the service client is not connected")
