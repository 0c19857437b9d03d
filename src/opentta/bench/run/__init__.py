"""Running cells: engines, the batch walk, cost, progress."""
