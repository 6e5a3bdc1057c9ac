"""The requests of the benchmark: a few system prompts, each with many suffixes of its own."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

_VOCABULARY = 50_000


@dataclass(frozen=True)
class Workload:
    """Sizes of the workload; the default fills a tree of about 2,000 nodes and 700k tokens."""

    num_requests: int = 2000
    num_prompts: int = 8
    prompt_tokens: tuple[int, int] = (1000, 4000)
    suffix_tokens: tuple[int, int] = (200, 500)
    seed: int = 0

    @property
    def max_tokens(self) -> int:
        """Upper bound of what the whole workload can put into a tree."""
        prompts = self.num_prompts * self.prompt_tokens[1]
        return prompts + self.num_requests * self.suffix_tokens[1]

    def prompts(self) -> list[array[int]]:
        """Return the system prompts."""
        source = random.Random(self.seed)
        return [_tokens(source, self.prompt_tokens) for _ in range(self.num_prompts)]

    def requests(self) -> list[array[int]]:
        """Return every request's tokens, in the order in which they arrive."""
        prompts = self.prompts()
        source = random.Random(self.seed + 1)
        return [
            source.choice(prompts) + _tokens(source, self.suffix_tokens)
            for _ in range(self.num_requests)
        ]


def _tokens(source: random.Random, bounds: tuple[int, int]) -> array[int]:
    return array("q", [source.randrange(_VOCABULARY) for _ in range(source.randint(*bounds))])
