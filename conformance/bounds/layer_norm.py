"""Error bounds of layer norm, its variants and their gradients.

The row is taken as one axis of n elements; u is the unit roundoff inside.

Deviations. The mean of a row is off by at most gamma(n + 2) mean|x|, by whatever summation; so d = x - mean is off by
that, common to the row, and by 2 u (|x| + |d|), the first where x and mean are scaled before they are subtracted. Hence
the condition number (|x| + mean|x|) / |d|: what a mean far from zero costs, and no more.

Variance. A common error of the deviations enters the variance only squared, because deviations add up to 0. The sum of
squares costs gamma(n + 6), times the condition number sqrt(1 + mean^2 / variance) that one-pass updating algorithms
(Welford's; Chan, Golub and LeVeque 1983) have and two passes have not. E[x^2] - E[x]^2 has its square, and is not
covered.

Reciprocal. 1 / sqrt(variance + eps) has half the relative error of its argument, and 4 u for rsqrt.

Rows that are rounded before the weight multiplies them are covered only for subjects that declare it (`arithmetic.py`).
"""

from __future__ import annotations

import numpy as np

from conformance.bounds.arithmetic import Approx, Precision, exact, multiply, round_approx


def average(array: np.ndarray) -> np.ndarray:
    return np.mean(array, axis=-1, keepdims=True)


def deviation(x: np.ndarray, p: Precision) -> tuple[Approx, np.ndarray]:
    """x - mean, and the part of its error that the whole row shares."""
    common = p.gamma(x.shape[-1] + 2) * average(np.abs(x))
    value = x - average(x)
    own = 2 * p.inner * (np.abs(x) + np.abs(value))
    return Approx(value, common + own + p.inner_tiny), common


def mean_square(x: np.ndarray, p: Precision, count: int) -> Approx:
    """sum(x^2) / count with the errors of squaring, adding and dividing."""
    value = np.sum(x**2, axis=-1, keepdims=True) / count
    return Approx(value, p.gamma(x.shape[-1] + 6) * value + p.inner_tiny)


def variance(x: np.ndarray, d: Approx, common: np.ndarray, p: Precision, count: int) -> Approx:
    two_pass = mean_square(d.value, p, count)
    condition = np.sqrt(1 + average(x) ** 2 / np.maximum(two_pass.value, np.finfo(float).tiny))
    share = x.shape[-1] / count
    # Where the condition number exceeds 1 / u nothing is known but that deviations are as large as their error.
    error = np.minimum(two_pass.error * condition, two_pass.error + p.gamma(x.shape[-1]) ** 2 * average(x**2) * share)
    return Approx(two_pass.value, error + share * common**2)


def ceiling(value: np.ndarray, growth: np.ndarray, relative: np.ndarray, largest: float) -> np.ndarray:
    """The error of a reciprocal: what a relative error makes of it or, if that is too large, what eps leaves."""
    return np.where(relative < 0.75, value * growth, np.maximum(largest - value, value))


def reciprocal_root(square: Approx, eps: float, p: Precision) -> Approx:
    """1 / sqrt(square + eps)."""
    argument = square.value + eps
    relative = square.error / argument
    value = 1 / np.sqrt(argument)
    growth = 1 / np.sqrt(1 - np.minimum(relative, 0.75)) - 1
    return Approx(value, value * 4 * p.inner + ceiling(value, growth, relative, eps**-0.5))


def reciprocal_deviation(square: Approx, eps: float, p: Precision) -> Approx:
    """1 / (sqrt(square) + eps)."""
    spread = np.sqrt(square.value)
    moved = np.minimum(np.sqrt(square.error), square.error / np.maximum(spread, np.finfo(float).tiny))
    argument = spread + eps
    relative = moved / argument + 2 * p.inner
    value = 1 / argument
    growth = 1 / (1 - np.minimum(relative, 0.75)) - 1
    return Approx(value, value * 3 * p.inner + ceiling(value, growth, relative, 1 / eps))


