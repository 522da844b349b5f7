"""Bounds for what many steps come to: every step's own bound, carried to the results by the definition's derivative.

Let step k of a model be off by d_k, with |d_k| <= b_k elementwise (`local.py`). To first order the results are off by
sum_k J_k d_k, where J_k is their derivative by what step k gives, so by at most sum_k |J_k| b_k. This keeps what a norm
or a residual connection takes away again, which absolute values carried from layer to layer lose.

The matrices J_k are never made. If every d_k is b_k times numbers drawn from the standard Cauchy distribution, then
sum_k J_k d_k has a Cauchy distribution too, and its scale is exactly sum_k |J_k| b_k, because that distribution is
stable; the median of absolute values of many draws is an estimate of the scale (Indyk, J. ACM 53, 2006). So the
definition is run in float64 with such noise after each step, small enough for the first order to hold, and what its
results move by is scaled up again. What a step computes twice, as a backward pass does, gets the same noise twice.

The bound is twice the median of SAMPLES draws. The median of 64 falls below half the scale with a probability of 4e-4
for one element; that is then a bound for all errors but those that add up, without one cancelling another, to more than
half of what is possible. Where the result is float64, the definition that it is compared with is as far off itself, and
the bound is doubled once more.

The slope of ReLU, and the place of a maximum, are taken where the definition has them.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.bounds.arithmetic import Precision
from conformance.checks.comparison import compare
from conformance.checks.findings import Finding
from conformance.models.instrumentation import Visit, instrument_package
from conformance.models.local import local_bound
from conformance.oracle.reference import Exact
from specification.parameters import mapped

if TYPE_CHECKING:
    from specification.parameters import ModelParameters

SAMPLES = 64
SMALL = 2.0**-34
"""Noise in units of a result's size: the square of it, times what the Cauchy distribution's tail reaches, is far
smaller still, and the rounding of float64 is far smaller too."""

Run = Callable[[types.SimpleNamespace], Any]
"""From the functions of an instrumented definition to results, in any structure of float64 arrays."""

Walk = Callable[[Run, Any, Visit], Any]
"""`walk_steps`, or another way to collect what the run gives."""


def carried_bound(
    run: Run,
    parameters: ModelParameters,
    dtype: str,
    *,
    samples: int = SAMPLES,
    narrow: frozenset[str] = frozenset(),
    walk: Walk | None = None,
) -> tuple[Any, Any]:
    """(results, bounds), both in the structure of what `run` returns, for an implementation in that dtype.

    parameters: those that `run` gives to those functions, in float64. narrow: steps that the implementation takes
    in float32 whatever the dtype. walk: `inside.walk_inside` for the results of steps; `walk_steps` by default.
    """
    walk = walk_steps if walk is None else walk
    bounds: dict[str, Any] = {}

    def record_bound(
        name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if name not in bounds:
            here = "float32" if step in narrow else dtype
            bounds[name] = local_bound(step, here, arguments, keywords)
            if step in ("add", "accumulate"):  # of three parts the first two may be any, and cancel
                size = np.abs(arguments[0]) + np.abs(arguments[1])
                bounds[name] = np.maximum(bounds[name], Precision.make(here).output * size)
        return function(*arguments, **keywords)

    clean = walk(run, parameters, record_bound)
    scale = SMALL / Precision.make(dtype).inner
    moved = []
    for sample in range(samples):
        generator = np.random.default_rng([0, sample])
        noise: dict[str, Any] = {}

        def noisy(
            name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any],
            noise: dict[str, Any] = noise, generator: np.random.Generator = generator,
        ) -> Any:  # fmt: skip
            if name not in noise:
                noise[name] = mapped(lambda b: scale * b * generator.standard_cauchy(np.shape(b)), bounds[name])
            return mapped(np.add, function(*arguments, **keywords), noise[name])

        moved.append(walk(run, parameters, noisy))
    factor = 2 * (2 if dtype == "float64" else 1)

    def estimate(exact: np.ndarray, *drawn: np.ndarray) -> Any:
        with np.errstate(invalid="ignore"):  # scores behind a mask are -inf
            return factor * np.median([np.abs(d - exact) for d in drawn], axis=0) / scale

    return clean, mapped(estimate, clean, *moved)


def compare_within_bound(name: str, got: np.ndarray, exact: np.ndarray, bound: np.ndarray, dtype: str) -> Finding:
    """Compare a result in a dtype with exact values and their bound, as `carried_bound` returns them."""
    return compare(name, got, Exact(exact, 0 * exact), bound, dtype)


def walk_steps(run: Run, parameters: ModelParameters, visit: Visit) -> Any:
    """The results of the definition, when every step goes through `visit`."""
    with np.errstate(all="ignore"):
        return run(instrument_package("reference_numpy", parameters, visit))
