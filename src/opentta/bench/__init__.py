"""Cells, the runner and stored results."""
