"""Errors of a calibration. Each message names the value, the rule and the remedy."""

from __future__ import annotations

from sglang_xver.errors import XverError


class CalibrationError(XverError):
    """A measurement can't be planned or started as asked."""


class EngineRequestError(CalibrationError):
    """The SGLang server refused a request, answered something unexpected, or is out of reach."""


class InvalidRunError(CalibrationError):
    """What was measured breaks the protocol, so the whole run says nothing."""
