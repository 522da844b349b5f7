"""Rounding errors of attention taken as independent ones: what they do to each result, in quadrature.

`attention.py` adds up what every rounding may do at worst. Behind a chain of matrix products, in which thousands of
roundings reach one number, that is far more than they do together: their signs are independent, so what they do to a
result y adds up in quadrature, to sigma = sqrt(sum over roundings k of (dy/dx_k)^2 a_k^2), where a_k is the largest
error of rounding k by itself. Errors to nearest are as good as uniform within that, with variance a_k^2 / 3, and then
y is off by more than LAMBDA / sqrt(3) sigma with a probability below 2 exp(-LAMBDA^2 / 2) (Hoeffding's inequality for
uniform variables).

Sigma is found without derivatives: everything is computed `SAMPLES` times in float64, every time with a random sign for
each a_k, and the mean square of what comes out differently is taken. Averaged over the chi-square distribution of such
an estimate the probability is 2 (1 + LAMBDA^2 / SAMPLES)^(-SAMPLES / 2), which is 3e-9 for 32 samples; far less where
the a_k are not attained, as for a whole sum of n products, whose a_k is sqrt(n) u times the sum of absolute terms. The
signs are the same for equal cases.

What is not independent shares a sign: the roundings of the scale and of constants like it are the same for all scores,
those of a row's sum or log-sum-exp are the same for the row, and equal weights are rounded equally.

Errors of float64 arithmetic are sampled as large as float32's, where float64's own do not matter, and scaled back. The
result stands where no score is off by more than `LINEAR`, so that exponentials are nearly linear in the errors; in
other cases, and wherever it is smaller, the worst case does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance.bounds.arithmetic import LAMBDA, Format, Precision, exact, matmul, stored
from conformance.bounds.rounding import held, side

SAMPLES = 32
LINEAR = 0.25

Samples = np.ndarray
"""[1 + SAMPLES, ...]: the exact value, then the samples; or [1, ...] for what has no error."""


class Noise:
    """Adds errors with random signs to samples."""

    def __init__(self, p: Precision) -> None:
        self.rng = np.random.default_rng(0)
        declared = p.weights is not None or p.products is not None
        self.scaling = 1.0 if declared else max(1.0, 2.0**-24 / p.inner)
        self.declared, self.p = p, replace(p.undeclared, growth=1.0)

    def bound(self, x: Samples) -> np.ndarray:
        """LAMBDA / sqrt(3) sigma."""
        return LAMBDA / np.sqrt(3.0) * deviation(x) / self.scaling

    def signs(self, shape: Sequence[int]) -> np.ndarray:
        """For each sample; 0 for the exact value."""
        count = int(np.prod(shape))
        bits = np.frombuffer(self.rng.bytes(-(-SAMPLES * count // 8)), np.uint8)
        signs = np.zeros((1 + SAMPLES, *shape))
        signs[1:] = 1 - 2.0 * np.unpackbits(bits, count=SAMPLES * count).reshape(SAMPLES, *shape)
        return signs

    def add(self, x: Samples, largest: np.ndarray, shape: Sequence[int] | None = None) -> Samples:
        """x with errors of this size; shape: of their signs, 1 for each axis along which they share one."""
        return x + self.scaling * largest * self.signs(x.shape[1:] if shape is None else shape)

    def stored(self, x: Samples) -> Samples:
        """Rounded to the dtype of the inputs."""
        return x if self.p.output == self.p.inner else self.add(x, stored(exact(x[0]), self.p).error)

    def rounded(self, x: Samples, form: Format | None, scale: float = 1.0) -> Samples:
        """Rounded to a format that is declared."""
        if form is None:
            return x
        return self.add(x, form.unit * np.abs(x[0]) + form.tiny / min(1.0, abs(scale) or 1.0))

    def side(self, x: Samples) -> Samples:
        """A side of a product that is an input, or was rounded to the inputs' dtype."""
        return x if held(self.declared) else self.rounded(x, self.declared.products)

    def side_error(self, x: np.ndarray) -> np.ndarray:
        """The largest error of such a side."""
        return side(exact(x), self.declared).error

    def scaled_side(self, x: Samples, scale: float) -> Samples:
        return self.rounded(x, self.declared.products, scale)

    def product(self, x: Samples, y: Samples, roundings: int = 0, scale: float = 1.0) -> Samples:
        """scale * x @ y."""
        error = matmul(exact(x[0]), exact(y[0]), self.p, roundings, scale).error
        return self.add(scale * (x @ y), error)

    def linear(self, x: Samples, weight: np.ndarray, bias: np.ndarray | None) -> Samples:
        held_weight = self.side(weight[None])
        output = self.product(self.side(x), held_weight[:, *[None] * (x.ndim - 3)], 1)
        if bias is None:
            return output
        return self.add(output + bias, self.p.inner * (np.abs(output[0] + bias) + np.abs(bias)))

    def linear_gradients(self, x: Samples, weight: np.ndarray, bar: Samples) -> tuple[Samples, Samples, Samples]:
        """Of x, weight and bias."""
        rows = flattened(bar)
        bias_bar = self.add(rows.sum(axis=-2), self.p.gamma(rows.shape[-2]) * np.abs(rows[0]).sum(axis=-2))
        x, held_weight, bar = self.side(x), self.side(weight[None]), self.side(bar)
        x_bar = self.product(bar, transposed(held_weight)[:, *[None] * (x.ndim - 3)])
        weight_bar = self.product(transposed(flattened(x)), flattened(bar), int(np.prod(x.shape[1:-2])))
        return self.side(x_bar), self.side(weight_bar), bias_bar


def flattened(x: Samples) -> Samples:
    """[samples, rows, width]."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def transposed(x: Samples) -> Samples:
    return np.swapaxes(x, -1, -2)


def deviation(x: Samples) -> np.ndarray:
    """The root of the mean square of what the samples are off by."""
    return np.sqrt(np.mean((x[1:] - x[0]) ** 2, axis=0))
