"""Identifiers: of runs and decisions, which sort by time, and of engine releases."""

from __future__ import annotations

import secrets
import time

_RANDOM_BITS = 74


def new_decision_id() -> str:
    """Return a new decision identifier, ``dec_`` and 32 hex digits, ordered by time."""
    return "dec_" + _uuid7_hex()


def new_run_id() -> str:
    """Return a new run identifier, ``run_`` and 32 hex digits, ordered by time."""
    return "run_" + _uuid7_hex()


def engine_release(version: str) -> str:
    """Return the major.minor part of an engine version, for example ``0.5`` of ``0.5.23``.

    Evidence holds for one release: kernels and cache code change between them.
    """
    return ".".join(version.split(".")[:2])


def _uuid7_hex() -> str:
    """Return a version 7 UUID (RFC 9562, section 5.7) as hex digits."""
    milliseconds = time.time_ns() // 1_000_000
    randomness = secrets.randbits(_RANDOM_BITS)
    high, low = randomness >> 62, randomness & ((1 << 62) - 1)
    value = (milliseconds & ((1 << 48) - 1)) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low
    return f"{value:032x}"
