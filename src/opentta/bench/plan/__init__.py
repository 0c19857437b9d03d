"""What to run: presets, and the cells they expand to."""
