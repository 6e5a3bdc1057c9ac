"""The error taxonomy. Each message names the value, the rule and the remedy."""

from __future__ import annotations


class XverError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(XverError):
    """A configuration value is unknown, malformed or out of range."""


class CheckpointError(XverError):
    """A checkpoint can't be read or doesn't fit the served model."""


class PlanError(XverError):
    """A plan is malformed or doesn't belong to the update at hand."""


class HintError(XverError, ValueError):
    """A request's hint is malformed. SGLang answers a ValueError with HTTP 400."""


class HookError(XverError):
    """The installed SGLang doesn't offer what the plugin hooks into."""


class UnsupportedError(XverError):
    """The server runs with an option that can't be combined with the xver backend."""


class ServiceError(XverError):
    """The compatibility service refused a call."""


class ServiceUnavailableError(ServiceError):
    """The compatibility service couldn't be reached within the deadline."""
