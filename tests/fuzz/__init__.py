"""Random interleavings of everything that happens to the prefix cache, against a simple model.

``python -m tests.fuzz --minutes 30`` runs new seeds until the time is up. ``tests/unit/engine/
test_state_machine.py`` runs a fixed number of operations with a seed of the day, and the same
steps under hypothesis.
"""
