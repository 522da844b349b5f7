"""Monte Carlo arithmetic for whatever is written in NumPy: arrays whose every operation rounds at random.

`noise.py` has noisy steps of its own for the forward pass, where all runs stand in one batch. Gradients of parameters
are sums over the batch, so here each run is by itself. The definition's functions are run as they stand, with a
`NoisyArray` for each array of numbers:

- The result x of an operation moves by at most u |x|, in units of the arithmetic inside. After exp, log, pow and tanh
  it moves by several units, and after sin and cos by several units of 1 (`bounds.arithmetic`). Where the model's dtype
  has 16 bits, the result is rounded to that too, as an eager implementation does.
- A sum, also one of products, has the error of a sum in random order (`noise.py`). In 16 bits, sums over rows may be
  kept in these: PyTorch's layer norm adds up the gradient of its bias so (2.13.0, on CPUs).
- What only moves numbers, compares them or takes the larger one is exact.

Angles of positions are no result of a noisy array, and the error function is computed outside NumPy. Both have
functions here that stand for the definition's while a run lasts.

The slope of ReLU jumps at 0, so that a small error may change a gradient by much, and errors are not normal. Hence a
run takes the slope at x + t (x' - x), with x the exact number, x' that of the run, and t as many scales as the bound
allows. Then most numbers that an honest error may carry to the other side are there in some runs. A choice of experts,
and a largest number, jump too, and are taken as a run has them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from conformance.bounds.arithmetic import EXP, LOG, POW, TANH
from conformance.ports.noise import RUNS, Noise, bound_deviation, bound_rounding, quantile
from reference_numpy.feed_forward_vjp import SLOPES, relu_slope
from specification.checkpoints import flatten
from specification.parameters import mapped

# The package has functions of these names.
BLOCKS, FEED_FORWARD, TRANSFORMER = (
    importlib.import_module(f"reference_numpy.{name}") for name in ("blocks", "feed_forward", "transformer")
)

UNITS: dict[np.ufunc, float] = {
    **dict.fromkeys((np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.square), 1.0),
    **dict.fromkeys((np.tanh, np.sin, np.cos), TANH),
    np.exp: EXP,
    np.log: LOG,
    np.power: POW,
}
"""Errors of operations in roundings of the arithmetic inside."""
EXACT = (np.negative, np.absolute, np.maximum, np.minimum, np.sign, np.copysign)
"""Operations without rounding."""


class NoisyArray(np.ndarray):
    """An array of float64 whose operations round at random, as its `noise` says."""

    noise: Noise

    def __array_finalize__(self, source: object) -> None:
        self.noise = getattr(source, "noise", None)  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        noise = next(array.noise for array in (*inputs, *(out or ())) if isinstance(array, NoisyArray))
        plain = [strip(array) for array in inputs]
        options |= {} if out is None else {"out": tuple(map(strip, out))}
        result = getattr(ufunc, method)(*plain, **options)
        if method == "at":
            return add_error_at(noise, ufunc, *plain)
        if isinstance(result, tuple) or np.asarray(result).dtype != np.float64:
            return result
        moved = result + draw_error(noise, ufunc, method, plain, np.asarray(result), options)
        moved = np.where(np.isfinite(result), moved, result)
        if out is not None:
            out[0][...] = moved
            return out[0]
        return make_noisy(moved, noise)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        result = super().__array_function__(function, types, arguments, keywords)
        floating = isinstance(result, np.ndarray) and result.dtype == np.float64
        return make_noisy(result, find_noise([*arguments, *keywords.values()])) if floating else result


def strip(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, NoisyArray) else array


def find_noise(value: Any) -> Any:
    """Return the noise of the first noisy array in a structure."""
    if isinstance(value, NoisyArray):
        return value.noise
    parts = value if isinstance(value, list | tuple) else ()
    return next((noise for noise in map(find_noise, parts) if noise is not None), None)


def make_noisy(array: Any, noise: Noise | None) -> Any:
    if noise is None or np.asarray(array).dtype != np.float64:
        return array
    noisy = np.asarray(array).view(NoisyArray)
    noisy.noise = noise
    return noisy


def draw_error(
    noise: Noise, ufunc: np.ufunc, method: str, inputs: list[Any], result: np.ndarray, options: dict[str, Any]
) -> Any:
    """Draw the error of an operation's result.

    Raises:
        TypeError: the error of the operation is not known here.
    """
    p, last = noise.p, draw_last(noise, result)
    if ufunc is np.matmul:
        left, right = inputs
        return noise.sum_noise(result, left**2 @ right**2, left.shape[-1]) + last
    if ufunc is np.add and method == "reduce":
        terms, axis = inputs[0], options.get("axis", 0)
        squares = np.add.reduce(np.square(terms), **{name: value for name, value in options.items() if name != "out"})
        is_of_rows = axis is not None and terms.ndim - 1 not in np.atleast_1d(axis) % terms.ndim
        growth = p.output / p.inner if is_of_rows else 1.0
        return growth * noise.sum_noise(result, squares, terms.size // max(result.size, 1)) + last
    if ufunc in EXACT:
        return 0.0
    if method != "__call__" or ufunc not in UNITS:
        raise TypeError(f"no error is known for {ufunc.__name__}.{method}")
    reach = 1.0 if ufunc in (np.sin, np.cos) else np.abs(result)
    return noise.spread(result) * UNITS[ufunc] * p.inner * reach + last


def draw_last(noise: Noise, result: np.ndarray) -> Any:
    """Draw the error of rounding to 16 bits; 0 where the model has other dtypes."""
    p = noise.p
    return noise.spread(result) * (p.output * np.abs(result) + p.output_tiny) if p.output > p.inner else 0.0


def add_error_at(noise: Noise, ufunc: np.ufunc, table: np.ndarray, where: Any, terms: np.ndarray) -> None:
    """Move the rows of a table to which terms were added, one after the other in the model's dtype."""
    if ufunc is not np.add:
        raise TypeError(f"no error is known for {ufunc.__name__}.at")
    squares, counts = np.zeros_like(table), np.zeros_like(table)
    np.add.at(squares, where, np.square(terms))
    np.add.at(counts, where, 1.0)
    table += noise.p.output / noise.p.inner * noise.sum_noise(table, squares, counts)


