"""Storage: evidence and decisions in one relational database."""

from __future__ import annotations

from compat_service.store.engine import Database, open_database
from compat_service.store.listing import PairSummary, list_pairs
from compat_service.store.repository import DecisionRecord, Repository, StoredRun

__all__ = [
    "Database",
    "DecisionRecord",
    "PairSummary",
    "Repository",
    "StoredRun",
    "list_pairs",
    "open_database",
]
