"""Agreement between tensor-parallel ranks."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch


class Outcome(IntEnum):
    """How an update went on a rank, from good to bad."""

    APPLIED = 0
    PLAN_FAILED = 1
    """The weights are new, the plan was not applied."""
    LOAD_FAILED = 2
    """The weights may be torn."""


def worst_outcome(mine: Outcome, group: Any) -> Outcome:
    """Return the worst outcome over all ranks of ``group``.

    A collective: every rank must call it at the same point of the request stream, whatever
    happened there before. ``group`` is SGLang's CPU group of the tensor-parallel ranks, or None
    where there is one rank.
    """
    if group is None or torch.distributed.get_world_size(group) == 1:
        return mine
    vote = torch.tensor([int(mine)], dtype=torch.int32)
    torch.distributed.all_reduce(vote, op=torch.distributed.ReduceOp.MAX, group=group)
    return Outcome(int(vote.item()))
