"""Bounds of optimizers' steps and of gradient clipping; all errors are in units of u, the unit roundoff, unless said.

Moving averages. beta a + (1 - beta) b takes two products of a number that is rounded itself, and a sum: 2 for either
term, and 1 for the sum. Written as a + (1 - beta) (b - a) or b - beta (b - a), whichever factor is smaller, it rounds
the difference, the factor and the product: 3 min(beta, 1 - beta) (|a| + |b|), which is at most 3 for either term again.
moments=lerp declares a + (1 - beta) (b - a) at every beta. Its 3 (1 - beta) (|a| + |b|) is more than that for a where
beta is below 1/2, as a then cancels: at beta = 0 the average is b, and a large a leaves its digits in it. `naive` moves
the factor by beta more, in units of u, and with it both terms. An infinite a or b may make NaN, since b - a is infinite
and is subtracted from it or multiplied by 0; `fill_unpromised` in `checks/comparison.py` allows this.

Bias correction. 1 - beta^t is a number that depends on no array. The definition takes it as -expm1(t log(beta)). The
logarithm, t and the product are rounded, by 3 in all, and x e^x / (e^x - 1) <= 1 is what that is multiplied by; with
the function's own error it is off by EXP + 3. `naive` allows 1 - beta^t with beta and its power in the compute dtype: a
power of a rounded beta is off by t beta^t, and by EXP beta^t on its own, which 1 - beta^t is divided by. 1 - beta is
then off by beta / (1 - beta).

The update. sqrt moves an error e of v by at most e / (sqrt(v) + sqrt(v - e)), and by sqrt(e) where e is no smaller than
v. The corrections may divide the averages or their root, or the learning rate; the quotient may be a product with a
reciprocal. Each factor of the update rounds twice at most: once itself, once in its product.

epsilon declares another sum. Added to the corrected square, eps rounds as a term of it. Added to the uncorrected root,
both are divided by the correction's root: eps / sqrt(1 - beta_2^t) has half the correction's error, and 4 for eps, that
root, the quotient and the sum before it. The square's root has no more than where it was corrected before, but for that
sum.

The new parameter. learning_rate weight_decay parameter is subtracted, or parameter is multiplied by 1 - learning_rate
weight_decay: 3 for the parameter, and 4 for what the decay takes from it.

Clipping. A norm of n numbers is the root of a sum of n squares. Elements, scaled by the largest, round once, squares
once, the sum n times in one chain, or in one for each array and one over them; the root halves this, and it and the
norm of each array round by 3 more in all: (n + 3) / 2 + 4. A scaled gradient has this error and that of four more
products and quotients. Where limit and norm are as near as both are rounded, either way is right. clipping=1e-6
declares that this number is added to the norm before it divides: it is rounded, and so is the sum, 2 more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.bounds.arithmetic import EXP, TANH, Approx, Precision, add, exact, multiply
from conformance.cases.case import Case, list_arrays

SCHEDULES = {"linear_warmup": 3.0, "inverse_square_root": 9.0, "cosine_decay": 2 * (TANH + 3) + 1}
"""Relative errors of schedules in units of u: a quotient of rounded numbers; two roots and three quotients of rounded
numbers; the square of a sine, whose argument is rounded three times and is at most pi / 2 times the sine."""
INITIAL_WEIGHTS = 4.0
"""Relative error of (2 u - 1) limit: a difference, the limit's two roundings, and a product."""


def average(old: Approx, new: Approx, beta: float, p: Precision, naive: bool, lerp: bool = False) -> Approx:
    """beta old + (1 - beta) new. lerp: it may be old + (1 - beta) (new - old)."""
    rest = 3 + (beta / (1 - beta) if naive else 0)
    kept = multiply(old, exact(np.asarray(beta)), p, 3)
    more = p.inner * max(rest * (1 - beta) - 3 * beta, 0) * old.size if lerp else 0.0
    kept = Approx(kept.value, kept.error + more)
    return add(kept, multiply(new, exact(np.asarray(1 - beta)), p, rest), p)


def correction(beta: float, step: int, naive: bool) -> tuple[float, float]:
    """1 - beta^step, and its error, relatively and in units of u."""
    value = -np.expm1(step * np.log(beta)) if beta > 0 else 1.0
    power = (step + EXP) * (1 - value) / value if naive else 0.0
    return float(value), EXP + 3 + power


def correct_bias(x: Approx, beta: float, step: int, p: Precision, naive: bool) -> Approx:
    value, error = correction(beta, step, naive)
    return Approx(x.value / value, (x.error + p.inner * (error + 2) * x.size) / value)


def root(x: Approx, p: Precision) -> Approx:
    value = np.sqrt(x.value)
    below = np.where(x.error < x.value, value + np.sqrt(np.maximum(x.value - x.error, 0)), 0)
    error = np.where(below > 0, x.error / below, np.sqrt(x.error))
    return Approx(value, error + 2 * p.inner * (value + error))


def quotient(x: Approx, y: Approx, p: Precision) -> Approx:
    """x / y for y > 0."""
    value, least = x.value / y.value, np.maximum(y.value - y.error, 0)
    error = (x.error + np.abs(value) * y.error) / least
    return Approx(value, error + p.inner * 4 * (np.abs(value) + error) + p.inner_tiny * (1 + 1 / least))


def add_weight_decay(gradient: Approx, parameter: Approx, weight_decay: float, p: Precision) -> Approx:
    if weight_decay == 0:
        return gradient
    return add(gradient, multiply(parameter, exact(np.asarray(weight_decay)), p, 2), p)


