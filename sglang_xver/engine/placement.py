"""Gives each request the tree namespace of its class, and notes what KV it was given."""

from __future__ import annotations

import dataclasses
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

from sglang_xver.fidelity import is_namespaced, namespace, request_class


class RequestPlacer:
    """Knows which classes are restricted since the last update.

    A request is placed whenever it is matched before it holds KV: what the tree keeps may have
    changed while it waited. Afterwards it stays where it is.
    """

    def __init__(self, families: tuple[str, ...] = ()) -> None:
        self.families = families
        self.restricted_classes: frozenset[str] = frozenset()

    def place(self, params: MatchPrefixParams) -> MatchPrefixParams:
        """Return ``params`` with the key in the request's namespace; sets ``req.extra_key``."""
        req = params.req
        if req is None or not (self.restricted_classes or is_namespaced(req.extra_key)):
            return params
        if not req.kv.holds_kv:
            self._choose_namespace(req)
        if params.key.extra_key == req.extra_key:
            return params
        key = params.key[:]
        key.extra_key = req.extra_key
        return dataclasses.replace(params, key=key)

    def _choose_namespace(self, req: Any) -> None:
        if not hasattr(req, "xver_client_extra_key"):
            req.xver_client_extra_key = req.extra_key
            req.xver_class = request_class(req.sampling_params.custom_params, self.families)
        own = req.xver_client_extra_key
        # A client's own key of the reserved form must not lead into another class's namespace.
        is_apart = req.xver_class in self.restricted_classes or is_namespaced(own)
        req.extra_key = namespace(req.xver_class, own) if is_apart else own
