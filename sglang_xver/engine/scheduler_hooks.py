"""Hooks that run in scheduler processes. Inert unless the server's tree cache is the xver one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_xver.engine.audit import AUDIT_KEY_PREFIX
from sglang_xver.engine.cache import XverRadixCache
from sglang_xver.engine.updates import CONDEMN_KEY_PREFIX, UpdateController
from sglang_xver.plan import PLAN_KEY_PREFIX

logger = logging.getLogger(__name__)

CONTROL_KEY_PREFIXES = (PLAN_KEY_PREFIX, CONDEMN_KEY_PREFIX)


def controller_of(scheduler: Any) -> UpdateController | None:
    """Return the scheduler's update controller, or None when another cache backend runs."""
    cache = getattr(scheduler, "tree_cache", None)
    return getattr(cache, "xver_updates", None) if isinstance(cache, XverRadixCache) else None


def _active(scheduler: Any) -> UpdateController | None:
    controller = controller_of(scheduler)
    return None if controller is None or controller.config.mode == "off" else controller


def around_update(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """AROUND ``update_weights_from_disk`` and ``update_weights_from_ipc``."""
    controller = _active(manager.scheduler)
    if controller is None:
        return original(manager, recv_req)
    return controller.guard(original, manager, recv_req)


def around_begin_session(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """AROUND ``begin_weight_update``: from here on the weights are torn until the end."""
    controller = _active(manager.scheduler)
    if controller is None or manager._session is not None:
        return original(manager, recv_req)
    return controller.open_session(original, manager, recv_req)


def around_bucket(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """AROUND ``update_weights_from_tensor`` and ``..._distributed``: one bucket of a session."""
    controller = _active(manager.scheduler)
    if controller is None or manager._session is None:
        # Outside a session SGLang refuses the call before it touches a weight.
        return original(manager, recv_req)
    return controller.guard(original, manager, recv_req)


def around_flush(
    original: Callable[..., Any], manager: Any, recv_req: Any, success: bool, message: str
) -> tuple[bool, str]:
    """AROUND ``flush_cache_after_weight_update``, the point that every update passes."""
    controller = _active(manager.scheduler)
    if controller is None:
        result: tuple[bool, str] = original(manager, recv_req, success, message)
        return result
    return controller.settle(original, manager, recv_req, success, message)


def around_end_session(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """AROUND ``end_weight_update``: writes by RDMA are visible to nobody, so nothing old stays."""
    controller = _active(manager.scheduler)
    if controller is None or manager._session is None:
        return original(manager, recv_req)
    return controller.close_session(original, manager, recv_req)


def around_resume_memory(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """AROUND ``resume_memory_occupation``: resumed weights are unknown until an update follows."""
    controller = _active(manager.scheduler)
    tags = recv_req.tags
    output = original(manager, recv_req)
    if controller is not None and (not tags or "weights" in tags):
        controller.fail_closed(manager.scheduler, "WEIGHTS_RESUMED")
    return output


def around_check_weights(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """AROUND ``check_weights``, whose action ``reset_tensors`` overwrites the weights."""
    controller = _active(manager.scheduler)
    output = original(manager, recv_req)
    if controller is not None and recv_req.action == "reset_tensors":
        controller.fail_closed(manager.scheduler, "WEIGHTS_RESET")
    return output


def around_set_internal_state(original: Callable[..., Any], state: Any, recv_req: Any) -> Any:
    """AROUND ``set_internal_state``: take our control messages, pass on the rest."""
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    controller = controller_of(state.scheduler)
    keys = list(recv_req.server_args)
    ours = [key for key in keys if key.startswith((*CONTROL_KEY_PREFIXES, AUDIT_KEY_PREFIX))]
    if not ours or controller is None:
        return original(state, recv_req)
    if len(ours) != len(keys):
        logger.error("xver: a control message must not be mixed with other settings; refused")
        return SetInternalStateReqOutput(updated=False)
    return SetInternalStateReqOutput(
        updated=all(controller.accept_control(state.scheduler, key) for key in ours)
    )


def after_get_internal_state(result: Any, state: Any, recv_req: Any) -> Any:
    """AFTER ``get_internal_state``: add the ``xver`` block that ``/server_info`` shows."""
    controller = controller_of(state.scheduler)
    if controller is not None:
        try:
            result.internal_state["xver"] = controller.journal.status()
        except Exception as error:
            # Without the block the main process makes no plan, and the next update evicts.
            controller.journal.note_caught("STATUS_RAISED", error)
    return result


def around_cached_tokens_details(original: Callable[..., Any], streamer: Any, req: Any) -> Any:
    """AROUND ``get_cached_tokens_details``: split the cached tokens by who computed them.

    Adds ``native``, ``kept_old`` and ``remapped``, which sum up to the request's matched prefix.
    """
    details = original(streamer, req)
    controller = getattr(streamer.tree_cache, "xver_updates", None)
    if details is None or controller is None or controller.config.mode == "off":
        return details
    matched = details["device"] + details["host"]
    kept_old = min(getattr(req, "xver_kept_old_tokens", 0), matched)
    controller.journal.count_cached_tokens(req, native=matched - kept_old, kept_old=kept_old)
    return {**details, "native": matched - kept_old, "kept_old": kept_old, "remapped": 0}