def move_parameter(
    parameter: Approx, update: Approx, learning_rate: float, weight_decay: float, p: Precision
) -> Approx:
    """(1 - learning_rate weight_decay) parameter - learning_rate update."""
    taken = learning_rate * weight_decay
    step = multiply(update, exact(np.asarray(-learning_rate)), p, 4)
    kept = multiply(parameter, exact(np.asarray(1 - taken)), p, 3)
    return add(Approx(kept.value, kept.error + 4 * p.inner * taken * parameter.size), step, p)


def adam_step(case: Case, p: Precision, naive: bool = False) -> dict[str, Approx]:
    """The new parameters, mean, square and step. naive: 1 - beta^step may cancel."""
    inputs = {name: exact(array) for name, array in case.inputs.items()}
    return adam_from(inputs, case.options | case.rounding, p, naive)


def adam_from(inputs: dict[str, Approx], options: dict[str, Any], p: Precision, naive: bool) -> dict[str, Approx]:
    """The same, of parameters, gradients and averages that may be off themselves. options: and declared conventions."""
    parameters, gradient = inputs["parameters"], inputs["gradients"]
    beta_1, beta_2 = options.get("beta_1", 0.9), options.get("beta_2", 0.999)
    weight_decay, decoupled = options.get("weight_decay", 0.0), options.get("decoupled", True)
    gradient = add_weight_decay(gradient, parameters, 0.0 if decoupled else weight_decay, p)
    step = options["step"] + 1
    mean = average(inputs["mean"], gradient, beta_1, p, naive, lerp="moments" in p.declared)
    square = average(inputs["square"], multiply(gradient, gradient, p), beta_2, p, naive)
    corrected = correct_bias(square, beta_2, step, p, naive)
    eps = np.broadcast_to(options.get("eps", 1e-8), corrected.value.shape)
    if options.get("epsilon") == "square":
        denominator = root(add(corrected, Approx(eps, p.inner * eps), p), p)
    else:
        off = 1.0
        if options.get("epsilon") == "uncorrected":
            value, error = correction(beta_2, step, naive)
            eps, off = eps / np.sqrt(value), error / 2 + 4
        denominator = add(root(corrected, p), Approx(eps, off * p.inner * eps), p)
    update = quotient(correct_bias(mean, beta_1, step, p, naive), denominator, p)
    new = move_parameter(parameters, update, options["learning_rate"], weight_decay if decoupled else 0.0, p)
    return {"parameters": new, "step": Approx(np.asarray(step), np.asarray(0.0)), "mean": mean, "square": square}


def sgd_step(case: Case, p: Precision) -> dict[str, Approx]:
    """The new parameters and velocity.

    What nesterov adds may be written out as gradient (1 + momentum) + momentum^2 velocity: either term of either form
    is rounded 5 times at most.
    """
    inputs, options = case.inputs, case.options
    parameters, old = exact(inputs["parameters"]), exact(inputs["velocity"])
    momentum = exact(np.asarray(options.get("momentum", 0.0)))
    gradient = add_weight_decay(exact(inputs["gradients"]), parameters, options.get("weight_decay", 0.0), p)
    velocity = add(multiply(old, momentum, p, 2), gradient, p)
    update = velocity
    if options.get("nesterov", False):
        ahead = multiply(velocity, momentum, p, 2)
        size = gradient.size * (1 + momentum.value) + old.size * momentum.value**2
        update = Approx(gradient.value + ahead.value, gradient.error + ahead.error + 5 * p.inner * size)
    moved = move_parameter(parameters, update, options["learning_rate"], 0.0, p)
    kept = "velocity" in p.declared and momentum.value == 0
    return {"parameters": moved, "velocity": old if kept else velocity}


def global_norm(arrays: list[np.ndarray]) -> float:
    """In float64, without overflow."""
    sizes = np.concatenate([np.abs(np.asarray(array, np.float64)).reshape(-1) for array in arrays])
    largest = float(np.max(sizes, initial=0.0))
    if not np.isfinite(largest) or largest == 0:
        return largest
    return largest * float(np.sqrt(np.sum((sizes / largest) ** 2)))


def clip_by_global_norm(case: Case, p: Precision) -> dict[str, Approx]:
    """The gradients after clipping, and their norm before."""
    limit = case.options["limit"]
    wide = [np.asarray(array, np.float64) for array in list_arrays(case.inputs, "gradients")]
    norm = global_norm(wide)
    if not np.isfinite(norm):
        clipped, error = [exact(array) for array in wide], np.asarray(0.0)
    else:
        relative = p.gamma((sum(array.size for array in wide) + 3) / 2 + 4)
        error = np.asarray(relative * norm + p.inner_tiny)
        added = float(case.rounding.get("clipping", 0.0))
        divisor, sums = norm + added, 2 * p.inner if added else 0.0
        room = error + 2 * p.inner * limit + sums * divisor if np.isfinite(limit) else 0.0
        factor = limit / divisor if divisor > limit else 1.0
        near = abs(divisor - limit) <= room
        off = relative + sums
        unsure = (2 * off + 6 * p.inner if near else off + 4 * p.inner) if near or divisor > limit else 0.0
        lost = 2 * p.inner_tiny if unsure else 0.0
        clipped = [Approx(array * factor, unsure * np.abs(array) * factor + lost) for array in wide]
    return {f"gradients[{i}]": one for i, one in enumerate(clipped)} | {"norm": Approx(np.asarray(norm), error)}
