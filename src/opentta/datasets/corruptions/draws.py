"""The random draw of one corrupted file: a function of its key, the corruption and the severity."""

import hashlib

import numpy as np


def rng_for(key: str, name: str, severity: int) -> np.random.Generator:
    """The generator that corrupts the file ``key``, the same on every machine and in any order.

    ``key`` is the file's posix path relative to its folder. No stream's seed enters, so one
    file has one corrupted version, as it has in the released ImageNet-C.

    Example:
        >>> int(rng_for("n01440764/a.JPEG", "fog", 5).integers(1000))
        69
    """
    # Each part with its length in front, so that no two triples write the same bytes.
    parts = [part.encode("utf-8") for part in (key, name, str(int(severity)))]
    text = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    digest = hashlib.blake2b(text, digest_size=16, person=b"opentta.corrupt").digest()
    # PCG64 by name: numpy may change what its default generator is.
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
