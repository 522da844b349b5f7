"""Numbers by which positions become encodings and biases: constants of the definition, not computation on data."""

from __future__ import annotations

import numpy as np

EXPONENTS = ("shared", "doubled")


def angular_frequencies(width: int, exponent: str) -> np.ndarray:
    """Compute the factors, float64 [width], that turn a position into each column's angle (POS-1).

    exponent: "shared" for 10000^(-2i/E) in the columns 2i and 2i+1, or "doubled" for 10000^(-2c/E) in column c.
    """
    column = np.arange(width)
    power = column if exponent == "doubled" else column // 2
    return 10000.0 ** (-2.0 * power / max(width, 1))


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Compute how much a bias falls with every position of distance, for each head, float64 [H] (POS-5).

    With P the largest power of two that is at most H, the first P heads have 2^(-8h / P), h = 1, ..., P. The others
    have every other slope of 2 P heads: 2^(-4h / P), h = 1, 3, 5, ...
    """
    power = 1 << (num_heads.bit_length() - 1)
    first = 8.0 / power * np.arange(1, power + 1)
    others = 4.0 / power * np.arange(1, 2 * (num_heads - power), 2)
    return 2.0 ** -np.concatenate([first, others])


def bucket_edges(buckets: int, furthest: int) -> tuple[int, ...]:
    """Compute the smallest distance of every bucket but the first, in ascending order (POS-6).

    The first e = buckets // 2 hold one distance each. With m = buckets - e, a distance n is in bucket e + k or a later
    one if e (furthest / e)^(k / m) <= n, that is if furthest^k e^(m - k) <= n^m: whole numbers, where a logarithm in
    floating point could fall on either side.

    buckets: of one direction, at least 2. furthest: more than e; from here on all distances share the last bucket.
    Where two of the edges are the same, no distance is in the first one's bucket.
    """
    exact = buckets // 2
    power = buckets - exact
    edges = list(range(1, exact + 1))
    for k in range(1, power):
        least, most = edges[-1], furthest
        while least < most:  # `bisect` is unknown to torch.compile
            middle = (least + most) // 2
            if middle**power < furthest**k * exact ** (power - k):
                least = middle + 1
            else:
                most = middle
        edges.append(least)
    return tuple(edges)
