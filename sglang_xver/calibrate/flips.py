"""Paired correctness of an arm against the reference arm C: harmful and beneficial flips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compat_service.statistics import FlipRates, flip_rates
from sglang_xver.calibrate.errors import InvalidRunError


class FlipStats(NamedTuple):
    """Counts; the rates never travel without them."""

    num_items: int
    reference_correct: int
    harmful: int
    """Reference correct, arm wrong."""
    beneficial: int
    """Reference wrong, arm correct."""

    @property
    def rates(self) -> FlipRates:
        """HFR, BFR, net gain and flip ratio; None where the denominator is zero."""
        return flip_rates(self.num_items, self.reference_correct, self.harmful, self.beneficial)


def count_flips(reference: Sequence[bool], arm: Sequence[bool]) -> FlipStats:
    """Count flips of ``arm`` against ``reference``, item by item.

    Raises:
        InvalidRunError: the sides have no, or not equally many, items.
    """
    if not reference or len(reference) != len(arm):
        raise InvalidRunError(
            f"{len(reference)} reference answers against {len(arm)}; every item needs both arms"
        )
    pairs = list(zip(reference, arm, strict=True))
    return FlipStats(
        num_items=len(pairs),
        reference_correct=sum(reference),
        harmful=sum(was_right and not is_right for was_right, is_right in pairs),
        beneficial=sum(is_right and not was_right for was_right, is_right in pairs),
    )
