"""Breaks one safety rule at a time in a copy of the package; the tests must notice every time.

``python -m tests.mutants`` prints a line per mutant and ``killed n/n``; exit status 1 when one
survives.
"""
