"""Hints of requests, their classes, and what a plan allows each class."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_xver.errors import HintError
from sglang_xver.fidelity import (
    NATIVE,
    STRICTEST,
    class_of_namespace,
    is_namespaced,
    namespace,
    parse_hint,
    request_class,
)
from sglang_xver.lineage import UNLIMITED
from sglang_xver.plan import EpochRule, Plan, plan_from_wire

FAMILIES = ("niah", "qa")


def hinted(**hint: Any) -> dict[str, Any]:
    return {"xver": hint}


class TestClass:
    @pytest.mark.parametrize(
        "custom_params, expected",
        [
            (None, STRICTEST),
            ({}, STRICTEST),
            ({"thinking_budget": 5}, STRICTEST),
            (hinted(), STRICTEST),
            (hinted(fidelity="default"), STRICTEST),
            (hinted(task="qa"), "qa"),
            (hinted(task="qa", fidelity="default"), "qa"),
            (hinted(task="qa", fidelity="native"), NATIVE),
            (hinted(fidelity="native"), NATIVE),
            (hinted(task="undeclared"), NATIVE),
            (hinted(task="native"), NATIVE),
            (hinted(task="strictest"), NATIVE),
            ({"xver": "niah"}, NATIVE),
            (hinted(fidelity="fast"), NATIVE),
        ],
    )
    def test_class(self, custom_params: Any, expected: str) -> None:
        assert request_class(custom_params, FAMILIES) == expected

    @pytest.mark.parametrize(
        "hint, named",
        [
            ("niah", "'niah'"),
            (None, "None"),
            (["niah"], "['niah']"),
            ({"task": 1}, "task=1"),
            ({"task": "Not A Name"}, "'Not A Name'"),
            ({"task": ""}, "task=''"),
            ({"fidelity": "exact"}, "'exact'"),
            ({"fidelity": None}, "fidelity=None"),
            ({"tasks": "niah"}, "tasks"),
        ],
    )
    def test_malformed_hint_is_named(self, hint: Any, named: str) -> None:
        with pytest.raises(HintError) as caught:
            parse_hint({"xver": hint})
        assert named in str(caught.value)
        assert '"fidelity": "default"' in str(caught.value)

    def test_error_is_one_that_sglang_answers_with_400(self) -> None:
        assert issubclass(HintError, ValueError)


class TestNamespace:
    @pytest.mark.parametrize("own", [None, "tenant", "a|b", "xver:qa|x"])
    def test_round_trip(self, own: str | None) -> None:
        key = namespace(NATIVE, own)
        assert is_namespaced(key)
        assert class_of_namespace(key) == NATIVE
        assert key.endswith(own or "")

    @pytest.mark.parametrize("own", [None, "", "tenant", "xver", "native"])
    def test_everybody(self, own: str | None) -> None:
        assert not is_namespaced(own)
        assert class_of_namespace(own) is None


def test_a_plan_allows_each_class_its_own_depth() -> None:
    plan = Plan(
        update_id="u",
        target_key="B",
        model_path="m",
        rules={
            "A": EpochRule(keep_max_tokens=512, reason="R", families={"niah": 512, "qa": 64}),
            "B": EpochRule(keep_max_tokens=UNLIMITED, reason="SAME"),
            "C": EpochRule(keep_max_tokens=100, reason="R"),
        },
    )
    plan = plan_from_wire(plan.to_wire())
    limits = {
        name: [plan.keep_max_tokens(key, name) for key in ("A", "B", "C", "D")]
        for name in (None, "niah", "qa", STRICTEST, NATIVE, "forgotten")
    }
    assert limits == {
        None: [512, UNLIMITED, 100, 0],
        "niah": [512, UNLIMITED, 100, 0],
        "qa": [64, UNLIMITED, 100, 0],
        STRICTEST: [64, UNLIMITED, 100, 0],
        NATIVE: [0, UNLIMITED, 0, 0],
        "forgotten": [0, UNLIMITED, 100, 0],
    }
    assert plan.classes() == (NATIVE, STRICTEST, "niah", "qa")
