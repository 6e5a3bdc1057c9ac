"""The main process's side of every update: identify, check, decide, push."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sglang_xver.ask import CompatAsker, PairContext
from sglang_xver.client import Engine
from sglang_xver.config import XverConfig, load_config
from sglang_xver.decision import PlanRequest, SourceEpoch, age_after_update, make_plan
from sglang_xver.engine.tree import INITIAL_EPOCH_KEY
from sglang_xver.engine.updates import CONDEMN_KEY_PREFIX, UPDATE_ID_FIELD
from sglang_xver.errors import CheckpointError, XverError
from sglang_xver.identity import Checkpoint, inspect_checkpoint, require_same_tensors

logger = logging.getLogger(__name__)

PushControl = Callable[[Any, str], Awaitable[bool]]

_FINGERPRINTED_LOAD_FORMATS = (None, "auto", "safetensors")


def resolve_model_folder(model_path: str, revision: str | None = None) -> Path:
    """Return the local folder of ``model_path``: itself, or its snapshot in the local hub cache.

    ``revision`` is the server's ``--revision``, which SGLang applies to updates as well.

    Raises:
        CheckpointError: neither exists on this machine.
    """
    folder = Path(model_path)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model_path, revision=revision, local_files_only=True))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"model_path {model_path!r} is neither a folder on this machine nor in the local hub "
            "cache. Weights were not touched. Give an existing folder, or download it first."
        ) from error


class UpdateGate:
    """Knows what is served, and prepares one plan per update. Lives in the main process."""

    def __init__(
        self, config: XverConfig, initial: Checkpoint | None, revision: str | None = None
    ) -> None:
        self.config = config
        self.lock = asyncio.Lock()
        self._asker = CompatAsker(config)
        self._revision = revision
        self._initial = initial
        self._reference = initial
        self._checkpoints: dict[str, Checkpoint] = {}
        self._labels: dict[str, str] = {}
        self._ages: dict[str, int] = {}
        self._pending: Checkpoint | None = None
        self._present: list[str] = []
        if initial is not None:
            self._checkpoints[initial.fingerprint] = initial

    @classmethod
    def from_server(
        cls, model_path: str, load_format: str | None, revision: str | None = None
    ) -> UpdateGate:
        """Fingerprint the checkpoint that the server was started with; unknown if that fails."""
        config = load_config()
        initial: Checkpoint | None = None
        try:
            if load_format not in _FINGERPRINTED_LOAD_FORMATS:
                raise CheckpointError(f"load format {load_format!r} has no content fingerprint")
            initial = inspect_checkpoint(
                resolve_model_folder(model_path, revision), config.full_hash_limit_bytes
            )
            logger.info("xver: serving %s", initial.fingerprint)
        except CheckpointError as error:
            logger.warning("xver: served version unknown, the first update evicts: %s", error)
        return cls(config, initial, revision)

    # ---- identity ----

    def _key_of(self, fingerprint: str) -> str:
        is_initial = self._initial is not None and fingerprint == self._initial.fingerprint
        return INITIAL_EPOCH_KEY if is_initial else fingerprint

    def _fingerprint_of(self, key: str) -> str:
        if key == INITIAL_EPOCH_KEY:
            return "" if self._initial is None else self._initial.fingerprint
        return key if key in self._checkpoints else ""

    def _require_initial_is_what_was_loaded(self, loaded_stamp: str) -> None:
        """Forget the initial fingerprint if the files changed between it and the load."""
        if self._initial is not None and loaded_stamp != self._initial.stamp_digest:
            logger.warning("xver: the checkpoint changed while the server started; unknown version")
            self._checkpoints.pop(self._initial.fingerprint, None)
            self._initial = None

    def _remember(self, update: Checkpoint, present: list[str]) -> None:
        """Keep the checkpoints whose KV may be in the tree, and the initial one; drop the rest."""
        needed = {self._fingerprint_of(key) for key in present}
        if self._initial is not None:
            needed.add(self._initial.fingerprint)
        self._checkpoints = {
            fingerprint: checkpoint
            for fingerprint, checkpoint in self._checkpoints.items()
            if fingerprint in needed
        }
        self._checkpoints[update.fingerprint] = update
        self._labels = {
            fingerprint: label
            for fingerprint, label in self._labels.items()
            if fingerprint in self._checkpoints
        }

    def forget_pending(self) -> None:
        """Drop what was prepared for an update that goes ahead without a plan."""
        self._pending = None

    # ---- one update ----

    async def prepare(self, manager: Any, obj: Any, push: PushControl) -> None:
        """Check the checkpoint of update ``obj``, decide, and push the plan.

        Binds the plan to the update through ``obj.manifest``.

        Raises:
            CheckpointError: the checkpoint doesn't exist or doesn't fit; nothing was dispatched.
        """
        self._pending = None
        load_format = obj.load_format or manager.config_value("load_format")
        if load_format not in _FINGERPRINTED_LOAD_FORMATS:
            logger.warning("xver: load format %r has no fingerprint, evicting", load_format)
            return
        folder = await asyncio.to_thread(resolve_model_folder, obj.model_path, self._revision)
        update = await asyncio.to_thread(
            inspect_checkpoint, folder, self.config.full_hash_limit_bytes
        )
        if self._reference is not None:
            require_same_tensors(self._reference, update)
        status = (await manager.get_internal_state())[0]["xver"]
        self._require_initial_is_what_was_loaded(status["initial_stamp"])
        present = [*status["epochs_present"], status["current_epoch"]]
        self._remember(update, present)
        if obj.weight_version is not None:
            self._labels[update.fingerprint] = obj.weight_version
        request = self._plan_request(obj, update, status)
        context = PairContext(
            checkpoints=dict(self._checkpoints),
            labels=dict(self._labels),
            layout=status["layout"],
            target=update,
            engine=Engine(**status["engine"]),
        )
        plan = await asyncio.to_thread(
            make_plan, request, lambda source: self._asker.ask(source, context)
        )
        logger.info("xver plan: %s", plan.model_dump_json())
        if not await push(manager, plan.to_wire()):
            raise XverError("a scheduler refused the plan; see its log")
        obj.manifest = {**(obj.manifest or {}), UPDATE_ID_FIELD: plan.update_id}
        self._pending = update
        self._present = present

    def _plan_request(self, obj: Any, update: Checkpoint, status: dict[str, Any]) -> PlanRequest:
        keys = dict.fromkeys([status["current_epoch"], *status["epochs_present"]])
        reference = self._reference
        differences = () if reference is None else reference.geometry.differences(update.geometry)
        return PlanRequest(
            update_id=uuid.uuid4().hex,
            model_path=obj.model_path,
            target_key=self._key_of(update.fingerprint),
            target_fingerprint=update.fingerprint,
            sources=tuple(
                SourceEpoch(key, self._fingerprint_of(key), self._ages.get(key, 0)) for key in keys
            ),
            task_families=self.config.task_families,
            max_age_updates=self.config.max_age_updates,
            geometry_differences=tuple(differences),
        )

    async def conclude(self, manager: Any, success: bool, push: PushControl) -> str:
        """Count the update; evict once more if the files changed while they were being loaded.

        Returns a sentence for the reply, empty when there is nothing to add.
        """
        update, self._pending = self._pending, None
        if update is None or not success:
            return ""
        current = self._key_of(update.fingerprint)
        self._ages = age_after_update(self._ages, {*self._present, current}, current)
        if await asyncio.to_thread(update.is_unchanged):
            if self._reference is None:
                self._reference = update
            return ""
        logger.error("xver: %s changed while it was loaded; evicting", update.path)
        evicted = await push(manager, CONDEMN_KEY_PREFIX + "CHECKPOINT_CHANGED")
        outcome = "everything was evicted" if evicted else "EVICTION FAILED, call /flush_cache"
        return (
            f" xver: the checkpoint changed while it was loaded, its content is unknown; {outcome}."
        )
