"""Hooks that run in SGLang's main process: decide once per update, before it is dispatched."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from sglang_xver.engine.gate import UpdateGate
from sglang_xver.engine.scheduler_hooks import CONTROL_KEY_PREFIXES
from sglang_xver.engine.updates import CONDEMN_KEY_PREFIX
from sglang_xver.errors import CheckpointError
from sglang_xver.fidelity import parse_hint
from sglang_xver.identity import Checkpoint

logger = logging.getLogger(__name__)

_is_own_message: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "xver_own_message", default=False
)


# The event loop holds tasks weakly; this keeps an update alive whose caller went away.
_updates: set[asyncio.Future[Any]] = set()


async def push_control(manager: Any, key: str) -> bool:
    """Put ``key`` into the ordered control stream; True when every scheduler took it."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    token = _is_own_message.set(True)
    try:
        answers = await manager.set_internal_state(SetInternalStateReq(server_args={key: 1}))
    finally:
        _is_own_message.reset(token)
    return bool(answers) and all(answers)


async def push_condemn(manager: Any, reason: str) -> bool:
    """Have every scheduler evict; False, after a log entry, when that can't be known."""
    try:
        return await push_control(manager, CONDEMN_KEY_PREFIX + reason)
    except Exception:
        logger.exception("xver: whether the schedulers evicted (%s) is unknown", reason)
        return False


def after_init(result: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``TokenizerManager.__init__``: fingerprint what the server was started with."""
    server_args = manager.server_args
    if getattr(server_args, "radix_cache_backend", None) != "xver":
        return
    manager.xver_gate = UpdateGate.from_server(server_args)


async def around_set_internal_state(
    original: Callable[..., Awaitable[Any]], manager: Any, obj: Any
) -> Any:
    """AROUND ``TokenizerManager.set_internal_state``: nobody else may send our messages."""
    forged = [key for key in obj.server_args if key.startswith(CONTROL_KEY_PREFIXES)]
    if forged and not _is_own_message.get():
        logger.error("xver: refused a control message that did not come from this plugin")
        return [False]
    return await original(manager, obj)


def after_create_tokenized_object(result: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER ``TokenizerManager._create_tokenized_object``: refuse a malformed hint.

    Every request passes here once, after the server's preferred sampling parameters were merged.

    Raises:
        HintError: SGLang answers it with HTTP 400.
    """
    if getattr(manager, "xver_gate", None) is not None:
        parse_hint(result.sampling_params.custom_params)


async def around_update_version(
    original: Callable[..., Awaitable[Any]], manager: Any, obj: Any
) -> Any:
    """AROUND ``TokenizerManager.update_weight_version``: a label without weights."""
    result = await original(manager, obj)
    gate: UpdateGate | None = getattr(manager, "xver_gate", None)
    if gate is not None and gate.config.mode != "off":
        await _note_label(gate, manager, obj.new_version)
    return result


async def around_unfingerprinted_update(
    original: Callable[..., Awaitable[Any]], manager: Any, obj: Any, request: Any = None
) -> Any:
    """AROUND the updates whose content nobody fingerprints: their label is noted all the same."""
    result = await original(manager, obj, request)
    gate: UpdateGate | None = getattr(manager, "xver_gate", None)
    if gate is not None and gate.config.mode != "off" and obj.weight_version is not None:
        await _note_label(gate, manager, obj.weight_version)
    return result


async def _note_label(gate: UpdateGate, manager: Any, label: str) -> None:
    try:
        async with gate.lock:
            await gate.label_changed(manager, label)
    except Exception:
        # The label is only a second opinion: what is kept is decided by content.
        logger.exception("xver: label %r was not noted", label)


async def around_update_from_disk(
    original: Callable[..., Awaitable[Any]], manager: Any, obj: Any, request: Any = None
) -> Any:
    """AROUND ``TokenizerManager.update_weights_from_disk``.

    An update that was dispatched is seen through even if the caller goes away: the schedulers
    apply it either way, and what follows it must not be lost.
    """
    gate: UpdateGate | None = getattr(manager, "xver_gate", None)
    if gate is None or gate.config.mode == "off":
        return await original(manager, obj, request)
    update = asyncio.ensure_future(_update_from_disk(original, manager, obj, request, gate))
    _updates.add(update)
    update.add_done_callback(_updates.discard)
    return await asyncio.shield(update)


async def _conclude(gate: UpdateGate, manager: Any, update: Checkpoint) -> str:
    try:
        async with gate.lock:
            return await gate.conclude(manager, update, push_control)
    except Exception:
        logger.exception("xver: whether the checkpoint changed while it was loaded is unknown")
        evicted = await push_condemn(manager, "NOT_CONCLUDED")
        outcome = "everything was evicted" if evicted else "EVICTION FAILED, call /flush_cache"
        return f" xver: the loaded checkpoint could not be checked again; {outcome}."


async def _update_from_disk(
    original: Callable[..., Awaitable[Any]], manager: Any, obj: Any, request: Any, gate: UpdateGate
) -> Any:
    prepared: Checkpoint | None = None
    # Not held while SGLang waits for running requests: an update must never block the next one.
    # A plan that is overtaken is void, and the schedulers evict.
    async with gate.lock:
        try:
            prepared = await gate.prepare(manager, obj, push_control)
        except CheckpointError as error:
            logger.error("xver: update refused: %s", error)
            return False, str(error), 0
        except Exception:
            # Without a plan for this update the schedulers evict, which is always safe.
            logger.exception("xver: no decision for the update; the schedulers will evict")
    try:
        success, message, num_paused = await original(manager, obj, request)
    except Exception:
        # Whether the schedulers applied the plan can't be told from here.
        await push_condemn(manager, "UPDATE_RAISED")
        raise
    if success and prepared is not None:
        message += await _conclude(gate, manager, prepared)
    return success, message, num_paused
