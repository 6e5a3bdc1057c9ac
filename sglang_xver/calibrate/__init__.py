"""Measures on a running SGLang server whether KV of one version may be read by another.

``engine_client`` talks HTTP, ``arms`` runs the protocol, ``divergence`` and ``flips`` turn what
came back into figures, ``record`` makes the run that the compatibility service judges. Imports no
engine: everything goes through the server's public HTTP API.
"""
