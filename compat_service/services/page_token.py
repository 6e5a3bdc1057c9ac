"""Page tokens of listings: opaque to clients, bound to the filters they were made for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence

from compat_service.errors import FieldViolation, InvalidRequestError

_VERSION = 1


def encode_page_token(before_revision: int, filters: Sequence[str]) -> str:
    """Return the token of the page that starts below ``before_revision``."""
    content = [_VERSION, before_revision, _digest(filters)]
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode()


def decode_page_token(token: str, filters: Sequence[str]) -> int:
    """Return the revision that the page starts below.

    Raises:
        InvalidRequestError: the token was not made here, or for other filters.
    """
    try:
        content = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise _bad_token("is not a token of this service") from error
    match content:
        case [int(version), int(before), str(digest)] if version == _VERSION and before >= 0:
            if digest != _digest(filters):
                raise _bad_token("belongs to a listing with other filters")
            if before >= 2**63:
                raise _bad_token("is not a token of this service")
            return before
        case _:
            raise _bad_token("is not a token of this service")


def _digest(filters: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(filters)).encode()).hexdigest()[:16]


def _bad_token(problem: str) -> InvalidRequestError:
    text = f"{problem}; use next_page_token of the previous page, or none to start over"
    return InvalidRequestError([FieldViolation("page_token", "BAD_TOKEN", text)])
