"""Where the real material for tests lies."""

import os
from pathlib import Path


def shared_data() -> Path:
    """OPENTTA_DATA, else the folder beside the repository."""
    return Path(os.environ.get("OPENTTA_DATA", Path(__file__).parents[2] / "shared"))
