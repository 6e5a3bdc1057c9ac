"""Train the committed adapters again: ``python -m examples.testbed.train_lora mild|strong``.

Plain torch, seeded and step-limited, so a rerun on the same machine gives the same adapter.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.testbed.corpus import Tokenizer, opticks, token_slice
from examples.testbed.lora import (
    RANK,
    SCALE,
    TARGET_MODULES,
    AdapterMeta,
    adapter_path,
    save_adapter,
)
from examples.testbed.niah import build_document
from examples.testbed.smollm2 import smollm2_base

_IGNORED = -100
_LOG_EVERY_STEPS = 5


@dataclass(frozen=True)
class Recipe:
    """One fine-tune. ``niah_share`` of the steps train on a needle question, the rest on text.

    Training runs at ``SCALE``; ``merge_scale`` goes into the adapter's header and is what
    :func:`examples.testbed.lora.merge` applies, so a value above ``SCALE`` carries the update
    further along the direction that was learned.
    """

    name: str
    lr: float
    steps: int
    niah_share: float
    sequence_tokens: int = 256
    needles: int = 4
    seed: int = 0
    merge_scale: float = SCALE
    grad_clip: float = 1.0


RECIPES = {
    "mild": Recipe("mild", lr=2e-4, steps=60, niah_share=0.0),
    "strong": Recipe("strong", lr=3e-3, steps=120, niah_share=0.6, merge_scale=3.0),
}


class LoraLinear(nn.Module):
    """A frozen linear layer plus scale * B @ A; B starts at zero, so step 0 is the base model.

    The adapter is held in fp32 for the optimizer and applied in the input's dtype.
    """

    def __init__(self, frozen: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.frozen = frozen
        self.scale = scale
        self.lora_A = nn.Parameter(torch.empty(rank, frozen.in_features))
        self.lora_B = nn.Parameter(torch.zeros(frozen.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape: (..., in_features) -> (..., out_features)."""
        down, up = self.lora_A.to(x.dtype), self.lora_B.to(x.dtype)
        return self.frozen(x) + (x @ down.T) @ up.T * self.scale


def attach(model: Any) -> dict[str, LoraLinear]:
    """Freeze ``model`` and replace its target projections in place; returns them by name."""
    model.requires_grad_(False)
    attached: dict[str, LoraLinear] = {}
    for index, layer in enumerate(model.model.layers):
        for module in TARGET_MODULES:
            parent_name, leaf = module.split(".")
            parent = getattr(layer, parent_name)
            adapted = LoraLinear(getattr(parent, leaf), RANK, SCALE)
            setattr(parent, leaf, adapted)
            attached[f"layers.{index}.{module}"] = adapted
    return attached


def text_example(tokenizer: Tokenizer, recipe: Recipe, seed: int) -> tuple[list[int], list[int]]:
    """Token ids of running text and labels equal to them (every position is learned)."""
    ids = token_slice(tokenizer, opticks("train"), recipe.sequence_tokens, seed)
    return ids, ids


def niah_example(tokenizer: Tokenizer, recipe: Recipe, seed: int) -> tuple[list[int], list[int]]:
    """One needle question with its answer; only the answer's tokens are learned."""
    question_room = 40
    document = build_document(
        tokenizer,
        recipe.sequence_tokens - question_room,
        needles=recipe.needles,
        seed=seed,
        corpus=opticks("train"),
    )
    question = random.Random(seed).choice(document.questions)
    prompt = tokenizer.encode(document.prefix + question.text, add_special_tokens=False)
    answer = tokenizer.encode(question.gold + ".", add_special_tokens=False)
    return prompt + answer, [_IGNORED] * len(prompt) + answer


def examples(tokenizer: Tokenizer, recipe: Recipe) -> Iterator[tuple[list[int], list[int]]]:
    """Endless seeded (ids, labels) pairs in the recipe's mix."""
    rng = random.Random(f"{recipe.name}-{recipe.seed}")
    while True:
        make = niah_example if rng.random() < recipe.niah_share else text_example
        yield make(tokenizer, recipe, rng.randrange(2**31))


def next_token_loss(model: Any, ids: list[int], labels: list[int]) -> torch.Tensor:
    """Mean cross-entropy (nats, fp32) over the labelled positions of one sequence."""
    hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, :-1]
    wanted = torch.tensor(labels[1:])
    learned = wanted != _IGNORED
    # The vocabulary projection is a tenth of a step: skip it where nothing is learned.
    logits = model.lm_head(hidden[learned])
    return nn.functional.cross_entropy(logits.float(), wanted[learned])


def train(model: Any, tokenizer: Tokenizer, recipe: Recipe) -> dict[str, torch.Tensor]:
    """Run the recipe on ``model`` (mutated: projections replaced) and return adapter tensors."""
    torch.manual_seed(recipe.seed)
    attached = attach(model)
    parameters = [p for m in attached.values() for p in (m.lora_A, m.lora_B)]
    optimizer = torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    model.train()
    started = time.monotonic()
    source = examples(tokenizer, recipe)
    for step in range(1, recipe.steps + 1):
        ids, labels = next(source)
        loss = next_token_loss(model, ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % _LOG_EVERY_STEPS == 0 or step == recipe.steps:
            elapsed_s = time.monotonic() - started
            print(
                f"{recipe.name}: step {step}/{recipe.steps} loss {loss.item():.3f} "
                f"{elapsed_s:.0f} s",
                flush=True,
            )
    return {
        f"{name}.{part}": getattr(module, part).detach()
        for name, module in attached.items()
        for part in ("lora_A", "lora_B")
    }


def train_adapter(recipe: Recipe, out: Path) -> Path:
    """Train ``recipe`` from the SmolLM2 base and write the adapter file to ``out``."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = smollm2_base()
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    tensors = train(model, tokenizer, recipe)
    meta = AdapterMeta(f"{recipe}", recipe.seed, recipe.steps, recipe.lr, scale=recipe.merge_scale)
    save_adapter(out, meta, tensors)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, default=None, help="default: the committed file")
    arguments = parser.parse_args(argv)
    out = arguments.out if arguments.out is not None else adapter_path(arguments.name)
    print(train_adapter(RECIPES[arguments.name], out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
