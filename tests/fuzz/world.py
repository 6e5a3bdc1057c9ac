"""A scheduler's life with its cache, one step at a time; every step knows what must come of it.

Each ``do_...`` method is one operation. Assertions compare what the real cache did with the model
(:mod:`tests.fuzz.truth`).
"""

from __future__ import annotations

from tests.fuzz.request_steps import RequestSteps
from tests.fuzz.update_steps import UpdateSteps


class World(RequestSteps, UpdateSteps):
    """One server on which anything may happen."""
