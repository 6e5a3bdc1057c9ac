"""Scenarios in which caches of other serving stacks went wrong, driven the same way."""
