"""Bounds of what the profile `strict` alone asks for: how far from exact a result may be below it.

16-bit inputs. The weights may be rounded to the inputs' dtype before they are multiplied: the bound is that of a
subject that declares weights=inputs (`rounding.py`).

`RELAXED` has bounds of some operations' own in place of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.bounds import losses, optimizers, rotary
from conformance.bounds.arithmetic import Precision, round_output
from conformance.bounds.operations import Bounds, bound, feed_forward, merged_bound, result_bound
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.facts import operation_facts
from specification.dtypes import HALF


def weights_in_inputs(case: Case) -> Case | None:
    """The case of a subject that rounds the weights to the inputs' 16 bits; None where that allows nothing more."""
    if case.dtype not in HALF or not operation_facts(case.operation).masked or "weights" in case.rounding:
        return None
    return replace(case, rounding={**case.rounding, "weights": case.dtype})


def relaxed_bound(case: Case) -> Bounds | None:
    """The bounds below `strict`; None where they are those of `bound`."""
    if case.operation in RELAXED:
        return RELAXED[case.operation](case)
    rounded = weights_in_inputs(case)
    return None if rounded is None else bound(rounded)


def relaxed_merged_bound(parts: list[Case]) -> Bounds | None:
    """As `relaxed_bound`, for attention over parts of the keys that are then merged."""
    rounded = [weights_in_inputs(part) for part in parts]
    return None if None in rounded else merged_bound([part for part in rounded if part is not None])


# --- bounds of an operation's own -------------------------------------------------------------------------------------


def relaxed_adam_step(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow 1 - beta and 1 - beta^t as the compute dtype gives them, where they cancel."""
    p = Precision.make(case.dtype, case.rounding)
    with np.errstate(all="ignore"):
        return {
            name: result_bound(name, approx, case, p)
            for name, approx in optimizers.adam_step(case, p, naive=True).items()
        }


def relaxed_gated_feed_forward(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow 16 bits for the activation, for the product before dropout, and for their gradients."""
    p = Precision.make(case.dtype)
    with np.errstate(all="ignore"):
        found = feed_forward(case, p, between=lambda x: round_output(x, p))
        return {name: result_bound(name, approx, case, p) for name, approx in found.items()}


def relaxed_cross_entropy(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow a log-sum-exp kept as one number."""
    p = Precision.make(case.dtype)
    with np.errstate(all="ignore"):
        found = losses.cross_entropy(case, p, kept=True)
        return {name: result_bound(name, approx, case, p) for name, approx in found.items()}


def relaxed_rotary_embedding(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow angles computed in float64, which has no digits for all of them.

    The frequency is then off as `bounds.rotary.frequencies` derives it, and its product with the position rounds once
    more; taking whole turns off is exact for the product, and 2 pi is off by half a unit for each of them.
    """
    p, double = Precision.make(case.dtype, case.rounding), Precision.make("float64")
    angles, _ = rotary.angles(case)
    call = rotary.call_of(case)
    value, error = rotary.frequencies(call, double.inner)
    angle_error = np.abs(angles) * (error / value + 2 * double.inner)
    with np.errstate(all="ignore"):
        return {
            name: result_bound(name, approx, case, p)
            for name, approx in rotary.rotary_embedding(case, p, angle_error).items()
        }


def relaxed_silu(case: Case) -> dict[str, np.ndarray]:
    """Bounds that allow a sigmoid too small to be normal.

    sigmoid(x), or exp(x), may be such a number while x sigmoid(x) is still normal. It is then flushed to 0, or taken as
    1 / (1 + exp(-x)) with an exponential that overflows. Either way sigmoid(x) is off by at most the smallest normal
    number t of the compute dtype, and x sigmoid(x) by |x| t. The slope sigmoid(x) + x sigmoid(x) sigmoid(-x) is off by
    (1 + |x|) t, and so is the gradient, times the cotangent.
    """
    tiny, size = Precision.make(case.dtype).inner_tiny, np.abs(np.asarray(case.inputs["x"], float))
    more = {"output": size * tiny}
    if case.cotangents:
        more[gradient_name("x")] = (1 + size) * tiny * np.abs(np.asarray(case.cotangents["output"], float))
    with np.errstate(invalid="ignore"):
        return {name: array + more.get(name, 0.0) for name, array in bound(case).items()}


RELAXED: dict[str, Callable[[Case], Bounds]] = {
    "gated_feed_forward": relaxed_gated_feed_forward,
    "adam_step": relaxed_adam_step,
    "cross_entropy": relaxed_cross_entropy,
    "rotary_embedding": relaxed_rotary_embedding,
    "silu": relaxed_silu,
}
