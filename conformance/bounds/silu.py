"""Bounds of SiLU."""

from __future__ import annotations

import numpy as np

from conformance.bounds.arithmetic import EXP, Approx, Precision, exact, multiply
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case


def silu(case: Case, p: Precision) -> dict[str, Approx]:
    """x sigmoid(x) = max(x, 0) - t with t = a sigmoid(-a) and a = |x|; all errors below are in units of u.

    An exponential exp(-a) is off by E = 2 EXP + 2 a + 1, relatively: by EXP when it is taken at once, by 2 EXP + 1 as
    the square of exp(-a / 2), and by 2 a more as exp2(-a log2(e)), whose constant and product are rounded.

    Output. t is a product of a, exp(-a) and 1 / (1 + exp(-a)). exp(-a) is at most half of that sum, which is off by
    E / 2 + 1, so that t is off by 3/2 E + 4 of itself: two products and a quotient. For x >= 0 the result x - t rounds
    once more. Taken as x / (1 + exp(-x)), or as x times that reciprocal, it rounds 3 times, and E of the exponential
    moves it by t sigmoid(a) E, which is less than t E.

    Slope. With s = sigmoid(-a) it is s - a s (1 - s) for x < 0, and 1 less that for x >= 0. Differentiation of any of
    these forms adds up products of s, a s, a s^2 and a s (1 - s), at most s (1 + 2 a) in all. Each is off by 3 E + 9 at
    most: three exponentials, and the roundings of sums, products and quotients, with those of the cotangent; adding
    them up and multiplying what comes of it by the cotangent rounds 4 times. Where 1 - sigmoid(x) is formed for x >= 0
    it is off by 2, and x times as much counts. From exp(-x) < u / 2 on sigmoid(x) is 1 and the difference 0: what is
    lost then, x s, falls with x and is less than that.

    What is too small for a normal number may be lost. The root of exp(-a) is normal as long as the result is, so that
    nothing lost is a factor of anything large: a result and its t, and 4 terms of a gradient, before they are
    multiplied by the cotangent or after it.
    """
    x = np.asarray(case.inputs["x"], float)
    size = np.minimum(np.abs(x), 2.0**12)  # there the exponential is 0
    root = np.exp(-size / 2)
    below = root * root / (1 + root * root)
    lost = size * root * root / (1 + root * root)
    exponential = 2 * EXP + 2 * size + 1
    value = np.where(x >= 0, x, 0) - lost
    error = p.inner * (4 * np.abs(value) + (1.5 * exponential + 4) * lost) + 2 * p.inner_tiny
    results = {"output": Approx(value, error)}
    if not case.cotangents:
        return results
    slope = root * (1 - size / (1 + root * root)) * root / (1 + root * root)
    slope = np.where(x >= 0, 1 - slope, slope)
    complement = np.where(x >= 0, 2 * np.minimum(size, np.log(2 / p.inner)), 0)
    own = (
        p.inner * ((3 * exponential + 13) * below * (1 + 2 * size) + complement + 2 * np.abs(slope)) + 4 * p.inner_tiny
    )
    gradient = multiply(exact(case.cotangents["output"]), Approx(slope, own), p, 2)
    return results | {gradient_name("x"): Approx(gradient.value, gradient.error + 4 * p.inner_tiny)}