def normalize_rows(kind: str, x: np.ndarray, eps: float, p: Precision) -> tuple[Approx, Approx, Approx]:
    """(x - mean or x, reciprocal, their product) for "layer_norm", "rms_norm" or "standard_deviation_norm"."""
    n = x.shape[-1]
    if kind == "rms_norm":
        d = exact(x)
        r = reciprocal_root(mean_square(x, p, n), eps, p)
    else:
        d, common = deviation(x, p)
        if kind == "layer_norm":
            r = reciprocal_root(variance(x, d, common, p, n), eps, p)
        else:
            r = reciprocal_deviation(variance(x, d, common, p, n - 1), eps, p)
    return d, r, multiply(d, r, p, 2)


def multiplier(weight: np.ndarray, plus_one: bool, p: Precision) -> Approx:
    """The weight, or 1 + weight; as n + n * weight that is off by u |n weight| more."""
    if not plus_one:
        return exact(weight)
    return Approx(1 + weight, p.inner * (np.abs(1 + weight) + np.abs(weight)))


def forward(kind: str, x: np.ndarray, weight: Approx, bias: np.ndarray | None, eps: float, p: Precision) -> Approx:
    """x is [rows, n], weight and bias are [n]."""
    _, _, n = normalize_rows(kind, x, eps, p)
    output = multiply(round_approx(n, p.normalized), weight, p)
    if bias is None:
        return output
    output = round_approx(output, p.normalized)
    value = output.value + bias
    # The bias counts by itself where it has -mean * weight / deviation added to it first.
    return Approx(value, output.error + p.inner * (np.abs(value) + output.error + 2 * np.abs(bias)))


def gradients(
    kind: str, x: np.ndarray, weight: Approx, cotangent: np.ndarray, eps: float, p: Precision
) -> dict[str, Approx]:
    """Gradients of x [rows, n], weight and bias [n]."""
    d, r, n = normalize_rows(kind, x, eps, p)
    rows, count = x.shape
    inner = round_approx(multiply(exact(cotangent), weight, p), p.normalized)
    products = multiply(inner, n, p)
    if kind == "standard_deviation_norm":
        spread = np.sqrt(np.sum(d.value**2, axis=-1, keepdims=True) / (count - 1))
        # d / spread is at most sqrt(n - 1) and as uncertain as d * r is, unless the row is constant.
        safe = np.where(spread == 0, 1, spread)
        # error(d / s) <= error(d) / s + |d| / s * relative error of s; that of r bounds the latter times s / (s + eps).
        relative = np.minimum(r.error / r.value * (spread + eps) / safe, 1)
        direction = Approx(d.value / safe, d.error / safe + np.abs(d.value) / safe * relative)
        slope = Approx(
            np.sum(products.value, axis=-1, keepdims=True) / (count - 1),
            np.sum(products.error, axis=-1, keepdims=True) / (count - 1)
            + p.gamma(count + 4) * np.sum(products.size, axis=-1, keepdims=True) / (count - 1),
        )
        second = multiply(direction, slope, p, 2)
    else:
        slope = Approx(average(products.value), average(products.error) + p.gamma(count + 4) * average(products.size))
        second = multiply(n, slope, p, 2)
    value = inner.value - second.value
    error = inner.error + second.error
    if kind != "rms_norm":
        # Autodiff takes the mean of both terms off, and of what is left once more; the second's is 0 but for rounding.
        value = value - average(inner.value)
        error = error + average(inner.error) + average(second.error)
        error = error + 2 * p.gamma(count + 3) * average(inner.size + second.size)
    error = error + 4 * p.inner * (inner.size + second.size + average(inner.size))
    x_gradient = multiply(Approx(value, error), r, p, 2)
    terms = round_approx(multiply(exact(cotangent), round_approx(n, p.normalized), p), p.normalized)
    weight_gradient = Approx(
        np.sum(terms.value, axis=0), np.sum(terms.error, axis=0) + p.gamma(rows) * np.sum(terms.size, axis=0)
    )
    bias_gradient = Approx(np.sum(cotangent, axis=0), p.gamma(rows) * np.sum(np.abs(cotangent), axis=0))
    return {"x": x_gradient, "weight": weight_gradient, "bias": bias_gradient}
