"""The contract: the one call, what a batch must be, snapshot, recording."""
