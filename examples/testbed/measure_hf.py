"""Measure reuse of a base's KV by its update: ``python -m examples.testbed.measure_hf``.

A prefix is prefilled once by the base and once by the target; every question then reads either
KV. Correctness needs no decoding: greedy output equals the gold number exactly when the argmax
is right at each teacher-forced digit and the next token is no digit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from examples.testbed.corpus import opticks, token_slice
from examples.testbed.lora import smollm2_update
from examples.testbed.niah import NiahDocument, NiahQuestion, build_documents
from examples.testbed.smollm2 import smollm2_base

TEXT_POSITIONS = 16
TEXT_SEED = 10_000


class Item(NamedTuple):
    """One question: who answers it right, and KL(native || reuse) in nats per answer position."""

    source_right: bool
    native_right: bool
    reuse_right: bool
    kl_first: float
    kl_mean: float


class TextItem(NamedTuple):
    """One free-text prefix: mean KL (nats) and top-1 agreement over the forced positions."""

    kl_mean: float
    top1_ratio: float


@dataclass(frozen=True)
class Bucket:
    """All items of one pair at one prefix length (tokens)."""

    update: str
    prefix_tokens: int
    needles: int
    items: list[Item]
    text: list[TextItem]

    def figures(self) -> dict[str, object]:
        """The counts and rates of this bucket, ready for JSON."""
        right = [i for i in self.items if i.native_right]
        harmful = sum(not i.reuse_right for i in right)
        kl = sorted(i.kl_mean for i in self.items)
        return {
            "update": self.update,
            "prefix_tokens": self.prefix_tokens,
            "needles": self.needles,
            "n": len(self.items),
            "source_right": sum(i.source_right for i in self.items),
            "native_right": len(right),
            "reuse_right": sum(i.reuse_right for i in self.items),
            "harmful": harmful,
            "beneficial": sum(i.reuse_right and not i.native_right for i in self.items),
            "base_and_target_right_reuse_wrong": sum(
                i.source_right and not i.reuse_right for i in right
            ),
            "niah_kl_mean": round(statistics.fmean(kl), 4),
            "niah_kl_median": round(statistics.median(kl), 4),
            "niah_kl_p95": round(kl[int(0.95 * (len(kl) - 1))], 4),
            "niah_kl_first_mean": round(statistics.fmean(i.kl_first for i in self.items), 4),
            **self._text_figures(),
        }

    def _text_figures(self) -> dict[str, object]:
        if not self.text:
            return {"text_n": 0}
        return {
            "text_n": len(self.text),
            "text_kl_mean": round(statistics.fmean(t.kl_mean for t in self.text), 4),
            "text_top1_ratio": round(statistics.fmean(t.top1_ratio for t in self.text), 3),
        }


@torch.inference_mode()
def prefill(model: Any, ids: Sequence[int]) -> Any:
    """KV cache of ``ids`` under ``model``."""
    return model(torch.tensor([list(ids)]), use_cache=True, logits_to_keep=1).past_key_values


@torch.inference_mode()
def continue_on(model: Any, cache: Any, ids: Sequence[int]) -> torch.Tensor:
    """fp32 log-probs, shape (len(ids), vocab), of ``model`` reading ``cache`` before ``ids``.

    ``cache`` is cut back to its former rows afterwards, so it serves the next question.
    """
    logits = model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True).logits[0]
    cache.crop(-len(ids))
    return torch.log_softmax(logits.float(), dim=-1)


def kl_rows(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) in nats per row of two log-prob matrices of shape (positions, vocab)."""
    return (p.exp() * (p - q)).sum(-1)


class Pair:
    """The base, one update, and their shared tokenizer, held in memory."""

    def __init__(self, update: str, dtype: torch.dtype, base: Path | None = None) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        base = base if base is not None else smollm2_base()
        target = Path(update) if "/" in update else smollm2_update(update)
        self.update = update
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.source = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).eval()
        self.target = AutoModelForCausalLM.from_pretrained(target, dtype=dtype).eval()
        self._digits = {self.tokenizer.encode(d)[0] for d in "0123456789"}

    def bucket(self, documents: Sequence[NiahDocument], texts: int) -> Bucket:
        """Measure NIAH documents of one length, and ``texts`` free-text prefixes of that length."""
        items: list[Item] = []
        for number, document in enumerate(documents, start=1):
            ids = self.tokenizer.encode(document.prefix)
            old, new = prefill(self.source, ids), prefill(self.target, ids)
            items += [self._item(q, old, new) for q in document.questions]
            print(f"{self.update}: document {number}/{len(documents)}", file=sys.stderr)
        prefix_tokens = documents[0].prefix_tokens
        needles = len(documents[0].questions)
        text = [self._text_item(prefix_tokens, TEXT_SEED + i) for i in range(texts)]
        return Bucket(self.update, prefix_tokens, needles, items, text)

    def _item(self, question: NiahQuestion, old: Any, new: Any) -> Item:
        gold = self.tokenizer.encode(question.gold)
        ids = self.tokenizer.encode(question.text) + gold
        answer = slice(len(ids) - len(gold) - 1, None)
        source = continue_on(self.source, old, ids)[answer]
        native = continue_on(self.target, new, ids)[answer]
        reuse = continue_on(self.target, old, ids)[answer]
        kl = kl_rows(native, reuse)[: len(gold)]
        return Item(
            source_right=self._answers(source, gold),
            native_right=self._answers(native, gold),
            reuse_right=self._answers(reuse, gold),
            kl_first=kl[0].item(),
            kl_mean=kl.mean().item(),
        )

    def _answers(self, log_probs: torch.Tensor, gold: Sequence[int]) -> bool:
        greedy = log_probs.argmax(-1).tolist()
        return greedy[: len(gold)] == list(gold) and greedy[-1] not in self._digits

    def _text_item(self, prefix_tokens: int, seed: int) -> TextItem:
        ids = token_slice(self.tokenizer, opticks("eval"), prefix_tokens + TEXT_POSITIONS, seed)
        head, tail = ids[:prefix_tokens], ids[prefix_tokens:]
        native = continue_on(self.target, prefill(self.target, head), tail)
        reuse = continue_on(self.target, prefill(self.source, head), tail)
        agree = (native.argmax(-1) == reuse.argmax(-1)).float().mean().item()
        return TextItem(kl_rows(native, reuse).mean().item(), agree)


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON line per update and prefix length; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "updates",
        nargs="*",
        default=["mild", "strong"],
        help="update names, or checkpoint folders (with a slash)",
    )
    parser.add_argument("--prefix-tokens", type=int, nargs="+", default=[512, 2040])
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--text-documents", type=int, default=4)
    parser.add_argument("--needles", type=int, default=4, help="per document, all asked")
    parser.add_argument("--seed", type=int, default=0, help="of the first document")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    arguments = parser.parse_args(argv)
    for update in arguments.updates:
        pair = Pair(update, getattr(torch, arguments.dtype))
        for prefix_tokens in arguments.prefix_tokens:
            started = time.monotonic()
            documents = build_documents(
                pair.tokenizer,
                arguments.documents,
                prefix_tokens,
                needles=arguments.needles,
                seed=arguments.seed,
            )
            bucket = pair.bucket(documents, arguments.text_documents)
            figures = bucket.figures() | {"seconds": round(time.monotonic() - started, 1)}
            print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
