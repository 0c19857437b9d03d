"""Looks for what would make a benchmark fail here, or change its numbers."""
