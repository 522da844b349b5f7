"""Bounds below the profile `strict` that some operations have of their own, by the names of the operations."""

from __future__ import annotations

import numpy as np

from conformance.bounds import experts, losses, optimizers, rotary
from conformance.bounds import latent_attention as latent
from conformance.bounds.arithmetic import Precision, round_output
from conformance.bounds.operations import Bounds, bound, bound_results, feed_forward
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from specification.dtypes import HALF


@np.errstate(all="ignore")
def adam_step(case: Case) -> Bounds:
    """Bounds that allow 1 - beta and 1 - beta^t as the compute dtype gives them, where they cancel."""
    p = Precision.make(case.dtype, case.rounding)
    return bound_results(optimizers.adam_step(case, p, naive=True), case, p)


@np.errstate(all="ignore")
def gated_feed_forward(case: Case) -> Bounds:
    """Bounds that allow 16 bits for the activation, for the product before dropout, and for their gradients."""
    p = Precision.make(case.dtype)
    return bound_results(feed_forward(case, p, between=lambda x: round_output(x, p)), case, p)


@np.errstate(all="ignore")
def mixture_of_experts(case: Case) -> Bounds:
    """Bounds that allow 16 bits inside gated experts, as those of `gated_feed_forward` do."""
    p = Precision.make(case.dtype, case.rounding)
    return bound_results(experts.mixture_of_experts(case, p, lambda x: round_output(x, p)), case, p)


@np.errstate(all="ignore")
def cross_entropy(case: Case) -> Bounds:
    """Bounds that allow a log-sum-exp kept as one number."""
    p = Precision.make(case.dtype)
    return bound_results(losses.cross_entropy(case, p, kept=True), case, p)


@np.errstate(all="ignore")
def rotary_embedding(case: Case) -> Bounds:
    """Bounds that allow angles computed in float64, which has no digits for all of them.

    The frequency is then off as `bounds.rotary.frequencies` derives it, and its product with the position rounds once
    more; taking whole turns off is exact for the product, and 2 pi is off by half a unit for each of them.
    """
    p = Precision.make(case.dtype, case.rounding)
    return bound_results(rotary.rotary_embedding(case, p, double_angle_error(case)), case, p)


def double_angle_error(case: Case) -> np.ndarray:
    """How far the angles of a rotary embedding may be off that are computed in float64."""
    double, (angles, _) = Precision.make("float64"), rotary.angles(case)
    value, error = rotary.frequencies(rotary.call_of(case), double.inner)
    return np.asarray(np.abs(angles) * (error / value + 2 * double.inner))


@np.errstate(all="ignore")
def latent_attention(case: Case) -> Bounds:
    """Bounds that allow angles computed in float64, and weights that are rounded to 16-bit inputs' dtype."""
    weights = {"weights": case.dtype} if case.dtype in HALF else {}
    p = Precision.make(case.dtype, weights | case.rounding)
    angle_error = double_angle_error(latent.rotary_call(case))
    return bound_results(latent.latent_attention(case, p, angle_error), case, p)


def silu(case: Case) -> Bounds:
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
