"""Pure measures, and the meter that accumulates them along a stream."""
