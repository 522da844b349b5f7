"""The exact answer to a case, in arbitrary-precision ball arithmetic.

A number is a ball: a midpoint and a radius, with the exact value inside. Inputs are exact. The formulas are those of
the definition, written a second time and differently: masks by a predicate over index tuples, softmax without a shift,
gradients by a tape. The working precision is doubled until every element of every result and gradient

- has a radius of about 2^-100 times its magnitude or less, or
- is a ball that contains 0 and has a radius of 2^-200 or less, and is then given as 0. Many gradients are exactly 0
  though no ball can show it, such as that of a query with one key. A nonzero value that is lost so is below 2^-199, and
  at most a few units in the last place, at 256 bits or more, of the terms that cancel to it.

NaN and infinity have no ball: where one counts, ValueError is raised. Behind a mask it is tolerated (MASK-7).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from flint import arb, ctx
except ImportError as error:
    raise ImportError("the exact oracle needs python-flint: pip install python-flint") from error

from conformance.cases.case import Case
from conformance.cases.expectations import Exact
from conformance.oracle.ball.attention import Results
from conformance.oracle.ball.tape import ZERO, Leaves, Undecided, backward, balls, zeros

FILES = ("attention", "layers", "rotary", "latent_attention", "optimizers", "experts")
"""Of formulas; each is loaded when those before it lack one."""
WORKING_PRECISION = 256
LARGEST_PRECISION = 2**14
RELATIVE_BITS = 100
NEGLIGIBLE = arb(2) ** -200


def evaluate(case: Case, precision: int = WORKING_PRECISION) -> dict[str, Exact]:
    """Every result by name, and "gradient of <input>" for every floating input when the case has cotangents.

    `precision`: the number of bits to try first. Raises ValueError where NaN or infinity counts, and ArithmeticError
    when 2^14 bits do not settle every element, which means that something is not defined, such as 0 / 0.
    """
    before = ctx.prec
    try:
        while precision <= LARGEST_PRECISION:
            ctx.prec = precision
            try:
                answer = evaluate_balls(case)
            except Undecided:
                answer = None
            if answer is not None and all(find_settled(array).all() for array in answer.values()):
                return {name: split(array) for name, array in answer.items()}
            precision *= 2
    finally:
        ctx.prec = before
    raise ArithmeticError(f"{case.operation}: {LARGEST_PRECISION} bits do not settle every element")


def evaluate_balls(case: Case) -> dict[str, np.ndarray]:
    """The same as object arrays of balls, at the precision that flint is set to."""
    leaves = Leaves(case.inputs, wanted=bool(case.cotangents))
    # A convention that changes a formula is one more option to it.
    options = case.options | case.rounding
    results = formula("attention_with_logsumexp" if case.with_logsumexp else case.operation)(leaves, options)
    unknown = [name for name in leaves.floating_names() if name not in leaves.variables]
    unknown += [f"cotangent of {name}" for name in case.cotangents if name not in results]
    if unknown:
        raise ValueError(f"{case.operation} has no {', '.join(unknown)}")
    answer = {name: variable.value for name, variable in results.items()}
    if case.cotangents:
        for name, cotangent in case.cotangents.items():
            if np.shape(cotangent) != results[name].shape or not np.isfinite(np.asarray(cotangent, np.float64)).all():
                raise ValueError(f"the cotangent of {name} must be finite, of shape {results[name].shape}")
        backward([(results[name], balls(cotangent)) for name, cotangent in case.cotangents.items()])
        for name, variable in leaves.variables.items():
            gradient = variable.gradient
            answer[f"gradient of {name}"] = zeros(variable.shape) if gradient is None else gradient
    return answer


def formula(operation: str) -> Callable[[Leaves, dict[str, Any]], Results]:
    """The function of the operation's name, in a file of this folder."""
    modules = (importlib.import_module(f"{__name__}.{file}") for file in FILES)
    found: Callable[[Leaves, dict[str, Any]], Results] = next(
        getattr(module, operation) for module in modules if hasattr(module, operation)
    )
    return found


def is_settled(ball: arb) -> bool:
    return ball.rel_accuracy_bits() >= RELATIVE_BITS or (ZERO in ball and ball.rad() <= NEGLIGIBLE)


def split_ball(ball: arb) -> tuple[float, float]:
    if ZERO in ball:
        return 0.0, 0.0
    high = float(ball)  # the midpoint, rounded
    return high, 0.0 if math.isinf(high) else float(ball - high)


def find_settled(array: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(is_settled, 1, 1)(array), dtype=bool)


def split(array: np.ndarray) -> Exact:
    """`high` is the exact value rounded; where it is 0 or infinite, `low` is 0."""
    high, low = np.frompyfunc(split_ball, 1, 2)(array)
    return Exact(np.asarray(high, dtype=np.float64), np.asarray(low, dtype=np.float64))
