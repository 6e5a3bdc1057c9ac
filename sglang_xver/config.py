"""Configuration of the plugin: one TOML file, environment overrides, unknown keys rejected."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sglang_xver.errors import ConfigError
from sglang_xver.fidelity import FAMILY_PATTERN, RESERVED_CLASSES

CONFIG_PATH_VARIABLE = "SGLANG_XVER_CONFIG"
ENV_PREFIX = "SGLANG_XVER_"


class XverConfig(BaseSettings):
    """Settings of one server. Precedence: environment, then file, then default."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    mode: Literal["off", "observe", "on"] = "on"
    """``off``: SGLang's own behaviour. ``observe``: decide and log, change nothing. ``on``: act."""
    service: str = "127.0.0.1:50551"
    """Address of the compatibility service, ``host:port``."""
    timeout_ms: int = Field(default=2000, ge=1, le=60_000)
    """Deadline of one ``CheckCompat`` call in milliseconds."""
    policy: str = ""
    """Policy by name; empty takes the service's default."""
    task_families: Annotated[tuple[str, ...], NoDecode] = ()
    """Task families that this deployment serves; none means EVICT.

    A request says its family in a hint; one without a hint is judged by the strictest.
    """
    max_age_updates: int = Field(default=8, ge=1, le=10_000)
    """KV that survived this many updates is evicted at the next one."""
    last_good_max_age_s: float = Field(default=3600.0, ge=0.0)
    """How old an earlier answer may be when the service is unreachable; 0 never uses one."""
    last_good_path: Path | None = None
    """File that keeps earlier answers over restarts; none keeps them in memory."""
    full_hash_limit_bytes: int = Field(default=8 * 1024**3, ge=0)
    """Checkpoints up to this size are hashed whole, larger ones by sampled blocks."""
    server_name: str = ""
    """Name of this server in the service's audit trail."""

    @field_validator("task_families", mode="before")
    @classmethod
    def _split_families(cls, value: object) -> object:
        """Accept ``niah,qa`` from the environment, where a list has no syntax of its own."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("task_families")
    @classmethod
    def _families_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(FAMILY_PATTERN, name) or name in RESERVED_CLASSES:
                raise ValueError(
                    f"{name!r} is no task family: lower-case letters, digits, '.', '_' and '-', "
                    f"at most 64, and none of {', '.join(sorted(RESERVED_CLASSES))}"
                )
        return value

    @field_validator("service")
    @classmethod
    def _service_is_host_port(cls, value: str) -> str:
        host, separator, port = value.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("must be host:port, for example 127.0.0.1:50551")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic calls with all of them
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment override the file (whose values arrive as init arguments)."""
        return (env_settings, init_settings)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as handle:
            return tomllib.load(handle)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{CONFIG_PATH_VARIABLE}={path}: no such file. "
            "Create it or unset the variable to run on defaults."
        ) from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{CONFIG_PATH_VARIABLE}={path}: {error}. The file must be readable TOML."
        ) from error


def _describe(error: ValidationError, path: str | None) -> str:
    known = ", ".join(sorted(XverConfig.model_fields))
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown key {key!r}; known keys: {known}")
        else:
            lines.append(f"{key}={item.get('input')!r}: {item['msg']}")
    return f"xver configuration ({path or 'environment'}): " + "; ".join(lines)


def _reject_unknown_environment() -> None:
    """A typo in an environment override must not be ignored in silence."""
    known = {ENV_PREFIX + name.upper() for name in XverConfig.model_fields}
    known.add(CONFIG_PATH_VARIABLE)
    unknown = sorted(
        name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name not in known
    )
    if unknown:
        raise ConfigError(
            f"unknown environment variable {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )


def load_config() -> XverConfig:
    """Read the file named by ``SGLANG_XVER_CONFIG`` (if any) and the environment.

    Raises:
        ConfigError: missing file, malformed TOML, unknown key or value out of range.
    """
    _reject_unknown_environment()
    path = os.environ.get(CONFIG_PATH_VARIABLE)
    values = _read_file(Path(path)) if path else {}
    try:
        return XverConfig(**values)
    except ValidationError as error:
        raise ConfigError(_describe(error, path)) from error
