"""Optimizers and gradient clipping gone wrong (OPT-1 to OPT-3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import list_arrays
from conformance.cases.case import Case
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import answer_with, round_to
from conformance.mistakes.mistake import Mistake, Topic
from specification.dtypes import compute_dtype_name

Array = np.ndarray
ADAM_STEP, SGD_STEP = Topic("adam", "OPT-1", ("adam_step",)), Topic("sgd", "OPT-2", ("sgd_step",))
CLIP = Topic("clipping", "OPT-3", ("clip_by_global_norm",))

# --- Adam -------------------------------------------------------------------------------------------------------------


def correct_bias(beta: float, step: int) -> float:
    return float(1 - beta**step) if beta > 0 else 1.0


def divide_by_root(mean: Array, square: Array, eps: float) -> Array:
    return np.asarray(mean / (np.sqrt(square) + eps))


class Adam(NamedTuple):
    """A step of Adam in float64, with the parts that mistakes replace.

    count: the number of the step, from how many there were. correct: 1 - beta^t of a beta and a step. corrected:
    whether mean and square are. averaged, squared: the new average from the old one, the gradient and beta. update:
    from mean, square and eps. eps: from eps and the square's correction. coupled: how weight decay enters, if not as
    the call says. decay: of the parameters, from learning rate and weight decay. returned_step: the step that is
    returned. stale: whether the update is made of the old averages. decay_last: whether weight decay multiplies the new
    parameters. stored: what becomes of the averages.
    """

    count: Callable[[int], int] = lambda step: step + 1
    correct: Callable[[float, int], float] = correct_bias
    corrected: tuple[bool, bool] = (True, True)
    averaged: Callable[[Array, Array, float], Array] = lambda m, g, beta: beta * m + (1 - beta) * g
    squared: Callable[[Array, Array, float], Array] = lambda v, g, beta: beta * v + (1 - beta) * g * g
    update: Callable[[Array, Array, float], Array] = divide_by_root
    eps: Callable[[float, float], float] = lambda eps, correction: eps
    coupled: bool | None = None
    decay: Callable[[float, float], float] = lambda rate, decay: rate * decay
    returned_step: Callable[[int], int] = lambda step: step + 1
    stale: bool = False
    decay_last: bool = False
    gradient: Callable[[Array], Array] = lambda g: g
    stored: Callable[[Array, str], Array] = lambda array, dtype: array
    sign: int = -1

    def take_step(self, case: Case) -> Results:
        given = case.options
        old = {name: array.astype(float) for name, array in case.inputs.items()}
        beta_1, beta_2 = given.get("beta_1", 0.9), given.get("beta_2", 0.999)
        rate, decay, eps = given["learning_rate"], given.get("weight_decay", 0.0), given.get("eps", 1e-8)
        coupled = not given.get("decoupled", True) if self.coupled is None else self.coupled
        gradient = self.gradient(old["gradients"]) + (decay * old["parameters"] if coupled else 0)
        mean = self.averaged(old["mean"], gradient, beta_1)
        square = self.squared(old["square"], gradient, beta_2)
        step = self.count(given["step"])
        first, second = (
            self.correct(beta, step) if on else 1.0 for beta, on in zip((beta_1, beta_2), self.corrected, strict=True)
        )
        used = (old["mean"], old["square"]) if self.stale else (mean, square)
        update = self.sign * rate * self.update(used[0] / first, used[1] / second, self.eps(eps, second))
        kept = 1.0 if coupled else 1 - self.decay(rate, decay)
        parameters = kept * (old["parameters"] + update) if self.decay_last else kept * old["parameters"] + update
        return {
            "parameters": parameters,
            "step": np.asarray(self.returned_step(given["step"]), float),
            "mean": self.stored(mean, case.dtype),
            "square": self.stored(square, case.dtype),
        }


def adam(name: str, says: str, **parts: Any) -> Mistake:
    """A mistake in parts of a step."""
    return ADAM_STEP.entry(name, says, lambda call: Adam(**parts).take_step(call.case))


ADAM = (
    adam("no-bias-correction", "neither average is corrected for its bias", corrected=(False, False)),
    adam("mean-uncorrected", "the mean is not corrected for its bias", corrected=(False, True)),
    adam("square-uncorrected", "the square is not corrected for its bias", corrected=(True, False)),
    adam("correction-late", "the bias correction counts steps from 0", count=lambda step: max(step, 1)),
    adam("correction-ahead", "the bias correction is one step ahead", count=lambda step: step + 2),
    adam("correction-in-float32", "1 - beta^t is computed in float32",
         correct=lambda beta, step: float(np.float32(1) - np.float32(beta) ** np.float32(step))),
    adam("step-not-counted", "the step that is returned is not counted up", returned_step=lambda step: step),
    adam("eps-inside-root", "eps stands inside the root", update=lambda m, v, eps: m / np.sqrt(v + eps)),
    adam("eps-before-correction", "eps is added before the square is corrected for its bias",
         eps=lambda eps, correction: eps / np.sqrt(correction)),
    adam("eps-squared-inside-root", "the square of eps stands inside the root",
         update=lambda m, v, eps: m / np.sqrt(v + eps * eps)),
    adam("no-eps", "eps is left out", update=lambda m, v, eps: divide_by_root(m, v, 0.0)),
    adam("eps-as-least-root", "the quotient is by the larger of root and eps, not by their sum",
         update=lambda m, v, eps: m / np.maximum(np.sqrt(v), eps)),
    adam("no-root", "the root of the square is not taken", update=lambda m, v, eps: m / (v + eps)),
    adam("decay-coupled", "weight decay is added to the gradient where it is decoupled", coupled=True),
    adam("decay-decoupled", "weight decay is decoupled where it belongs to the gradient", coupled=False),
    adam("decay-without-rate", "decoupled weight decay is not multiplied by the learning rate",
         decay=lambda rate, decay: decay),
    adam("decay-grows", "decoupled weight decay grows the parameters", decay=lambda rate, decay: -rate * decay),
    adam("decay-last", "weight decay multiplies the parameters after the update, not before it", decay_last=True),
    adam("mean-takes-whole-gradient", "the mean takes the whole gradient, not 1 - beta of it",
         averaged=lambda m, g, beta: beta * m + g),
    adam("betas-exchanged-in-mean", "beta and 1 - beta are exchanged in the mean",
         averaged=lambda m, g, beta: (1 - beta) * m + beta * g),
    adam("betas-exchanged-in-square", "beta and 1 - beta are exchanged in the square",
         squared=lambda v, g, beta: (1 - beta) * v + beta * g * g),
    adam("square-of-gradient-left-out", "the average of squares takes the gradient itself",
         squared=lambda v, g, beta: beta * v + (1 - beta) * g),
    adam("square-never-falls", "the average of squares never falls, as in AMSGrad",
         squared=lambda v, g, beta: np.maximum(v, beta * v + (1 - beta) * g * g)),
    adam("update-from-old-averages", "the update is made of the averages before the step", stale=True),
    adam("averages-rounded", "the averages are kept in the dtype of the parameters", stored=round_to),
    adam("nan-taken-for-0", "NaN in a gradient is taken for 0", gradient=lambda g: np.where(np.isnan(g), 0, g)),
    adam("parameters-climb", "the update is added to the parameters, not subtracted", sign=1),
    ADAM_STEP.entry("no-decay", "weight decay is left out", answer_with(weight_decay=0.0)),
    ADAM_STEP.entry("fixed-eps", "eps is {eps:g}, whatever the call says", answer_with(), eps=(1e-8, 1e-7, 1e-6)),
    ADAM_STEP.entry("fixed-beta-1", "beta_1 is 0.9, whatever the call says", answer_with(beta_1=0.9)),
    ADAM_STEP.entry("fixed-beta-2", "beta_2 is 0.999, whatever the call says", answer_with(beta_2=0.999)),
)  # fmt: skip

# --- gradient descent -------------------------------------------------------------------------------------------------


class Sgd(NamedTuple):
    """A step of gradient descent in float64. velocity: from the old one, gradient and momentum.

    nesterov, plain: the update from the new velocity, the old one, gradient and momentum.
    """

    velocity: Callable[[Array, Array, float], Array] = lambda old, g, momentum: momentum * old + g
    nesterov: Callable[[Array, Array, Array, float], Array] = lambda new, old, g, m: g + m * new
    plain: Callable[[Array, Array, Array, float], Array] = lambda new, old, g, m: new
    rate_inside: bool = False
    decoupled: bool = False
    decay_sign: int = 1

    def take_step(self, case: Case) -> Results:
        given = case.options
        theta, g, old = (case.inputs[name].astype(float) for name in ("parameters", "gradients", "velocity"))
        rate, momentum, decay = (given.get(n, 0.0) for n in ("learning_rate", "momentum", "weight_decay"))
        g = g if self.decoupled else g + self.decay_sign * decay * theta
        g = rate * g if self.rate_inside else g
        new = self.velocity(old, g, momentum)
        update = (self.nesterov if given.get("nesterov") else self.plain)(new, old, g, momentum)
        theta = theta * (1 - rate * decay) if self.decoupled else theta
        return {"parameters": theta - (1 if self.rate_inside else rate) * update, "velocity": new}


def sgd(name: str, says: str, **parts: Any) -> Mistake:
    return SGD_STEP.entry(name, says, lambda call: Sgd(**parts).take_step(call.case))


SGD = (
    sgd("dampened", "the velocity takes 1 - momentum of the gradient",
        velocity=lambda old, g, m: m * old + (1 - m) * g),
    sgd("velocity-forgotten", "the velocity is replaced by the gradient", velocity=lambda old, g, m: g),
    sgd("rate-inside-velocity", "the learning rate multiplies the gradient inside the velocity", rate_inside=True),
    sgd("nesterov-from-old-velocity", "nesterov looks ahead by the old velocity",
        nesterov=lambda new, old, g, m: g + m * old),
    sgd("nesterov-without-momentum", "nesterov adds the velocity without the momentum",
        nesterov=lambda new, old, g, m: g + new),
    sgd("nesterov-gradient-twice", "nesterov adds the gradient to the velocity twice",
        nesterov=lambda new, old, g, m: new + m * g),
    sgd("nesterov-without-gradient", "nesterov moves by the momentum times the velocity alone",
        nesterov=lambda new, old, g, m: m * new),
    sgd("moves-by-gradient", "the parameters move by the gradient, not by the velocity",
        plain=lambda new, old, g, m: g),
    sgd("decay-decoupled", "weight decay is decoupled, not part of the gradient", decoupled=True),
    sgd("decay-subtracted", "weight decay is subtracted from the gradient", decay_sign=-1),
    SGD_STEP.entry("no-nesterov", "nesterov is left out", answer_with(nesterov=False)),
    SGD_STEP.entry("no-momentum", "momentum is left out", answer_with(momentum=0.0, nesterov=False)),
    SGD_STEP.entry("no-decay", "weight decay is left out", answer_with(weight_decay=0.0)),
)  # fmt: skip

# --- clipping ---------------------------------------------------------------------------------------------------------


def sum_squares(arrays: list[Array]) -> float:
    return float(sum(np.sum(array * array) for array in arrays))


class Clipping(NamedTuple):
    """Clipping by the global norm in float64. norm: of all arrays. factor: from norm and limit.

    by_array: whether each array has a norm of its own. returned: the norm that is returned, from norm and limit.
    """

    norm: Callable[[list[Array]], float] = lambda arrays: sum_squares(arrays) ** 0.5
    factor: Callable[[float, float], float] = lambda norm, limit: limit / norm if norm > limit else 1.0
    by_array: bool = False
    returned: Callable[[float, float], float] = lambda norm, limit: norm

    def clip(self, case: Case) -> list[Results]:
        """What it makes of a call; where a norm is of NaN or infinity, it may leave the gradients as they are."""
        limit = case.options["limit"]
        arrays = [array.astype(float) for array in list_arrays(case.inputs, "gradients")]
        norm = np.float64(self.norm(arrays))  # by which a limit may be divided, also where it is 0
        factors = [self.factor(np.float64(self.norm([a])) if self.by_array else norm, limit) for a in arrays]
        found = {f"gradients[{i}]": a * f for i, (a, f) in enumerate(zip(arrays, factors, strict=True))}
        found |= {"norm": np.asarray(self.returned(norm, limit), float)}
        spoiled = [i for i, array in enumerate(arrays) if not np.isfinite(array).all()]
        if not spoiled:
            return [found]
        unclipped = spoiled if self.by_array else range(len(arrays))
        return [found, found | {f"gradients[{i}]": arrays[i] for i in unclipped}]


def clipping(name: str, says: str, **parts: Any) -> Mistake:
    return CLIP.entry(name, says, lambda call: Clipping(**parts).clip(call.case))


def clip_by_value(call: Call) -> Results:
    limit = call.case.options["limit"]
    return {name: np.clip(array.astype(float), -limit, limit) for name, array in call.case.inputs.items()}


def round_norms_of_parts(call: Call) -> list[Results]:
    """The norm of each array is rounded to its own 16 bits before they are put together, and its square may be, too."""
    arrays = list_arrays(call.case.inputs, "gradients")
    if any(array.dtype.itemsize > 2 for array in arrays):
        return []

    def norm(parts: list[Array], again: bool) -> float:
        norms = [np.sqrt(np.sum(p * p)).astype(array.dtype) for p, array in zip(parts, arrays, strict=True)]
        return float(np.sqrt(sum(float(n * n) if again else float(n) ** 2 for n in norms)))

    return [way for again in (False, True) for way in Clipping(norm=partial(norm, again=again)).clip(call.case)]


def square_in_compute_dtype(call: Call) -> list[Results]:
    """Squares are added up as they are, in the compute dtype, where they overflow or vanish."""

    def norm(arrays: list[Array]) -> float:
        narrow = [array.astype(compute_dtype_name(call.case.dtype)) for array in arrays]
        return float(np.sqrt(sum(np.sum(np.square(array)) for array in narrow)))

    return Clipping(norm=norm).clip(call.case)


CLIPPING = (
    clipping("1e-6-added-to-norm", "1e-6 is added to the norm",
             factor=lambda norm, limit: min(1.0, limit / (norm + 1e-6))),
    clipping("each-array-alone", "every array is clipped by its own norm", by_array=True),
    clipping("scaled-up-to-limit", "gradients below the limit are scaled up to it",
             factor=lambda norm, limit: 1.0 if np.isinf(limit) else limit / norm),
    clipping("divided-by-norm", "gradients are divided by the norm, without the limit",
             factor=lambda norm, limit: 1 / norm if norm > limit else 1.0),
    clipping("not-clipped", "gradients are not clipped", factor=lambda norm, limit: 1.0),
    clipping("norm-of-sizes", "the norm is the sum of absolute values",
             norm=lambda arrays: float(sum(np.abs(a).sum() for a in arrays))),
    clipping("norm-of-largest", "the norm is the largest absolute value",
             norm=lambda arrays: float(max(np.abs(a).max(initial=0) for a in arrays))),
    clipping("norm-without-root", "the root of the sum of squares is not taken", norm=sum_squares),
    clipping("sum-of-norms", "the norms of the arrays are added up",
             norm=lambda arrays: float(sum(np.sqrt(np.sum(a * a)) for a in arrays))),
    clipping("norm-of-first", "the norm is that of the first array",
             norm=lambda arrays: sum_squares(arrays[:1]) ** 0.5),
    clipping("norm-of-last", "the norm is that of the last array",
             norm=lambda arrays: sum_squares(arrays[-1:]) ** 0.5),
    clipping("norm-after-clipping", "the norm that is returned is that after clipping", returned=min),
    CLIP.entry("by-value", "gradients are clipped by value", clip_by_value),
    CLIP.entry("parts-in-16-bits", "the norm of each array is rounded to 16 bits", round_norms_of_parts),
    CLIP.entry("squares-overflow", "squares are added up unscaled, and overflow or vanish", square_in_compute_dtype),
)  # fmt: skip

MISTAKES = (*ADAM, *SGD, *CLIPPING)
PLANTED = tuple(mistake.choose() for mistake in MISTAKES)
