"""Settings of the service: environment variables with the prefix ``XVER_COMPAT_``."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from compat_service.errors import ConfigError
from compat_service.policy import BUILT_IN

ENV_PREFIX = "XVER_COMPAT_"
DEFAULT_LISTEN = "127.0.0.1:50551"


class Endpoint(NamedTuple):
    """Address to listen on or to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def default_database_url() -> str:
    """Return the URL of the SQLite file in the user's data folder (XDG base directories)."""
    data_home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(data_home) / 'sglang-xver' / 'compat.sqlite3'}"


class Settings(BaseSettings):
    """Settings of one server process."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    database_url: str = Field(default_factory=default_database_url, min_length=1)
    """SQLAlchemy URL of the database."""
    listen: str = DEFAULT_LISTEN
    """``host:port``; port 0 takes a free one. Loopback only."""
    policy: str = "standard"
    """Policy for requests that name none."""
    max_workers: int = Field(default=16, ge=1, le=256)
    """Threads that serve calls."""
    max_pending_calls: int = Field(default=512, ge=1, le=100_000)
    """Calls in progress or waiting; more are refused with RESOURCE_EXHAUSTED."""
    max_message_bytes: int = Field(default=4 * 1024**2, ge=1024, le=256 * 1024**2)
    """Largest message that is received."""
    busy_timeout_ms: int = Field(default=5000, ge=0, le=600_000)
    """How long a write waits for the database before it is refused."""
    answer_ttl_s: int = Field(default=300, ge=1, le=86_400)
    """How long a client may reuse an answer of CheckCompat."""
    shutdown_grace_s: float = Field(default=5.0, ge=0.0, le=300.0)
    """How long calls in progress may finish after SIGTERM or SIGINT."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @field_validator("policy")
    @classmethod
    def _policy_is_known(cls, value: str) -> str:
        if value not in BUILT_IN:
            raise ValueError(f"{value!r} is not a policy; known are {', '.join(sorted(BUILT_IN))}")
        return value

    @field_validator("listen")
    @classmethod
    def _listen_is_loopback(cls, value: str) -> str:
        endpoint = parse_endpoint(value)
        if not is_loopback(endpoint.host):
            raise ValueError(
                f"{value!r} can be reached from other machines, and this version speaks neither "
                "TLS nor tokens; listen on 127.0.0.1, [::1] or localhost and put a tunnel or a "
                "TLS proxy in front for remote use"
            )
        return value

    @property
    def endpoint(self) -> Endpoint:
        """Address to listen on."""
        return parse_endpoint(self.listen)


def load_settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """Return the settings; ``overrides`` (command line) outrank the environment.

    Raises:
        ConfigError: a variable with the prefix is unknown, or a value breaks its rule.
    """
    _reject_unknown_variables()
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        )
        raise ConfigError(f"bad settings: {problems}") from error


def parse_endpoint(value: str) -> Endpoint:
    """Parse ``host:port``; an IPv6 host stands in brackets.

    Raises:
        ValueError: not of that form, or the port is outside 0..65535.
    """
    host, separator, port = value.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    malformed = not separator or not bare or not port.isascii() or not port.isdigit()
    if malformed or int(port) > 65535 or (":" in bare and bare == host):
        raise ValueError(f"{value!r} is not host:port, for example {DEFAULT_LISTEN}")
    return Endpoint(bare, int(port))


def is_loopback(host: str) -> bool:
    """Return True when only processes of this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reject_unknown_variables() -> None:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(
        name
        for name in os.environ
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known
    )
    if unknown:
        raise ConfigError(
            f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
