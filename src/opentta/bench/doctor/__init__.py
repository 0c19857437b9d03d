"""Looks for the usual traps of a benchmark on this machine."""
