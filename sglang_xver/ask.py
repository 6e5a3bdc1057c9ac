"""Asks the compatibility service about one pair, with earlier answers as a fallback."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sglang_xver.client import CacheLayout, CompatAnswer, CompatClient, Engine, ModelVersion
from sglang_xver.config import XverConfig
from sglang_xver.decision import SourceEpoch
from sglang_xver.errors import ServiceError, ServiceUnavailableError
from sglang_xver.identity import Checkpoint

logger = logging.getLogger(__name__)


class PairContext(NamedTuple):
    """What the main process knows about the versions, the cache and the engine of this server.

    ``checkpoints`` and ``labels`` are keyed by fingerprint; ``layout`` is None when unknown.
    """

    checkpoints: dict[str, Checkpoint]
    labels: dict[str, str]
    layout: dict[str, Any] | None
    target: Checkpoint
    engine: Engine


@dataclass(frozen=True)
class KeptAnswer:
    """An answer and when it came, in seconds since the epoch."""

    answer: CompatAnswer
    answered_at_s: float


_KEPT_ANSWERS = TypeAdapter(dict[str, KeptAnswer])


class LastGoodAnswers:
    """Earlier answers by question, in memory and, with a path, in a file that survives restarts.

    An answer older than ``max_age_s`` is never returned. A file that can't be read or written is
    logged and done without: it only ever saves an eviction.
    """

    def __init__(self, path: Path | None, max_age_s: float) -> None:
        self._path = path
        self._max_age_s = max_age_s
        self._answers: dict[str, KeptAnswer] = self._load()

    def get(self, question: str) -> CompatAnswer | None:
        """Return the kept answer to ``question`` unless there is none or it is too old."""
        kept = self._answers.get(question)
        return kept.answer if kept is not None and self._is_young(kept) else None

    def put(self, question: str, answer: CompatAnswer) -> None:
        """Keep ``answer``, replacing an earlier one to the same question, and drop old ones."""
        if self._max_age_s == 0:
            return
        self._answers[question] = KeptAnswer(answer, time.time())
        self._answers = {key: k for key, k in self._answers.items() if self._is_young(k)}
        self._save()

    def _is_young(self, kept: KeptAnswer) -> bool:
        return 0 <= time.time() - kept.answered_at_s <= self._max_age_s

    def _load(self) -> dict[str, KeptAnswer]:
        if self._path is None or not self._path.is_file():
            return {}
        try:
            return _KEPT_ANSWERS.validate_json(self._path.read_bytes())
        except (OSError, ValidationError) as error:
            logger.warning("xver: last good answers in %s ignored: %s", self._path, error)
            return {}

    def _save(self) -> None:
        if self._path is None:
            return
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(_KEPT_ANSWERS.dump_json(self._answers))
            temporary.replace(self._path)
        except OSError as error:
            logger.warning("xver: last good answers not written to %s: %s", self._path, error)


class CompatAsker:
    """Puts one question per source epoch to the service; used from the main process only."""

    def __init__(self, config: XverConfig) -> None:
        self._config = config
        self._client = CompatClient(config.service, timeout_s=config.timeout_ms / 1000)
        self._last_good = LastGoodAnswers(config.last_good_path, config.last_good_max_age_s)

    def ask(self, source: SourceEpoch, context: PairContext) -> CompatAnswer:
        """Return the service's answer, or an earlier one while the service is out of reach.

        Raises:
            ServiceUnavailableError: out of reach and no earlier answer that is young enough.
            ServiceError: the service refused the question, or the layout is unknown.
        """
        if context.layout is None:
            raise ServiceError("the layout of this server's KV cache is unknown; see its log")
        layout = CacheLayout(**context.layout)
        question = self._question(source, context, layout)
        try:
            answer = self._client.check_compat(
                _version(context.checkpoints[source.fingerprint], context.labels),
                _version(context.target, context.labels),
                layout=layout,
                engine=context.engine,
                task_families=self._config.task_families,
                policy=self._config.policy,
                client_name=self._config.server_name,
            )
        except ServiceUnavailableError as error:
            kept = self._last_good.get(question)
            if kept is None:
                raise
            logger.warning("xver: service out of reach, using the last good answer: %s", error)
            return kept
        self._last_good.put(question, answer)
        return answer

    def _question(self, source: SourceEpoch, context: PairContext, layout: CacheLayout) -> str:
        """Return the identity of a question; all that the answer depends on is in it."""
        return json.dumps(
            [
                self._config.service,
                source.fingerprint,
                context.target.fingerprint,
                layout.digest,
                context.engine.version,
                context.engine.attention_backend,
                self._config.policy,
                sorted(self._config.task_families),
            ]
        )


def _version(checkpoint: Checkpoint, labels: dict[str, str]) -> ModelVersion:
    return ModelVersion(
        label=labels.get(checkpoint.fingerprint, ""),
        fingerprint=checkpoint.fingerprint,
        family=checkpoint.model_type,
        tokenizer_digest=checkpoint.tokenizer_digest,
    )
