"""Optimizers and gradient clipping in JAX (rules OPT-1 to OPT-3), as `reference_numpy/optimizers.py` defines them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jax_impl.dtypes import cast, widen
from specification import checks
from specification.optimizers import AdamState, SgdState
from specification.parameters import Parameters, Tree, leaves, mapped

__all__ = ["adam_start", "adam_step", "clip_by_global_norm", "sgd_start", "sgd_step"]


def zeros(parameters: Parameters) -> Parameters:
    """A tree like the parameters, of zeros in the compute dtype."""
    checks.trained("parameters", parameters)
    return each(jnp.zeros_like, parameters)


def each(function: Callable[..., Any], *trees: Tree) -> Any:
    """A function of arrays in the compute dtype, of those that stand in the same place of several trees."""
    return mapped(lambda *arrays: function(*map(widen, arrays)), *trees)


def promote_leaves(tree: Tree) -> list[jax.Array]:
    """All arrays of a tree, in the widest of their compute dtypes."""
    arrays = [widen(array) for array in leaves(tree).values()]
    dtype = jnp.result_type(*arrays)
    return [array.astype(dtype) for array in arrays]


def rounded(tree: Tree, like: Parameters) -> Parameters:
    """The tree in the dtypes of another one."""
    return mapped(lambda new, old: cast(new, old.dtype), tree, like)


# --- Adam -------------------------------------------------------------------------------------------------------------


def adam_start(parameters: Tree) -> AdamState:
    """Make the state of Adam before its first step: step 0, mean and square 0 (OPT-1).

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.

    Returns:
        An `AdamState`, whose mean and square are in the compute dtype.

    Raises:
        TypeError: An array of another dtype.
        ValueError: A tree without arrays.
    """
    return AdamState(jnp.zeros((), jnp.int32), zeros(parameters), zeros(parameters))


def bias_correction(beta: float, step: int | jax.Array) -> Any:
    """1 - beta^step, to its last digits for a beta near 1 too."""
    return -jnp.expm1(step * math.log(beta)) if beta > 0 else 1.0


def adam_step(
    parameters: Parameters,
    gradients: Tree,
    state: AdamState,
    *,
    learning_rate: float | Float[jax.Array, ""],
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = True,
) -> tuple[Parameters, AdamState]:
    """Move the parameters by one step of Adam (OPT-1).

    Kingma and Ba, arXiv 1412.6980, algorithm 1; decoupled weight decay is AdamW, Loshchilov and Hutter, arXiv
    1711.05101. With t = state.step + 1, for every element:

        mean = beta_1 mean + (1 - beta_1) gradient
        square = beta_2 square + (1 - beta_2) gradient^2
        update = mean / (1 - beta_1^t) / (sqrt(square / (1 - beta_2^t)) + eps)
        parameter = (1 - learning_rate weight_decay) parameter - learning_rate update

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.
        gradients: A tree of the same form, each array in its parameter's dtype or in the compute dtype.
        state: That of the step before, or what `adam_start` makes.
        learning_rate: At least 0.
        beta_1: The decay of the mean, in [0, 1).
        beta_2: The decay of the square, in [0, 1).
        eps: Added to the root; at least 2^-126.
        weight_decay: At least 0.
        decoupled: Whether parameters shrink by learning_rate weight_decay, as above. False adds weight_decay parameter
            to the gradient instead.

    Returns:
        (parameters, state), both new. Parameters are computed in the compute dtype and rounded once to their own; mean
        and square stay in the compute dtype.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Shapes or numbers that are not as described.
    """
    checks.adam(parameters, gradients, state, learning_rate, beta_1, beta_2, eps, weight_decay, decoupled)
    step = jnp.asarray(state.step, jnp.int32) + 1
    correction_1, correction_2 = bias_correction(beta_1, step), bias_correction(beta_2, step)
    kept = 1 - learning_rate * weight_decay if decoupled else 1.0
    gradient = decayed(gradients, parameters, 0.0 if decoupled else weight_decay)
    mean = each(lambda m, g: beta_1 * m + (1 - beta_1) * g, state.mean, gradient)
    square = each(lambda v, g: beta_2 * v + (1 - beta_2) * g * g, state.square, gradient)
    update = each(lambda m, v: m / correction_1 / (jnp.sqrt(v / correction_2) + eps), mean, square)
    moved = each(lambda p, u: kept * p - learning_rate * u, parameters, update)
    return rounded(moved, parameters), AdamState(step, mean, square)


def decayed(gradients: Tree, parameters: Parameters, weight_decay: float) -> Parameters:
    """gradient + weight_decay parameter, in the compute dtype."""
    if weight_decay == 0:
        return each(lambda g: g, gradients)
    return each(lambda g, p: g + weight_decay * p, gradients, parameters)


# --- gradient descent -------------------------------------------------------------------------------------------------


def sgd_start(parameters: Tree) -> SgdState:
    """Make the state of gradient descent before its first step: velocity 0 (OPT-2).

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.

    Returns:
        An `SgdState`, whose velocity is in the compute dtype.

    Raises:
        TypeError: An array of another dtype.
        ValueError: A tree without arrays.
    """
    return SgdState(zeros(parameters))


def sgd_step(
    parameters: Parameters,
    gradients: Tree,
    state: SgdState,
    *,
    learning_rate: float | Float[jax.Array, ""],
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Parameters, SgdState]:
    """Move the parameters by one step of gradient descent with momentum (OPT-2).

    Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), as PyTorch writes it:
    the gradient enters the velocity whole, at the first step too, and the learning rate multiplies the velocity. For
    every element:

        gradient = gradient + weight_decay parameter
        velocity = momentum velocity + gradient
        update = gradient + momentum velocity if nesterov else velocity
        parameter = parameter - learning_rate update

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.
        gradients: A tree of the same form, each array in its parameter's dtype or in the compute dtype.
        state: That of the step before, or what `sgd_start` makes.
        learning_rate: At least 0.
        momentum: In [0, 1).
        nesterov: Whether to look ahead, as above; needs a momentum above 0.
        weight_decay: At least 0.

    Returns:
        (parameters, state), both new. Parameters are computed in the compute dtype and rounded once to their own; the
        velocity stays in the compute dtype.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Shapes or numbers that are not as described.
    """
    checks.sgd(parameters, gradients, state, learning_rate, momentum, nesterov, weight_decay)
    gradient = decayed(gradients, parameters, weight_decay)
    velocity = each(lambda v, g: momentum * v + g, state.velocity, gradient)
    update = each(lambda v, g: g + momentum * v, velocity, gradient) if nesterov else velocity
    moved = each(lambda p, u: p - learning_rate * u, parameters, update)
    return rounded(moved, parameters), SgdState(velocity)


# --- clipping ---------------------------------------------------------------------------------------------------------


def clip_by_global_norm(gradients: Parameters, limit: float) -> tuple[Parameters, Float[jax.Array, ""]]:
    """Scale gradients by limit / norm where their norm exceeds the limit (OPT-3).

    Pascanu et al., "On the difficulty of training recurrent neural networks", arXiv 1211.5063, algorithm 1. norm is the
    root of the sum of squares of all elements of all arrays. Elements are divided by the largest of them before they
    are squared, so that no square overflows or vanishes.

    Where an element is NaN or infinite, every gradient is returned as it is, and norm is NaN or infinite: what went
    wrong stays where it arose, and `norm` says so.

    Args:
        gradients: A tree of arrays in float16, bfloat16, float32 or float64.
        limit: Above 0. With infinity nothing is scaled, and norm is measured.

    Returns:
        (gradients, norm): a new tree in the dtypes of the gradients, each element rounded once; and the norm before
        scaling, an array of rank 0, in float64 where one of the gradients is float64, else in float32.

    Raises:
        TypeError: An array of another dtype, or a limit that is no number.
        ValueError: A tree without arrays, or another limit.
    """
    checks.clip(gradients, limit)
    arrays = promote_leaves(gradients)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(array), initial=0) for array in arrays]))
    finite = jnp.isfinite(largest)
    # XLA divides an array by a number by multiplying with its reciprocal, which beyond 1 / tiny is flushed to 0.
    unit = jnp.where(finite & (largest > 0), jnp.minimum(largest, 1 / jnp.finfo(largest.dtype).tiny), 1)
    ratio = jnp.sqrt(sum(jnp.sum(jnp.square(array / unit)) for array in arrays))
    norm = jnp.where(finite, unit * ratio, largest)
    clipped = finite & (norm > limit)
    scaled = each(lambda g: jnp.where(clipped, g / unit * (limit / ratio), g), gradients)
    return rounded(scaled, gradients), norm
