"""How often each image came and was answered rightly, and what that says of a difference.

Streams that show an image many times have fewer independent answers than samples; an error that is
computed over images, not over samples, knows that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from opentta.metrics.samples import Array, Samples
from opentta.metrics.windows import last_third

COLUMNS = ("seen", "right", "seen_last", "right_last")
"""Columns of the counts: of the whole stream, then of its last third."""
_FIRST = ord("0")  # the letter of the first kind of image


def count_by_image(samples: Samples, image: Array) -> Array:
    """Counts of the known images: (M, 4), one line per image of the set up to the last that came.

    ``image`` (N,) is the place of each sample's image in its set, the same when it comes again.

    Example:
        >>> label, zeros = np.array([0, 1, 0, -1]), np.zeros(4, int)
        >>> samples = Samples(np.arange(4), label, np.array([0, 0, 0, 0]), zeros, zeros, zeros,
        ...     zeros, ("fog/5",))
        >>> count_by_image(samples, np.array([2, 0, 2, 1])).tolist()
        [[1, 0, 0, 0], [0, 0, 0, 0], [2, 2, 1, 1]]
    """
    known = samples.known
    right = (samples.predicted == samples.label)[known]
    last = last_third(samples)[known]
    columns = (np.ones_like(right), right, last, right & last)
    counts = [np.bincount(image[known], weights=column) for column in columns]
    return np.stack(counts, axis=1).astype(np.int64)


def pack_counts(counts: Array) -> dict[str, Any]:
    """Counts (M, 4) for JSON: the different lines there are, and for each image a letter.

    The letter ``0`` is the first of ``kinds``, ``1`` the second, and so on in Unicode. Where each
    image comes once, that is a string of M letters of at most five kinds.

    Example:
        >>> pack_counts(np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]))
        {'kinds': [[0, 0, 0, 0], [1, 0, 0, 0]], 'images': '101'}
    """
    kinds, which = np.unique(counts, axis=0, return_inverse=True)
    letters = "".join(chr(_FIRST + kind) for kind in which.ravel().tolist())
    return {"kinds": kinds.tolist(), "images": letters}


def unpack_counts(packed: Mapping[str, Any]) -> Array:
    """The counts (M, 4) that ``pack_counts`` was given.

    Example:
        >>> unpack_counts({"kinds": [[0, 0, 0, 0], [1, 0, 0, 0]], "images": "10"}).tolist()
        [[1, 0, 0, 0], [0, 0, 0, 0]]
    """
    which = np.array([ord(letter) - _FIRST for letter in packed["images"]], dtype=np.int64)
    counts: Array = np.array(packed["kinds"], dtype=np.int64).reshape(-1, len(COLUMNS))[which]
    return counts


def add_counts(tables: Iterable[Array]) -> Array:
    """The sum of counts (M, K) of streams of one set: an image of several streams is one image.

    Example:
        >>> add_counts([np.array([[1, 0]]), np.array([[1, 1], [2, 0]])]).tolist()
        [[2, 1], [2, 0]]
    """
    held = list(tables)
    total = np.zeros((max(map(len, held)), held[0].shape[1]), dtype=np.int64)
    for table in held:
        total[: len(table)] += table
    return total


def paired_gain(own: Array, other: Array) -> tuple[float, float]:
    """Accuracy of ``own`` minus that of ``other``, and its standard error clustered by image.

    Both are (M, 2), ``seen`` and ``right`` of each image in the same streams. The difference is one
    of ratios; with n images, each with a residual r of the difference, its error is
    √(n / (n - 1) · Σ r²). NaN where nothing came; the error is NaN for a single image too.

    Example:
        >>> gain, error = paired_gain(np.array([[2, 2], [2, 1]]), np.array([[2, 1], [2, 1]]))
        >>> gain, round(error, 3)
        (0.25, 0.25)
    """
    tables = add_counts([own, other * 0]), add_counts([other, own * 0])  # of one length
    n = int(((tables[0] + tables[1])[:, 0] > 0).sum())
    if not all(table[:, 0].any() for table in tables):
        return math.nan, math.nan
    shares, residuals = [], []
    for seen, right in (table.T for table in tables):
        shares.append(right.sum() / seen.sum())
        residuals.append((right - shares[-1] * seen) / seen.sum())
    squares = float(((residuals[0] - residuals[1]) ** 2).sum())
    error = math.sqrt(n / (n - 1) * squares) if n > 1 else math.nan
    return float(shares[0] - shares[1]), error
