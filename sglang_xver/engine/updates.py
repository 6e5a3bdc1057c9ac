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
from sglang_xver.engine.ranks import Outcome, worst_outcome
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
        cache.tree_core.on_failure = journal.note_caught
        self._pending: Plan | None = None
        self._settled = 0
        self._outcome = Outcome.APPLIED
        self._in_session = False
        # Set while nobody can tell what is visible: the cache is suspended then.
        self._in_doubt = False

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
        except Exception:
            self.journal.count_failure("MALFORMED_PLAN")
            logger.exception("xver: plan refused; the next update evicts")
            return False
        return True

    def guard(self, original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
        """Run one weight-changing handler so that old KV never survives it unjudged.

        Inside a session nothing is cached, and its end decides for all buckets at once.
        """
        settled_before = self._settled
        self._outcome = Outcome.APPLIED
        try:
            output = original(manager, recv_req)
            if not output.success:
                self._outcome = Outcome.LOAD_FAILED
        except Exception:
            self._outcome = Outcome.LOAD_FAILED
            self.journal.count_failure("UPDATE_RAISED")
            if not self._in_session:
                self.fail_closed(manager.scheduler, "UPDATE_RAISED")
                self._agree(manager)
            raise
        finally:
            self._pending = None
        if self._in_session:
            return output
        if self._settled == settled_before:
            # The handler returned without passing the flush hook: nothing was loaded, or weights
            # are torn. Which of the two can't be told from here.
            self.fail_closed(manager.scheduler, "UPDATE_FAILED")
        if self._agree(manager) == Outcome.LOAD_FAILED:
            output.success = False
        return self._with_report(output)

    def _agree(self, manager: Any) -> Outcome:
        """Evict here too if another rank had to: trees that differ would end in a deadlock."""
        if self.config.mode != "on":
            return self._outcome
        try:
            worst = worst_outcome(self._outcome, getattr(manager, "tp_cpu_group", None))
        except Exception:
            self.journal.count_failure("VOTE_RAISED")
            logger.exception("xver: the ranks could not agree; evicting everything")
            worst = Outcome.PLAN_FAILED
        if self._outcome == Outcome.APPLIED and worst != Outcome.APPLIED:
            self.fail_closed(manager.scheduler, "OTHER_RANK_FAILED")
        return worst

    def open_session(self, original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
        """Evict and suspend the cache before weights are written bucket by bucket."""
        self._in_session = self.config.mode == "on"
        self.fail_closed(manager.scheduler, "WEIGHT_SESSION_OPENED")
        try:
            return original(manager, recv_req)
        finally:
            if manager._session is None:
                # No session, so no end that would resume. What was evicted is a loss of time only.
                self._end_suspension()

    def close_session(self, original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
        """Resume after the last bucket; what was computed meanwhile is published nowhere."""
        output = original(manager, recv_req)
        if manager._session is None:
            self.fail_closed(manager.scheduler, "WEIGHTS_WRITTEN_IN_SESSION")
            self._end_suspension()
            output = self._with_report(output)
        return output

    def _end_suspension(self) -> None:
        self._in_session = False
        self.cache.is_suspended = self._in_doubt

    def _with_report(self, output: Any) -> Any:
        try:
            report = self.journal.last_report
            if report is not None and hasattr(output, "message"):
                output.message = f"{output.message} {report.to_message()}"
        except Exception:
            self.journal.count_failure("REPORT_RAISED")
            logger.exception("xver: the reply has no report")
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
        if self._in_session:
            return success, message
        if self.config.mode != "on":
            return self._observe(original, manager, recv_req, success, message)
        started = time.perf_counter()
        try:
            plan = self._matching_plan(recv_req) if success and not self._in_doubt else None
            fallback = _NO_PLAN if success else _without_plan("UPDATE_FAILED")
            report = self._apply(manager.scheduler, recv_req, plan, fallback)
        except Exception:
            self.journal.count_failure("APPLY_RAISED")
            logger.exception("xver: applying the plan failed; evicting everything")
            self._outcome = Outcome.PLAN_FAILED
            self.fail_closed(manager.scheduler, "APPLY_RAISED")
        else:
            self._in_doubt = self.cache.is_suspended = False
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
    ) -> tuple[bool, str]:
        result: tuple[bool, str] = original(manager, recv_req, success, message)
        epochs = self.cache.tree_core.epochs
        rule = _NO_PLAN
        try:
            plan = self._matching_plan(recv_req) if success else None
            # The epoch follows the weights, which were loaded whatever became of the flush.
            if plan is None:
                epochs.advance_unknown()
            else:
                rule = plan.rules.get(epochs.current_key, _NO_PLAN)
                epochs.advance(plan.target_key)
        except Exception:
            self.journal.count_failure("OBSERVE_RAISED")
            logger.exception("xver: an update was not observed")
        self._record(
            UpdateReport(
                action="OBSERVE",
                reason=rule.reason,
                decision_id=rule.decision_id,
                flushed=bool(recv_req.flush_cache and result[0]),
                target_key=epochs.current_key,
            )
        )
        return result

    def fail_closed(self, scheduler: Any, reason: str) -> None:
        """Make nothing old visible, whatever happened; mode observe only takes note.

        Never raises. Where even hiding the tree fails, the cache is suspended until an update
        succeeds.
        """
        self._settled += 1
        if self.config.mode == "off":
            return
        self._in_doubt = self.cache.is_suspended = self.config.mode == "on"
        try:
            report = self._evict_all(scheduler, reason)
            self._in_doubt, self.cache.is_suspended = False, self._in_session
        except Exception:
            self.journal.count_failure("FAIL_CLOSED_RAISED")
            logger.exception("xver: eviction failed; the cache is suspended until the next update")
            report = UpdateReport(action="EVICT", reason=reason)
        self._record(report)

    def _evict_all(self, scheduler: Any, reason: str) -> UpdateReport:
        core = self.cache.tree_core
        if self.config.mode == "observe":
            core.epochs.advance_unknown()
            return UpdateReport(action="OBSERVE", reason=reason)
        logger.warning("xver: evicting everything (%s)", reason)
        try:
            change = self.cache.condemn_all()
        except Exception:
            self.journal.count_failure("CONDEMN_RAISED")
            logger.exception("xver: eviction failed half-way; the rest is blocked")
            core.block_all()
            change = TreeChange(0, 0, self.cache.blocked_tokens())
        straddlers = self._bar_straddlers(scheduler)
        return UpdateReport(
            action="EVICT" if change.evicted_tokens or change.blocked_tokens else "EMPTY",
            reason=reason,
            evicted_tokens=change.evicted_tokens,
            blocked_tokens=change.blocked_tokens,
            straddling_requests=straddlers,
            target_key=core.epochs.current_key,
        )

    def _record(self, report: UpdateReport) -> None:
        self._settled += 1
        try:
            self.journal.record(report)
        except Exception:
            self.journal.count_failure("REPORT_RAISED")
            logger.exception("xver: an update was not recorded")
