"""Ranks agree on the worst outcome, over a real process group."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from sglang_xver.engine.ranks import Outcome, worst_outcome


def _vote(rank: int, outcomes: tuple[Outcome, ...], folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(outcomes)
    )
    group = torch.distributed.group.WORLD
    (Path(folder) / str(rank)).write_text(worst_outcome(outcomes[rank], group).name)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "outcomes, expected",
    [
        ((Outcome.APPLIED, Outcome.APPLIED), "APPLIED"),
        ((Outcome.APPLIED, Outcome.PLAN_FAILED), "PLAN_FAILED"),
        ((Outcome.LOAD_FAILED, Outcome.PLAN_FAILED), "LOAD_FAILED"),
    ],
)
def test_worst_of_two_ranks(tmp_path: Path, outcomes: tuple[Outcome, ...], expected: str) -> None:
    mp.spawn(_vote, args=(outcomes, str(tmp_path)), nprocs=len(outcomes))
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [expected] * 2


@pytest.mark.parametrize("outcome", list(Outcome))
def test_one_rank_needs_no_vote(outcome: Outcome) -> None:
    assert worst_outcome(outcome, None) == outcome
