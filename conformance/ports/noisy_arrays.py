"""Monte Carlo arithmetic for whatever is written in NumPy: arrays whose every operation rounds at random.

`noise.py` has noisy steps of its own for the forward pass, where all runs stand in one batch. Gradients of parameters
are sums over the batch, so each run takes its own way. The definition's functions are run as they stand, with a
`NoisyArray` for each array of numbers:

- The result x of an operation moves by at most u |x|, in units of the arithmetic inside, and by several units after
  exp, tanh, sin, cos, log and pow (`bounds.arithmetic`). In 16 bits it is rounded to these too, as an eager
  implementation does.
- A sum, also one of products, has the error of a sum in random order (`noise.py`). In 16 bits, sums over rows may be
  kept in these: PyTorch's layer norm adds up the gradient of its bias so (2.13.0, on CPUs).
- What only moves numbers, compares them or takes the larger one is exact.

Angles of positions are no result of a noisy array, and the error function is computed outside NumPy. Both have
functions here that stand for the definition's while a run lasts.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from conformance.bounds.arithmetic import EXP, LOG, POW, TANH, Precision
from conformance.ports.noise import RUNS, Noise, quantile
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
"""Errors of operations in roundings of the arithmetic inside; others are exact."""


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
            return None
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
        return make_noisy(result, find_noise(arguments)) if floating else result


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
    """Draw the error of an operation's result."""
    p = noise.p
    last = p.output if p.output > p.inner else 0.0
    if ufunc is np.matmul:
        left, right = inputs
        size = left.shape[-1]
        return noise.sum_noise(result, left**2 @ right**2, size) + noise.move(0 * result, last * np.abs(result))
    if ufunc is np.add and method == "reduce":
        terms, axis = inputs[0], options.get("axis", 0)
        squares = np.add.reduce(np.square(terms), **{name: value for name, value in options.items() if name != "out"})
        is_of_rows = axis is not None and terms.ndim - 1 not in np.atleast_1d(axis) % terms.ndim
        growth = p.output / p.inner if is_of_rows else 1.0
        error = growth * noise.sum_noise(result, squares, terms.size // max(result.size, 1))
        return error + noise.move(0 * result, last * np.abs(result))
    if method != "__call__" or ufunc not in UNITS:
        return 0.0
    reach = 1.0 if ufunc in (np.sin, np.cos) else np.abs(result)
    return noise.spread(result) * (UNITS[ufunc] * p.inner * reach + last * np.abs(result))


@contextmanager
def replace_functions(noise: Noise) -> Iterator[None]:
    """Let the definition take angles of positions and the error function as an implementation has them.

    Angles are drawn once, so that the way back has those of the way there.
    """

    @functools.lru_cache
    def draw_table(positions: tuple[Any, ...], *rest: Any) -> tuple[Any, Any]:
        sine, cosine = noise.move_rotary_table(np.array(positions), *rest)
        return make_noisy(sine, noise), make_noisy(cosine, noise)

    def rotary_table(positions: np.ndarray, *rest: Any) -> tuple[Any, Any]:
        shape = (*positions.shape[:-1], 1, positions.shape[-1], -1)
        sine, cosine = draw_table(tuple(positions.ravel().tolist()), *rest)
        return sine.reshape(shape), cosine.reshape(shape)

    @functools.lru_cache
    def positions(length: int, width: int, **options: Any) -> Any:
        return make_noisy(noise.move_positions(length, width, **options)[0], noise)

    def complementary_error(x: np.ndarray) -> Any:
        return make_noisy(noise.move(exact_complementary_error(strip(x)), TANH * noise.p.inner), noise)

    exact_complementary_error = FEED_FORWARD.complementary_error
    with (
        patch.object(BLOCKS, "rotary_table", rotary_table),
        patch.object(TRANSFORMER, "sinusoidal_positions", positions),
        patch.object(FEED_FORWARD, "complementary_error", complementary_error),
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
    with np.errstate(all="ignore"):
        exact = function(arrays)
        squares = mapped(np.zeros_like, exact)
        for run in range(RUNS):
            noise = Noise(np.random.default_rng([seed, run]), dtype, 1)
            with replace_functions(noise):
                moved = function(mapped(functools.partial(make_noisy, noise=noise), arrays))
            squares = mapped(lambda total, one, right: total + (strip(one) - right) ** 2, squares, moved, exact)
        size = sum(array.size for array in flatten(exact).values())
        factor = quantile(size) * math.sqrt((2 if dtype == "float64" else 1) / RUNS)
        p = Precision.make(dtype)

        def bound(total: np.ndarray, right: np.ndarray) -> Any:
            return factor * np.sqrt(total) + p.output * np.abs(right) + p.output_tiny

        return exact, mapped(bound, squares, exact)
