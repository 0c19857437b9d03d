"""Write the golden images of the corruptions: `python tools/corruption_goldens.py`.

Run it only after a deliberate change of a corruption, and say in docs/decisions/corruptions.md
what changed: the goldens exist so that an upgrade of a library cannot change a data set unseen.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from opentta.datasets.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, rng_for
from opentta.datasets.corruptions.constants import Size

GOLDEN = Path(__file__).parent.parent / "tests" / "datasets" / "golden" / "corruptions.npz"
SIZES: dict[Size, tuple[int, int]] = {"224": (40, 48), "32": (32, 32)}


def picture(height: int, width: int) -> npt.NDArray[np.uint8]:
    """A ramp, a disk, stripes and a checked corner, from integer arithmetic alone: (H, W, 3)."""
    y, x = np.mgrid[:height, :width]
    red = 255 * x // (width - 1)
    green = np.where((x - width // 2) ** 2 + (y - height // 2) ** 2 < (height // 3) ** 2, 200, 40)
    blue = np.where((x // 4 + y // 4) % 2 == 0, 220, 60) * (y < height // 2) + 5 * (y % 16)
    image = np.stack([red, green, blue], axis=-1)
    return np.clip(image, 0, 255).astype(np.uint8)


def main() -> None:
    """One array a table of constants and corruption: (5, H, W, 3), severities 1 to 5."""
    arrays: dict[str, npt.NDArray[np.uint8]] = {}
    for size, shape in SIZES.items():
        clean = arrays[f"{size}/clean"] = picture(*shape)
        for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS):
            arrays[f"{size}/{name}"] = np.stack(
                [
                    corrupt(clean, name, s, rng_for("golden", name, s), constants=size)
                    for s in range(1, 6)
                ]
            )
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(GOLDEN, **arrays)
    print(f"{GOLDEN}: {len(arrays)} arrays, {GOLDEN.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
