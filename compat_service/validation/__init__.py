"""Validation of requests: every bad field is found and named, before anything else happens."""

from __future__ import annotations

from compat_service.validation.requests import (
    validate_check,
    validate_get_run,
    validate_list_pairs,
    validate_record_run,
)

__all__ = ["validate_check", "validate_get_run", "validate_list_pairs", "validate_record_run"]
