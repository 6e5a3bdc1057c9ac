"""All mutants."""

from __future__ import annotations

from tests.mutants.rule_mutants import RULE_MUTANTS
from tests.mutants.tree_mutants import TREE_MUTANTS
from tests.mutants.update_mutants import UPDATE_MUTANTS

MUTANTS = (*TREE_MUTANTS, *RULE_MUTANTS, *UPDATE_MUTANTS)
