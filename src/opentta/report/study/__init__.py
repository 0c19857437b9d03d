"""A store read and averaged."""
