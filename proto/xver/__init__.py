"""Namespace of the public API."""
