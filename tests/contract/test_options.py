"""Every option of the installed SGLang is refused or was found safe."""

from __future__ import annotations

from sglang.srt.server_args import ServerArgs

from sglang_xver.engine.combinations import REFUSALS
from tests.contract.option_reasons import ACCEPTED, CHECKED_SAFE

REFUSED = {refusal.field for refusal in REFUSALS}


def test_every_option_is_refused_or_has_a_reason() -> None:
    assert set(ServerArgs.__struct_fields__) - REFUSED - CHECKED_SAFE.keys() == set()


def test_no_reason_outlives_its_option() -> None:
    assert (REFUSED | CHECKED_SAFE.keys()) - set(ServerArgs.__struct_fields__) == set()


def test_no_option_is_both() -> None:
    assert REFUSED & CHECKED_SAFE.keys() == set()


def test_no_option_has_two_reasons() -> None:
    names = [name for group in ACCEPTED.values() for name in group.split()]
    assert len(names) == len(set(names))


def test_every_refusal_says_why() -> None:
    assert all(len(refusal.reason.split()) > 3 for refusal in REFUSALS)
