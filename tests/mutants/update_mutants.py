"""Mutants of the update itself: straddlers, plans, sessions, faults, ranks."""

from __future__ import annotations

from tests.mutants.mutant import FAULTS, PATHS, RANKS, STATE, UPDATES, Mutant

_RANKS = "sglang_xver/engine/ranks.py"
_UPDATES = "sglang_xver/engine/updates.py"

UPDATE_MUTANTS = (
    Mutant(
        "update: straddlers may publish",
        _UPDATES,
        "            req.skip_radix_cache_insert = True\n",
        "            pass\n",
        (UPDATES,),
    ),
    Mutant(
        "update: waiting straddlers forgotten",
        _UPDATES,
        "        requests.update(req for req in scheduler.waiting_queue if req.kv.holds_kv)\n",
        "",
        (STATE,),
    ),
    Mutant(
        "update: the chunked straddler forgotten",
        _UPDATES,
        "            requests.add(scheduler.chunked_req)\n",
        "            pass\n",
        (STATE,),
    ),
    Mutant(
        "update: straddlers are not counted",
        _UPDATES,
        "return sum(1 for req in requests if not req.finished())",
        "return sum(1 for req in requests if req.finished())",
        (UPDATES,),
    ),
    Mutant(
        "update: plan of another update applied",
        _UPDATES,
        "if plan is None or update_id != plan.update_id:",
        "if plan is None:",
        (UPDATES,),
    ),
    Mutant(
        "update: plan of another checkpoint applied",
        _UPDATES,
        'return plan if plan.model_path == getattr(recv_req, "model_path", None) else None',
        "return plan",
        (UPDATES,),
    ),
    Mutant(
        "update: plan outlives its update",
        _UPDATES,
        "        finally:\n            self._pending = None\n",
        "        finally:\n            pass\n",
        (STATE,),
    ),
    Mutant(
        "update: malformed plan leaves the earlier one in place",
        _UPDATES,
        "            return True\n        self._pending = None\n",
        "            return True\n",
        (UPDATES,),
    ),
    Mutant(
        "update: a failed one applies its plan",
        _UPDATES,
        "self._matching_plan(recv_req) if success and not self._in_doubt else None",
        "self._matching_plan(recv_req) if not self._in_doubt else None",
        (UPDATES,),
    ),
    Mutant(
        "update: a plan applies though nobody knows what is visible",
        _UPDATES,
        "self._matching_plan(recv_req) if success and not self._in_doubt else None",
        "self._matching_plan(recv_req) if success else None",
        (STATE,),
    ),
    Mutant(
        "update: the cache serves on where hiding the tree fails",
        _UPDATES,
        'self._in_doubt = self.cache.is_suspended = self.config.mode == "on"',
        "self._in_doubt = self.cache.is_suspended = False",
        (FAULTS,),
    ),
    Mutant(
        "update: failing closed keeps",
        _UPDATES,
        "            change = self.cache.condemn_all()\n        except",
        "            change = TreeChange(0, 0, 0)\n        except",
        (UPDATES,),
    ),
    Mutant(
        "update: nothing is blocked where the eviction fails",
        _UPDATES,
        "            core.block_all()\n",
        "            pass\n",
        (UPDATES, FAULTS),
    ),
    Mutant(
        "update: a load that raises keeps",
        _UPDATES,
        '                self.fail_closed(manager.scheduler, "UPDATE_RAISED")\n',
        "                pass\n",
        (UPDATES,),
    ),
    Mutant(
        "update: a load that passes no flush keeps",
        _UPDATES,
        '            self.fail_closed(manager.scheduler, "UPDATE_FAILED")\n',
        "            pass\n",
        (UPDATES,),
    ),
    Mutant(
        "session: not suspended while weights are written",
        _UPDATES,
        "self._in_doubt, self.cache.is_suspended = False, self._in_session",
        "self._in_doubt, self.cache.is_suspended = False, False",
        (UPDATES, PATHS),
    ),
    Mutant(
        "session: its end evicts nothing",
        _UPDATES,
        '            self.fail_closed(manager.scheduler, "WEIGHTS_WRITTEN_IN_SESSION")\n',
        "            pass\n",
        (UPDATES, PATHS),
    ),
    Mutant(
        "ranks: the failure of another is ignored",
        _UPDATES,
        "        if self._outcome == Outcome.APPLIED and worst != Outcome.APPLIED:\n",
        "        if False:\n",
        (STATE,),
    ),
    Mutant(
        "ranks: the best outcome wins",
        _RANKS,
        "torch.distributed.ReduceOp.MAX",
        "torch.distributed.ReduceOp.MIN",
        (RANKS,),
    ),
)
