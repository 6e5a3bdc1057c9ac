"""Mutants of decisions, plans and request classes."""

from __future__ import annotations

from tests.mutants.mutant import (
    CACHE,
    CLASSES,
    DECISION,
    FIDELITY,
    GATE,
    UNKNOWN,
    WALKS,
    Mutant,
)

_DECISION = "sglang_xver/decision.py"
_FIDELITY = "sglang_xver/fidelity.py"
_GATE = "sglang_xver/engine/gate.py"
_LINEAGE = "sglang_xver/lineage.py"
_PLACEMENT = "sglang_xver/engine/placement.py"
_PLAN = "sglang_xver/plan.py"
_WALK = "sglang_xver/engine/plan_walk.py"

RULE_MUTANTS = (
    Mutant(
        "depth: no cut inside a node",
        _WALK,
        "return end if limit == UNLIMITED else max(start, min(end, limit))",
        "return end if limit == UNLIMITED or limit > start else start",
        (CACHE,),
    ),
    Mutant(
        "depth: limit not floored to a page",
        _WALK,
        "                limit -= limit % self._core.page_size\n",
        "                limit += -limit % self._core.page_size\n",
        (CACHE,),
    ),
    Mutant(
        "blocked nodes are judged anew",
        _WALK,
        "        if node.id in self._core.blocked:\n            return start\n",
        "",
        (CACHE, WALKS),
    ),
    Mutant(
        "chained: the newest epoch of a path speaks for all",
        _WALK,
        "                for index in epochs_in(mask)\n",
        "                for index in list(epochs_in(mask))[-1:]\n",
        (CACHE,),
    ),
    Mutant(
        "chained: every epoch is judged as the target's own",
        _WALK,
        "self._plan.keep_max_tokens(epochs.key(index), class_name)",
        "self._plan.keep_max_tokens(next(iter(self._plan.rules), ''), class_name)",
        (CACHE,),
    ),
    Mutant(
        "several epochs: the loosest limit counts",
        _LINEAGE,
        "limit < result",
        "limit > result",
        (CACHE, WALKS),
    ),
    Mutant(
        "class: its limits are ignored",
        _WALK,
        "self._plan.keep_max_tokens(epochs.key(index), class_name)",
        "self._plan.keep_max_tokens(epochs.key(index))",
        (CLASSES,),
    ),
    Mutant(
        "class: its namespace is judged as everybody's",
        _WALK,
        "(child, 0, class_of_namespace(child.key.extra_key))",
        "(child, 0, None)",
        (CLASSES,),
    ),
    Mutant(
        "class: hybrid KV restricts nobody",
        _WALK,
        "                if class_name is None:\n",
        "                if class_name is None and not mask & current_bit:\n",
        (CLASSES, WALKS),
    ),
    Mutant(
        "class: only the shallowest old KV counts",
        _WALK,
        "self._deepest[mask] = max(end, self._deepest.get(mask, 0))",
        "self._deepest[mask] = min(end, self._deepest.get(mask, end))",
        (CLASSES, WALKS),
    ),
    Mutant(
        "class: limit that ends the kept KV half-way restricts nobody",
        _WALK,
        "0 <= self._limit_tokens(class_name, mask) < end",
        "0 == self._limit_tokens(class_name, mask) < end",
        (CLASSES,),
    ),
    Mutant(
        "plan: epoch without a rule stays",
        _PLAN,
        "        if rule is None:\n            return 0\n",
        "        if rule is None:\n            return UNLIMITED\n",
        (CACHE,),
    ),
    Mutant(
        "plan: native may read what the tree keeps",
        _PLAN,
        "return rule.keep_max_tokens if epoch_key == self.target_key else 0",
        "return rule.keep_max_tokens",
        (CLASSES,),
    ),
    Mutant(
        "plan: no hint means the most permissive family",
        _PLAN,
        "            return strictest(rule.families.values())\n",
        "            return rule.keep_max_tokens\n",
        (CLASSES,),
    ),
    Mutant(
        "plan: unknown family may read what the tree keeps",
        _PLAN,
        "return rule.families.get(class_name, 0)",
        "return rule.families.get(class_name, rule.keep_max_tokens)",
        (FIDELITY, CLASSES),
    ),
    Mutant(
        "placement: restricted class not put apart",
        _PLACEMENT,
        "is_apart = req.xver_class in self.restricted_classes or is_namespaced(own)",
        "is_apart = is_namespaced(own)",
        (CLASSES,),
    ),
    Mutant(
        "placement: a client's key leads into another class's namespace",
        _PLACEMENT,
        "is_apart = req.xver_class in self.restricted_classes or is_namespaced(own)",
        "is_apart = req.xver_class in self.restricted_classes",
        (CLASSES, WALKS),
    ),
    Mutant(
        "placement: a waiting request is placed once only",
        _PLACEMENT,
        "        if not req.kv.holds_kv:\n",
        '        if not hasattr(req, "xver_class"):\n',
        (CLASSES, WALKS),
    ),
    Mutant(
        "hint: malformed means no hint",
        _FIDELITY,
        "    except HintError:\n        return NATIVE\n",
        "    except HintError:\n        return STRICTEST\n",
        (FIDELITY,),
    ),
    Mutant(
        "hint: undeclared family counts as declared",
        _FIDELITY,
        "return hint.task if hint.task in families else NATIVE",
        "return hint.task",
        (FIDELITY,),
    ),
    Mutant(
        "hint: native is ignored",
        _FIDELITY,
        '    if hint.fidelity == "native":\n        return NATIVE\n',
        "",
        (FIDELITY,),
    ),
    Mutant(
        "decision: age ignored",
        _DECISION,
        "source.age_updates >= request.max_age_updates",
        "source.age_updates > 10 * request.max_age_updates",
        (DECISION,),
    ),
    Mutant(
        "decision: age does not grow",
        _DECISION,
        "ages.get(key, 0) + 1 for key",
        "ages.get(key, 0) for key",
        (DECISION, GATE),
    ),
    Mutant(
        "decision: reused label ignored",
        _DECISION,
        "    if request.label_conflict:\n",
        "    if False:\n",
        (DECISION,),
    ),
    Mutant(
        "gate: reused label not noticed",
        _GATE,
        "label_conflict=self._label_conflict(obj.weight_version, update.fingerprint),",
        'label_conflict="",',
        (GATE,),
    ),
    Mutant(
        "decision: other geometry ignored",
        _DECISION,
        "    if request.geometry_differences:\n",
        "    if False:\n",
        (DECISION,),
    ),
    Mutant(
        "decision: weights without a fingerprint are asked about",
        _DECISION,
        "    if not source.fingerprint or not request.target_fingerprint:\n",
        "    if not source.fingerprint and not request.target_fingerprint:\n",
        (DECISION,),
    ),
    Mutant(
        "decision: unknown contents are the same",
        _DECISION,
        "    if source.fingerprint and source.key == request.target_key:\n",
        "    if source.key == request.target_key:\n",
        (UNKNOWN,),
    ),
    Mutant(
        "decision: equal samples count as equal bytes",
        _DECISION,
        'return _evict("SAMPLED_NOT_EXACT", "equal samples, other files: equality is not proven")',
        'return EpochRule(keep_max_tokens=UNLIMITED, reason="SAMPLED_NOT_EXACT")',
        (DECISION,),
    ),
    Mutant(
        "decision: an inconclusive bucket keeps",
        _DECISION,
        "return rule.action is Action.KEEP and rule.confidence is Confidence.PASS",
        "return rule.action is Action.KEEP",
        (DECISION,),
    ),
    Mutant(
        "decision: a gap between buckets is bridged",
        _DECISION,
        "        if rule.prefix_tokens_min_exclusive > reach:\n            break\n",
        "",
        (DECISION,),
    ),
    Mutant(
        "decision: chained, the answer of another epoch counts",
        _DECISION,
        "rule = rule_from_answer(ask(source), request.task_families)",
        "rule = rule_from_answer(ask(request.sources[0]), request.task_families)",
        (DECISION,),
    ),
)
