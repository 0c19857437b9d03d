"""The paper's numbers as data."""
