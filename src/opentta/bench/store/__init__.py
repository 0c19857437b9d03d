"""Keeping results: the append-only store and the plans beside it."""
