"""Compatibility service API."""