@contextmanager
def replace_functions(noise: Noise, find_slope: Callable[[np.ndarray], Any]) -> Iterator[None]:
    """Let the definition's models take angles, the error function and ReLU's slope as an implementation has them.

    Angles are drawn once, so that the backward pass has those of the forward pass. `rotary_embedding` and
    `latent_attention`, which models do not call, stay as they are.
    """

    @functools.lru_cache
    def draw_table(positions: tuple[Any, ...], *rest: Any) -> tuple[Any, Any]:
        sine, cosine = noise.draw_rotary_table(np.array(positions), *rest)
        return make_noisy(sine, noise), make_noisy(cosine, noise)

    def rotary_table(positions: np.ndarray, *rest: Any) -> tuple[Any, Any]:
        shape = (*positions.shape[:-1], 1, positions.shape[-1], -1)
        sine, cosine = draw_table(tuple(positions.ravel().tolist()), *rest)
        return sine.reshape(shape), cosine.reshape(shape)

    @functools.lru_cache
    def positions(length: int, width: int, **options: Any) -> Any:
        return make_noisy(noise.draw_positions(length, width, **options)[0], noise)

    def complementary_error(x: np.ndarray) -> Any:
        exactly = exact_complementary_error(strip(x))
        return make_noisy(noise.move(exactly, TANH * noise.p.inner) + draw_last(noise, exactly), noise)

    exact_complementary_error = FEED_FORWARD.complementary_error
    with (
        patch.object(BLOCKS, "rotary_table", rotary_table),
        patch.object(TRANSFORMER, "sinusoidal_positions", positions),
        patch.object(FEED_FORWARD, "complementary_error", complementary_error),
        patch.dict(SLOPES, relu=find_slope),
    ):
        yield


def bound_noise(function: Callable[[Any], Any], arrays: Any, dtype: str, seed: int = 0) -> tuple[Any, Any]:
    """Return the exact results of a function of the definition, and the bounds of an honest implementation.

    Args:
        function: from arrays to results, both in any structure of arrays of float64.
        arrays: exact numbers.
        dtype: of the implementation.
        seed: draws the runs.
    """
    before_slopes: list[np.ndarray] = []

    def record_slope(x: np.ndarray) -> Any:
        before_slopes.append(x)
        return relu_slope(x)

    with np.errstate(all="ignore"):
        with patch.dict(SLOPES, relu=record_slope):
            exact = function(arrays)
        elements = sum(array.size for array in flatten(exact).values())
        squares = mapped(np.zeros_like, exact)
        for run in range(RUNS):
            noise = Noise(np.random.default_rng([seed, run]), dtype, 1)
            moved = run_noisily(function, arrays, noise, before_slopes, quantile(elements))
            squares = mapped(lambda total, one, right: total + (strip(one) - right) ** 2, squares, moved, exact)

    def bound(total: np.ndarray, right: np.ndarray) -> Any:
        return bound_deviation(total, elements, dtype) + bound_rounding(right, dtype)

    return exact, mapped(bound, squares, exact)


def run_noisily(
    function: Callable[[Any], Any], arrays: Any, noise: Noise, before_slopes: list[np.ndarray], reach: float
) -> Any:
    """Return what one noisy run of the function gives.

    before_slopes: the exact numbers at which it takes ReLU's slope, in order. reach: times their errors.
    """
    numbers = iter(before_slopes)

    def find_slope(x: np.ndarray) -> Any:
        exactly = next(numbers, x)
        # With another choice of experts, other rows may stand there.
        return relu_slope(exactly + reach * (x - exactly) if exactly.shape == x.shape else x)

    with replace_functions(noise, find_slope):
        return function(mapped(functools.partial(make_noisy, noise=noise), arrays))
