"""Which KV a request may reuse: its class, from the hint that the client gave. Pure module.

A request states its task family, or asks for ``native``, in ``sampling_params.custom_params``:
``{"xver": {"task": "niah", "fidelity": "native"}}``. A class that may see less than the tree keeps
gets a namespace of its own, so that its KV and the kept KV never meet.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sglang_xver.errors import HintError

HINT_KEY = "xver"
FAMILY_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"

NATIVE = "native"
"""Class of requests that accept only KV of the current weights' own lineage."""
STRICTEST = "strictest"
"""Class of requests without a hint: they accept what every declared family accepts."""
RESERVED_CLASSES = frozenset({NATIVE, STRICTEST})

_NAMESPACE_PREFIX = "xver:"


class Hint(BaseModel):
    """What a client says about one request."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: str | None = Field(default=None, pattern=FAMILY_PATTERN)
    """Task family, as the deployment declares it."""
    fidelity: Literal["native", "default"] = "default"
    """``native`` reuses no KV of other weights, whatever was measured."""


def parse_hint(custom_params: Any) -> Hint | None:
    """Return the hint in ``custom_params``, or None without one.

    Raises:
        HintError: the hint is not an object, or has an unknown key or value.
    """
    if not isinstance(custom_params, dict) or HINT_KEY not in custom_params:
        return None
    try:
        return Hint.model_validate(custom_params[HINT_KEY])
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or HINT_KEY}="
            f"{item['input']!r}: {item['msg']}"
            for item in error.errors()
        )
        raise HintError(
            f"custom_params[{HINT_KEY!r}] is malformed: {problems[:500]}. Expected an object like "
            '{"task": "niah", "fidelity": "default"}; fidelity is "native" or "default".'
        ) from error


def request_class(custom_params: Any, families: Collection[str]) -> str:
    """Return the class of a request on a deployment that declares ``families``.

    What nobody can judge is native: a family that is not declared, a hint that is malformed.
    """
    try:
        hint = parse_hint(custom_params)
    except HintError:
        return NATIVE
    if hint is None:
        return STRICTEST
    if hint.fidelity == "native":
        return NATIVE
    if hint.task is None:
        return STRICTEST
    return hint.task if hint.task in families else NATIVE


def namespace(class_name: str, extra_key: str | None) -> str:
    """Return the tree namespace of a class for requests whose own ``extra_key`` is given.

    The client's key stays at the end, where SGLang looks for an adapter's id.
    """
    return f"{_NAMESPACE_PREFIX}{class_name}|{extra_key or ''}"


def is_namespaced(extra_key: str | None) -> bool:
    """Whether ``extra_key`` has the form that :func:`namespace` gives."""
    return extra_key is not None and extra_key.startswith(_NAMESPACE_PREFIX)


def class_of_namespace(extra_key: str | None) -> str | None:
    """Return the class that a node's namespace belongs to; None for the one of everybody."""
    if extra_key is None or not extra_key.startswith(_NAMESPACE_PREFIX):
        return None
    return extra_key[len(_NAMESPACE_PREFIX) :].partition("|")[0]
