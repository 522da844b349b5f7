"""Layer norm, its variants and their gradients in float64, step by step: what a mistake of a norm changes.

    shift   = what is subtracted from a row         inverse = 1 / divisor(square, eps)
    normal  = (x - shift) * inverse                 output  = normal * weight + bias

Rows are flat: x, normal and cotangents are [rows, n], the statistics of a row [rows, 1], weight and bias [n].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.mistakes.call import Results

NORMS = ("layer_norm", "rms_norm", "standard_deviation_norm")
DERIVATIVE_STEP = 1e-100
"""An imaginary step: the imaginary part of f(s + i h) / h is the derivative, without cancellation."""


class Statistics(NamedTuple):
    """Statistics of rows and their derivatives.

    shift: what is subtracted. share: d shift / d x, [n]. square: the variance or mean square. slope: d square / d x,
    [rows, n], or None where it is not predicted.
    """

    shift: Any
    share: Any
    square: np.ndarray
    slope: np.ndarray | None


def weighted_sum(x: np.ndarray, weights: np.ndarray | None) -> Any:
    """Sum the rows by these weights [n], exactly in constant rows; None for 0."""
    if weights is None:
        return 0.0
    total = float(np.sum(weights))
    return (x[:, :1] * (1.0 if np.isclose(total, 1, rtol=1e-12) else total)) + ((x - x[:, :1]) @ weights)[:, None]


def measure_rows(
    x: np.ndarray, mean: np.ndarray | None, squares: np.ndarray, center: np.ndarray | None = None, zeros: float = 0.0
) -> Statistics:
    """Sum up rows by weights.

    Args:
        x: [rows, n].
        mean: the weights of the elements in what is subtracted, [n]; None subtracts nothing.
        squares: the weights of the squared deviations, [n].
        center: the weights in what the deviations are taken from; None for 0.
        zeros: the weight of the square of the deviation of padding, which is 0.
    """
    middle = weighted_sum(x, center)
    deviation = x - middle
    square = (deviation**2 @ squares)[:, None] + zeros * middle**2
    slope = 2 * squares * deviation
    if center is not None:
        slope = slope + 2 * center * (zeros * middle - (deviation @ squares)[:, None])
    return Statistics(weighted_sum(x, mean), 0.0 if mean is None else mean, square, slope)


def add_eps(square: np.ndarray, eps: float) -> Any:
    return np.sqrt(square + eps)


def add_eps_outside(square: np.ndarray, eps: float) -> Any:
    return np.sqrt(square) + eps


@dataclass(frozen=True)
class NormSteps:
    """The quantities of one call, and what a mistake may replace.

    Attributes:
        x: [rows, n]; n is not the weight's size where statistics run over other axes.
        weight, bias: [rows, n] or [n]; the weight has 1 added to it where the call asks for that.
        bar: the cotangent, [rows, n]; 0 where the call has none.
        statistics: of the rows.
        divisor: of the square and eps.
        rows: [rows], the row whose statistics each row has; None for its own.
        pooled: all rows have the mean of their squares.
        source: [rows * n], the place whose result each place of the output gets, -1 for 0; None for its own.
    """

    case: Case
    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    bar: np.ndarray
    eps: float
    statistics: Statistics
    divisor: Callable[[Any, float], Any]
    rows: np.ndarray | None = None
    pooled: bool = False
    source: np.ndarray | None = None

    @classmethod
    def read_case(cls, case: Case, width: int = 0) -> NormSteps:
        """The right steps, or those of rows of another width."""
        wide = {name: array.astype(float) for name, array in case.inputs.items()}
        n = width or wide["weight"].size
        x = wide["x"].reshape(-1, n)
        weight, bias = wide["weight"] + bool(case.options.get("plus_one")), wide.get("bias", np.zeros(1))
        if n == weight.size:
            weight, bias = weight.ravel(), np.broadcast_to(bias.ravel(), n)
        else:
            weight, bias = (np.broadcast_to(array, wide["x"].shape).reshape(x.shape) for array in (weight, bias))
        bar = case.cotangents["output"].astype(float).reshape(x.shape) if case.cotangents else np.zeros(x.shape)
        mean = None if case.operation == "rms_norm" else np.full(n, 1 / n)
        spread = case.operation == "standard_deviation_norm"
        squares = np.full(n, 1 / max(n - 1, 1) if spread else 1 / n)
        statistics = measure_rows(x, mean, squares, mean)
        eps, divisor = case.options.get("eps", 1e-5), add_eps_outside if spread else add_eps
        return cls(case, x, weight, bias, bar, eps, statistics, divisor)

    def change(self, **fields: Any) -> NormSteps:
        return replace(self, **fields)

    def change_statistics(
        self, mean: np.ndarray | None, squares: np.ndarray, center: np.ndarray | None = None, zeros: float = 0.0
    ) -> NormSteps:
        """With statistics by these weights, see `measure_rows`; a norm that has no mean keeps none."""
        if not self.has_mean:
            mean, center = None, None
        return self.change(statistics=measure_rows(self.x, mean, squares, center, zeros))

    @property
    def has_mean(self) -> bool:
        return self.case.operation != "rms_norm"

    @property
    def n(self) -> int:
        return int(self.x.shape[1])

    @property
    def square(self) -> Any:
        square = self.statistics.square
        if self.pooled:
            return np.broadcast_to(np.mean(square), square.shape)
        return square if self.rows is None else square[self.rows]

    @property
    def deviation(self) -> np.ndarray:
        shift = self.statistics.shift
        return np.asarray(self.x - (shift if self.rows is None or not np.ndim(shift) else shift[self.rows]))

    @property
    def inverse(self) -> np.ndarray:
        return np.asarray(1 / self.divisor(self.square, self.eps))

    @property
    def normal(self) -> np.ndarray:
        return np.asarray(self.deviation * self.inverse)

    @property
    def row_bar(self) -> np.ndarray:
        """The gradient of the normalised rows."""
        return np.asarray(self.bar * self.weight)

    def forward(self) -> np.ndarray:
        """The output, as one axis."""
        output = (self.normal * self.weight + self.bias).ravel()
        return output if self.source is None else np.where(self.source < 0, 0, output[self.source])

    def pull_back(
        self,
        g: np.ndarray | None = None,
        *,
        of_mean: np.ndarray | None = None,
        of_square: np.ndarray | None = None,
        mean: float | np.ndarray = 1.0,
        square: float | np.ndarray = 1.0,
    ) -> np.ndarray:
        """Compute the gradient of x from that of the normalised rows.

        Args:
            g: [rows, n]; `row_bar` unless given.
            of_mean, of_square: what stands for g in the sums over a row, of the mean's and of the square's part.
            mean, square: how often each part counts.
        """
        g = self.row_bar if g is None else g
        s, inverse, deviation = self.statistics, self.inverse, self.deviation
        shift_bar = -np.sum((g if of_mean is None else of_mean) * inverse, axis=-1, keepdims=True)
        inverse_bar = np.sum((g if of_square is None else of_square) * deviation, axis=-1, keepdims=True)
        slope = np.imag(self.divisor(self.square + 1j * DERIVATIVE_STEP, self.eps)) / DERIVATIVE_STEP
        square_bar = np.where(inverse_bar == 0, 0, -inverse_bar * inverse**2 * slope)
        if self.pooled:
            square_bar = np.broadcast_to(np.mean(square_bar), square_bar.shape)
        elif self.rows is not None:
            shift_bar, square_bar = (
                np.bincount(self.rows, array[:, 0], minlength=len(self.x))[:, None] for array in (shift_bar, square_bar)
            )
        assert s.slope is not None
        return np.asarray(g * inverse + mean * s.share * shift_bar + square * s.slope * square_bar)

    def results(self) -> Results:
        """The output, and the gradients that the call asks for."""
        found = {"output": self.forward()}
        if self.case.cotangents:
            bar = self.bar
            if self.source is not None:  # a computed element has the cotangents of all places that get it
                taken = self.source >= 0
                bar = np.bincount(self.source[taken], bar.ravel()[taken], minlength=self.x.size).reshape(bar.shape)
            if self.statistics.slope is not None:
                found[gradient_name("x")] = self.pull_back(bar * self.weight)
            found |= self.sum_over_rows(bar)
        return self.reshape_results(found)

    def gradients(self, found: Results) -> Results:
        """These in the shapes of their arguments, where the call asks for gradients."""
        return self.reshape_results(found) if self.case.cotangents else {}

    def sum_over_rows(self, bar: np.ndarray) -> Results:
        """The gradients of weight and bias."""
        sums = {"weight": bar * self.normal, "bias": bar}
        size = self.case.inputs["weight"].size
        return {gradient_name(name): array.reshape(-1, size).sum(axis=0) for name, array in sums.items()}

    def reshape_results(self, results: Results) -> Results:
        """Each in the shape of its argument; of what the call has."""
        inputs = {gradient_name(name): array for name, array in self.case.inputs.items()}
        shapes = {"output": inputs[gradient_name("x")].shape} | {name: array.shape for name, array in inputs.items()}
        return {name: array.reshape(shapes[name]) for name, array in results.items() if name in shapes}
