"""The main process's side of every update: identify, check, decide, push."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from sglang_xver.ask import CompatAsker, PairContext
from sglang_xver.client import Engine
from sglang_xver.config import XverConfig, load_config
from sglang_xver.decision import Ask, PlanRequest, SourceEpoch, make_plan
from sglang_xver.engine.tree import INITIAL_EPOCH_KEY
from sglang_xver.engine.updates import CONDEMN_KEY_PREFIX, UPDATE_ID_FIELD
from sglang_xver.errors import CheckpointError, XverError
from sglang_xver.identity import Checkpoint, inspect_checkpoint, require_same_tensors

logger = logging.getLogger(__name__)

PushControl = Callable[[Any, str], Awaitable[bool]]

_MAX_LABELS = 1000
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


async def _status(manager: Any) -> dict[str, Any]:
    """Return the schedulers' view, which is the truth about what is served and cached."""
    status: dict[str, Any] = (await manager.get_internal_state())[0]["xver"]
    return status


class UpdateGate:
    """Knows what is served, and prepares one plan per update. Lives in the main process."""

    def __init__(
        self,
        config: XverConfig,
        initial: Checkpoint | None,
        revision: str | None = None,
        initial_label: str = "",
    ) -> None:
        self.config = config
        self.lock = asyncio.Lock()
        self._asker = CompatAsker(config)
        self._revision = revision
        self._initial = initial
        self._reference = initial
        self._checkpoints: dict[str, Checkpoint] = {}
        self._label_owner: dict[str, str] = {}
        if initial is not None:
            self._checkpoints[initial.identity_key] = initial
            self._label_owner[initial_label] = initial.fingerprint

    @classmethod
    def from_server(cls, server_args: Any) -> UpdateGate:
        """Fingerprint the checkpoint that the server was started with; unknown if that fails."""
        from sglang.srt.arg_groups.overrides import resolved_view

        model_path = server_args.model_path
        load_format = resolved_view(server_args).load_format
        revision = server_args.revision
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
        return cls(config, initial, revision, server_args.weight_version)

    # ---- identity ----

    def _key_of(self, checkpoint: Checkpoint) -> str:
        initial = self._initial
        is_initial = initial is not None and checkpoint.identity_key == initial.identity_key
        return INITIAL_EPOCH_KEY if is_initial else checkpoint.identity_key

    def _checkpoint_of(self, key: str) -> Checkpoint | None:
        return self._initial if key == INITIAL_EPOCH_KEY else self._checkpoints.get(key)

    def _source(self, key: str, ages: dict[str, int]) -> SourceEpoch:
        checkpoint = self._checkpoint_of(key)
        fingerprint = "" if checkpoint is None else checkpoint.fingerprint
        return SourceEpoch(key, fingerprint, ages.get(key, 0))

    def _label_conflict(self, label: str | None, fingerprint: str) -> str:
        """Note who bears ``label``; return a sentence if it named other bytes before."""
        if label is None:
            return ""
        owner = self._label_owner.pop(label, fingerprint)
        self._label_owner[label] = fingerprint
        while len(self._label_owner) > _MAX_LABELS:
            self._label_owner.pop(next(iter(self._label_owner)))
        if owner == fingerprint:
            return ""
        return f"label {label!r} named {owner}, now {fingerprint}: which one is served is in doubt"

    async def label_changed(self, manager: Any, label: str) -> None:
        """Note that ``label`` names what is served, though no weights were loaded with it."""
        key = (await _status(manager))["current_epoch"]
        checkpoint = self._checkpoint_of(key)
        # Weights of unknown content equal nothing, so the label is in doubt wherever it comes up.
        owner = f"{key}:{uuid.uuid4().hex}" if checkpoint is None else checkpoint.fingerprint
        conflict = self._label_conflict(label, owner)
        if conflict:
            logger.warning("xver: %s", conflict)

    def _require_initial_is_what_was_loaded(self, loaded_stamp: str) -> None:
        """Forget the initial fingerprint if the files changed between it and the load."""
        if self._initial is not None and loaded_stamp != self._initial.stamp_digest:
            logger.warning("xver: the checkpoint changed while the server started; unknown version")
            self._checkpoints.pop(self._initial.identity_key, None)
            self._initial = None

    def _remember(self, update: Checkpoint, present: Sequence[str]) -> None:
        """Keep the checkpoints whose KV may be in the tree, and the initial one; drop the rest."""
        needed = [self._checkpoint_of(key) for key in present]
        self._checkpoints = {
            checkpoint.identity_key: checkpoint
            for checkpoint in (*needed, self._initial, update)
            if checkpoint is not None
        }

    # ---- one update ----

    async def prepare(self, manager: Any, obj: Any, push: PushControl) -> Checkpoint | None:
        """Check the checkpoint of update ``obj``, decide, and push the plan; return the checkpoint.

        Binds the plan to the update through ``obj.manifest``. None where the content has no
        fingerprint: there is no plan then, and the schedulers evict.

        Raises:
            CheckpointError: the checkpoint doesn't exist or doesn't fit; nothing was dispatched.
        """
        load_format = obj.load_format or manager.config_value("load_format")
        if load_format not in _FINGERPRINTED_LOAD_FORMATS:
            logger.warning("xver: load format %r has no fingerprint, evicting", load_format)
            return None
        folder = await asyncio.to_thread(resolve_model_folder, obj.model_path, self._revision)
        # What is loaded must be what was fingerprinted, whatever the hub says by then.
        obj.model_path = str(folder)
        update = await asyncio.to_thread(
            inspect_checkpoint, folder, self.config.full_hash_limit_bytes
        )
        if self._reference is not None:
            require_same_tensors(self._reference, update)
        status = await _status(manager)
        self._require_initial_is_what_was_loaded(status["initial_stamp"])
        present = tuple(dict.fromkeys([status["current_epoch"], *status["epochs_present"]]))
        self._remember(update, present)
        request = self._plan_request(obj, update, present, status["ages_updates"])
        plan = await asyncio.to_thread(make_plan, request, self._ask(update, status))
        logger.info("xver plan: %s", plan.model_dump_json())
        if not await push(manager, plan.to_wire()):
            raise XverError("a scheduler refused the plan; see its log")
        obj.manifest = {**(obj.manifest or {}), UPDATE_ID_FIELD: plan.update_id}
        return update

    def _ask(self, update: Checkpoint, status: dict[str, Any]) -> Ask:
        context = PairContext(
            checkpoints={c.fingerprint: c for c in self._checkpoints.values()},
            labels={owner: label for label, owner in self._label_owner.items()},
            layout=status["layout"],
            target=update,
            engine=Engine(**status["engine"]),
        )
        return lambda source: self._asker.ask(source, context)

    def _plan_request(
        self, obj: Any, update: Checkpoint, present: Sequence[str], ages: dict[str, int]
    ) -> PlanRequest:
        reference = self._reference
        differences = () if reference is None else reference.geometry.differences(update.geometry)
        return PlanRequest(
            update_id=uuid.uuid4().hex,
            model_path=obj.model_path,
            target_key=self._key_of(update),
            target_fingerprint=update.fingerprint,
            sources=tuple(self._source(key, ages) for key in present),
            task_families=self.config.task_families,
            max_age_updates=self.config.max_age_updates,
            geometry_differences=tuple(differences),
            label_conflict=self._label_conflict(obj.weight_version, update.fingerprint),
        )

    async def conclude(self, manager: Any, update: Checkpoint, push: PushControl) -> str:
        """Evict once more if the files of ``update`` changed while they were being loaded.

        Returns a sentence for the reply, empty when there is nothing to add.
        """
        if await asyncio.to_thread(update.is_unchanged):
            if self._reference is None:
                self._reference = update
            return ""
        logger.error("xver: %s changed while it was loaded; evicting", update.path)
        evicted = await push(manager, CONDEMN_KEY_PREFIX + "CHECKPOINT_CHANGED")
        outcome = "everything was evicted" if evicted else "EVICTION FAILED, call /flush_cache"
        return f" xver: the checkpoint changed while it was loaded and is unknown; {outcome}."
