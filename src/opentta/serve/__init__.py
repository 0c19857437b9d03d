"""Serving an adapting model (optional)."""
