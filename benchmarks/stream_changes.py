"""Does a budget wake when the stream changes, and only then? The embedded images, row by row.

    python benchmarks/stream_changes.py [--severity 3]

Clean, then every corruption, six groups of 32 images each. Printed for each: whether its first
group was told from those before it, and how many of the other five were, by mistake.
"""

import argparse

import numpy as np
import torch

from opentta.adapter.spending import Spending
from opentta.config import Policy
from opentta.datasets.corruptions import CORRUPTIONS, corrupted
from opentta.datasets.embedded import embedded_set

GROUP, GROUPS = 32, 6


def main() -> None:
    """Walk the corruptions once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--severity", type=int, default=3)
    severity = parser.parse_args().severity
    known = embedded_set("pets", "benchmark", "known")
    order = np.random.default_rng(0).permutation(len(known.keys))[: GROUP * GROUPS]
    spending = Spending(Policy(group=GROUP, budget=1.5), cost=lambda samples: 5.0 * samples)
    found = mistaken = 0
    for name in ("clean", *CORRUPTIONS):
        changes = []
        for group in order.reshape(GROUPS, GROUP):
            pixels = [known.read(int(i)) for i in group]
            if name != "clean":
                keys = [known.keys[int(i)] for i in group]
                pairs = zip(pixels, keys, strict=True)
                pixels = [corrupted(image, key, name, severity) for image, key in pairs]
            images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
            changes.append(spending._has_changed(images))
        print(
            f"{name:<20}{'found' if changes[0] else '-':<8}{sum(changes[1:])} by mistake",
            flush=True,
        )
        found, mistaken = found + changes[0], mistaken + sum(changes[1:])
    print(f"{found} of {len(CORRUPTIONS)} changes found, {mistaken} by mistake")


if __name__ == "__main__":
    main()
