"""What an SGLang server answers, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class ServerInfo(NamedTuple):
    """What a server says about itself in ``/server_info``; sizes in tokens."""

    max_input_tokens: int
    pool_tokens: int
    page_size: int
    mode: str
    """Mode of the xver plugin: off, observe or on; empty without the plugin."""
    layout: Mapping[str, Any]
    """The plugin's ``layout`` block, verbatim; empty without the plugin."""
    xver: Mapping[str, Any]
    """The plugin's whole block; empty without the plugin."""


class TopLogprobs(NamedTuple):
    """The most likely next tokens at one position, in the server's order.

    ``token_ids`` int64 and ``logprobs`` float64 (nats), both of shape (k,); k is the vocabulary
    size where the whole distribution was asked for.
    """

    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]


class Generation(NamedTuple):
    """Greedy answer to one request."""

    text: str
    output_ids: tuple[int, ...]
    cached_tokens: int
    """Prompt tokens whose KV came from the prefix cache."""
    finish_reason: str
    """``stop`` or ``length``."""


class Scores(NamedTuple):
    """Next-token distributions along a given text."""

    positions: tuple[TopLogprobs, ...]
    cached_tokens: int


class TtftSample(NamedTuple):
    """One streamed request."""

    ttft_ms: float
    """From sending the request to the first streamed chunk that holds a token."""
    cached_tokens: int


@dataclass(frozen=True)
class UpdateReply:
    """Answer to a weight update; ``report`` holds the plugin's fields, empty without it."""

    message: str
    report: Mapping[str, str]
