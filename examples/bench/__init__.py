"""Benchmarks of the tree against SGLang's own cores; see :mod:`examples.bench.tree`."""
