"""What a scheduler does around a weight update: take the plan, apply it, report, or fail closed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang_xver.config import XverConfig
from sglang_xver.engine.audit import AUDIT_KEY_PREFIX
from sglang_xver.engine.cache import XverRadixCache
from sglang_xver.engine.census import take_census
from sglang_xver.engine.journal import Journal
from sglang_xver.errors import PlanError
from sglang_xver.plan import EpochRule, Plan, plan_from_wire
from sglang_xver.report import TreeChange, UpdateReport, explain

logger = logging.getLogger(__name__)

CONDEMN_KEY_PREFIX = "xver_condemn:"
UPDATE_ID_FIELD = "xver_update_id"


def _without_plan(reason: str) -> EpochRule:
    return EpochRule(keep_max_tokens=0, reason=reason)


_NO_PLAN = _without_plan("NO_PLAN")


class UpdateController:
    """One scheduler's side of every update. All methods run on the scheduler's thread.

    The order of calls is the order of the request stream, the same on every rank. Nothing here
    asks a service, reads a clock for a decision, or differs between ranks.
    """

    def __init__(self, cache: XverRadixCache, config: XverConfig, journal: Journal) -> None:
        self.cache = cache
        self.config = config
        self.journal = journal
        cache.placer.families = config.task_families
        cache.counts_foreign = config.mode == "observe"
        self._pending: Plan | None = None
        self._settled = 0

    def accept_control(self, scheduler: Any, key: str) -> bool:
        """Take a control message; False for a malformed plan (the update then evicts)."""
        if key.startswith(AUDIT_KEY_PREFIX):
            self.journal.log_audit(key.removeprefix(AUDIT_KEY_PREFIX))
            return True
        self._pending = None
        if key.startswith(CONDEMN_KEY_PREFIX):
            self.fail_closed(scheduler, key.removeprefix(CONDEMN_KEY_PREFIX))
            return True
        try:
            self._pending = plan_from_wire(key)
        except PlanError:
            self.journal.count_failure("MALFORMED_PLAN")
            logger.exception("xver: plan refused; the next update evicts")
            return False
        return True

    def guard(self, original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
        """Run one weight-changing handler so that old KV never survives it unjudged.

        Inside a session nothing is cached, and its end decides for all buckets at once.
        """
        settled_before = self._settled
        try:
            output = original(manager, recv_req)
        except Exception:
            self.journal.count_failure("UPDATE_RAISED")
            if not self.cache.is_suspended:
                self.fail_closed(manager.scheduler, "UPDATE_RAISED")
            raise
        finally:
            self._pending = None
        if self._settled == settled_before and not self.cache.is_suspended:
            # The handler returned without passing the flush hook: nothing was loaded, or weights
            # are torn. Which of the two can't be told from here.
            self.fail_closed(manager.scheduler, "UPDATE_FAILED")
        return output if self._settled == settled_before else self._with_report(output)

    def open_session(self, original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
        """Evict and suspend the cache before weights are written bucket by bucket."""
        self.fail_closed(manager.scheduler, "WEIGHT_SESSION_OPENED")
        self.cache.is_suspended = self.config.mode == "on"
        try:
            return original(manager, recv_req)
        finally:
            if manager._session is None:
                # No session, so no end that would resume. What was evicted is a loss of time only.
                self.cache.is_suspended = False

    def close_session(self, original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
        """Resume after the last bucket; what was computed meanwhile is published nowhere."""
        output = original(manager, recv_req)
        if manager._session is None:
            self.fail_closed(manager.scheduler, "WEIGHTS_WRITTEN_IN_SESSION")
            self.cache.is_suspended = False
            output = self._with_report(output)
        return output

    def _with_report(self, output: Any) -> Any:
        report = self.journal.last_report
        if report is not None and hasattr(output, "message"):
            output.message = f"{output.message} {report.to_message()}"
        return output

    def settle(
        self,
        original: Callable[..., Any],
        manager: Any,
        recv_req: Any,
        success: bool,
        message: str,
    ) -> tuple[bool, str]:
        """Stand in for SGLang's flush after a weight update."""
        plan = self._matching_plan(recv_req) if success else None
        if self.cache.is_suspended:
            return success, message
        if self.config.mode != "on":
            return self._observe(original, manager, recv_req, success, message, plan)
        fallback = _NO_PLAN if success else _without_plan("UPDATE_FAILED")
        started = time.perf_counter()
        try:
            report = self._apply(manager.scheduler, recv_req, plan, fallback)
        except Exception:
            self.journal.count_failure("APPLY_RAISED")
            logger.exception("xver: applying the plan failed; evicting everything")
            self.fail_closed(manager.scheduler, "APPLY_RAISED")
        else:
            apply_ms = round((time.perf_counter() - started) * 1000, 3)
            self._record(replace(report, apply_ms=apply_ms))
        return success, message

    def _matching_plan(self, recv_req: Any) -> Plan | None:
        """Return the pending plan if it was made for exactly this update."""
        plan, self._pending = self._pending, None
        manifest = getattr(recv_req, "manifest", None)
        update_id = manifest.get(UPDATE_ID_FIELD) if isinstance(manifest, dict) else None
        if plan is None or update_id != plan.update_id:
            return None
        return plan if plan.model_path == getattr(recv_req, "model_path", None) else None

    def _apply(
        self, scheduler: Any, recv_req: Any, plan: Plan | None, fallback: EpochRule
    ) -> UpdateReport:
        core = self.cache.tree_core
        current_key = core.epochs.current_key
        same_weights = plan is not None and plan.target_key == current_key
        present = dict.fromkeys([current_key, *take_census(core).epochs_present])
        straddlers = 0 if same_weights else self._bar_straddlers(scheduler)
        change = self.cache.condemn_all() if plan is None else self.cache.apply_plan(plan)
        flushed = False
        if change.kept_tokens == 0 and recv_req.flush_cache:
            # Nothing is worth keeping: on an idle server SGLang's own flush is the more thorough.
            flushed = self._flush_if_idle(scheduler, recv_req)
        rules = dict.fromkeys(present, fallback)
        if plan is not None:
            rules = {key: plan.rules.get(key, fallback) for key in present}
        report = explain(change, rules, same_weights)
        return replace(
            report,
            straddling_requests=straddlers,
            flushed=flushed,
            target_key=core.epochs.current_key,
            update_id="" if plan is None else plan.update_id,
        )

    def _flush_if_idle(self, scheduler: Any, recv_req: Any) -> bool:
        if not scheduler.is_fully_idle(ignore_waiting=scheduler._engine_paused):
            return False
        return bool(scheduler.flush_cache(empty_cache=recv_req.torch_empty_cache))

    def _bar_straddlers(self, scheduler: Any) -> int:
        """Keep the mixed KV of requests that hold KV across the update out of the tree."""
        requests = set(scheduler.collect_inflight_reqs())
        requests.update(req for req in scheduler.waiting_queue if req.kv.holds_kv)
        if scheduler.chunked_req is not None:
            requests.add(scheduler.chunked_req)
        for req in requests:
            req.skip_radix_cache_insert = True
        return sum(1 for req in requests if not req.finished())

    def _observe(
        self,
        original: Callable[..., Any],
        manager: Any,
        recv_req: Any,
        success: bool,
        message: str,
        plan: Plan | None,
    ) -> tuple[bool, str]:
        epochs = self.cache.tree_core.epochs
        rule = _NO_PLAN if plan is None else plan.rules.get(epochs.current_key, _NO_PLAN)
        result: tuple[bool, str] = original(manager, recv_req, success, message)
        # The epoch follows the weights, which were loaded whatever became of the flush.
        if plan is None:
            epochs.advance_unknown()
        else:
            epochs.advance(plan.target_key)
        report = UpdateReport(
            action="OBSERVE",
            reason=rule.reason,
            decision_id=rule.decision_id,
            flushed=bool(recv_req.flush_cache and result[0]),
            target_key=epochs.current_key,
            update_id="" if plan is None else plan.update_id,
        )
        self._record(report)
        return result

    def fail_closed(self, scheduler: Any, reason: str) -> None:
        """Make nothing old visible, whatever happened; mode observe only takes note."""
        if self.config.mode == "observe":
            self.cache.tree_core.epochs.advance_unknown()
            self._record(UpdateReport(action="OBSERVE", reason=reason))
            return
        if self.config.mode != "on":
            return
        logger.warning("xver: evicting everything (%s)", reason)
        straddlers = 0
        try:
            straddlers = self._bar_straddlers(scheduler)
            change = self.cache.condemn_all()
        except Exception:
            self.journal.count_failure("CONDEMN_RAISED")
            logger.exception("xver: eviction failed half-way; the rest is blocked")
            self.cache.tree_core.block_all()
            change = TreeChange(0, 0, self.cache.blocked_tokens())
        report = explain(change, {"": _without_plan(reason)}, same_weights=False)
        key = self.cache.tree_core.epochs.current_key
        self._record(replace(report, straddling_requests=straddlers, target_key=key))

    def _record(self, report: UpdateReport) -> None:
        self._settled += 1
        self.journal.record(report)
