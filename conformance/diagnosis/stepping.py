"""Known mistakes of optimizers and of gradient clipping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arrays import listed
from conformance.cases.case import Case
from conformance.diagnosis.matching import Failing, Mistake, instead, resulting
from conformance.diagnosis.options import options

Results = dict[str, Any]

# --- Adam -------------------------------------------------------------------------------------------------------------


def bias_correction(beta: float, step: int) -> float:
    return float(1 - beta**step) if beta > 0 else 1.0


def quotient(mean: np.ndarray, square: np.ndarray, eps: float) -> np.ndarray:
    return np.asarray(mean / (np.sqrt(square) + eps))


class Adam(NamedTuple):
    """The parts of a step that mistakes replace.

    number: of the step, from how many there were. corrected: whether mean and square are. update: from both, once they
    are corrected, and eps. coupled, shrinks: how weight decay enters the gradient, and the parameters with the rate.
    averaged, squared: of old, gradient and beta.
    """

    number: Callable[[int], int] = lambda step: step + 1
    corrected: tuple[bool, bool] = (True, True)
    update: Callable[[np.ndarray, np.ndarray, float], np.ndarray] = quotient
    eps: Callable[[float, float], float] = lambda eps, correction: eps
    coupled: bool | None = None
    taken: Callable[[float, float], float] = lambda rate, decay: rate * decay
    squared: Callable[[np.ndarray, np.ndarray, float], np.ndarray] = lambda v, g, beta: beta * v + (1 - beta) * g * g
    averaged: Callable[[np.ndarray, np.ndarray, float], np.ndarray] = lambda m, g, beta: beta * m + (1 - beta) * g
    sign: int = -1

    def results(self, case: Case) -> Results:
        given = case.options
        old = {name: array.astype(float) for name, array in case.inputs.items()}
        beta_1, beta_2 = given.get("beta_1", 0.9), given.get("beta_2", 0.999)
        rate, decay, eps = given["learning_rate"], given.get("weight_decay", 0.0), given.get("eps", 1e-8)
        coupled = not given.get("decoupled", True) if self.coupled is None else self.coupled
        gradient = old["gradients"] + (decay * old["parameters"] if coupled else 0)
        mean, square = (
            self.averaged(old["mean"], gradient, beta_1),
            self.squared(old["square"], gradient, beta_2),
        )
        step = self.number(given["step"])
        first, second = (
            bias_correction(beta, step) if on else 1.0
            for beta, on in zip((beta_1, beta_2), self.corrected, strict=True)
        )
        update = self.update(mean / first, square / second, self.eps(eps, second))
        kept = 1.0 if coupled else 1 - self.taken(rate, decay)
        return {"parameters": kept * old["parameters"] + self.sign * rate * update, "mean": mean, "square": square}


def adam(name: str, **parts: Any) -> Mistake:
    """Of the parameters and, where they are not right, of mean and square."""
    wrong = Adam(**parts)
    return resulting(name, lambda failing: wrong.results(failing.case))


def rounded_betas(case: Case) -> Results:
    """1 - beta^t with beta and its power in float32."""
    given = case.options
    betas = [np.float32(given.get(name, value)) for name, value in (("beta_1", 0.9), ("beta_2", 0.999))]
    first, second = (float(np.float32(1) - beta ** np.float32(given["step"] + 1)) for beta in betas)
    right = Adam(corrected=(False, False))
    eps = given.get("eps", 1e-8)
    wrong = right._replace(update=lambda mean, square, _: quotient(mean / first, square / second, eps))
    return wrong.results(case)


UNCORRECTED = {
    "no bias correction": (False, False),
    "the mean is not corrected for its bias": (False, True),
    "the square is not corrected for its bias": (True, False),
}
ADAM = (
    *(adam(name, corrected=which) for name, which in UNCORRECTED.items()),
    adam("the bias correction counts steps from 0", number=lambda step: max(step, 1)),
    adam("the bias correction is one step ahead", number=lambda step: step + 2),
    adam("eps stands inside the root", update=lambda m, v, eps: m / np.sqrt(v + eps)),
    adam(
        "eps is added before the square is corrected for its bias",
        eps=lambda eps, correction: eps / np.sqrt(correction),
    ),
    adam("the square of eps stands inside the root", update=lambda m, v, eps: m / np.sqrt(v + eps * eps)),
    adam("no eps", update=lambda m, v, eps: quotient(m, v, 0.0)),
    adam("the quotient is by the larger of root and eps", update=lambda m, v, eps: m / np.maximum(np.sqrt(v), eps)),
    adam("no root of the square", update=lambda m, v, eps: m / (v + eps)),
    adam("weight decay is coupled, not decoupled", coupled=True),
    adam("weight decay is decoupled, not coupled", coupled=False),
    adam("decoupled weight decay is not multiplied by the learning rate", taken=lambda rate, decay: decay),
    adam("decoupled weight decay grows the parameters", taken=lambda rate, decay: -rate * decay),
    instead("weight decay is left out", options(weight_decay=0.0)),
    adam("the mean takes the whole gradient", averaged=lambda m, g, beta: beta * m + g),
    adam("beta and 1 - beta are exchanged in the mean", averaged=lambda m, g, beta: (1 - beta) * m + beta * g),
    adam("beta and 1 - beta are exchanged in the square", squared=lambda v, g, beta: (1 - beta) * v + beta * g * g),
    adam("the square takes the gradient, not its square", squared=lambda v, g, beta: beta * v + (1 - beta) * g),
    adam("the square is that of AMSGrad, which never falls",
         squared=lambda v, g, beta: np.maximum(v, beta * v + (1 - beta) * g * g)),
    adam("the parameters climb", sign=1),
    instead("the default eps is used", options(eps=1e-8)),
    instead("an eps of 1e-7 is used", options(eps=1e-7)),
    instead("the default beta_1 is used", options(beta_1=0.9)),
    instead("the default beta_2 is used", options(beta_2=0.999)),
    resulting("1 - beta^t is computed in float32", lambda failing: rounded_betas(failing.case), strict=True),
)  # fmt: skip


# --- gradient descent -------------------------------------------------------------------------------------------------


class Sgd(NamedTuple):
    """The parts of a step that mistakes replace; each gets the gradient, the momentum, and what comes before it."""

    velocity: Callable[[np.ndarray, np.ndarray, float], np.ndarray] = lambda old, g, momentum: momentum * old + g
    nesterov: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray] = lambda new, old, g, m: g + m * new
    plain: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray] = lambda new, old, g, m: new
    rate_inside: bool = False
    decoupled: bool = False

    def results(self, case: Case) -> Results:
        given = case.options
        theta, g, old = (case.inputs[name].astype(float) for name in ("parameters", "gradients", "velocity"))
        rate, momentum, decay = (given.get(n, 0.0) for n in ("learning_rate", "momentum", "weight_decay"))
        g = g if self.decoupled else g + decay * theta
        g = rate * g if self.rate_inside else g
        new = self.velocity(old, g, momentum)
        update = (self.nesterov if given.get("nesterov") else self.plain)(new, old, g, momentum)
        theta = theta * (1 - rate * decay) if self.decoupled else theta
        return {"parameters": theta - (1 if self.rate_inside else rate) * update, "velocity": new}


def sgd(name: str, **parts: Any) -> Mistake:
    wrong = Sgd(**parts)
    return resulting(name, lambda failing: wrong.results(failing.case))


SGD = (
    sgd("the velocity takes 1 - momentum of the gradient", velocity=lambda old, g, m: m * old + (1 - m) * g),
    sgd("the velocity is replaced by the gradient", velocity=lambda old, g, m: g),
    sgd("the learning rate multiplies the gradient inside the velocity", rate_inside=True),
    sgd("nesterov looks ahead by the old velocity", nesterov=lambda new, old, g, m: g + m * old),
    sgd("nesterov adds the velocity without the momentum", nesterov=lambda new, old, g, m: g + new),
    sgd("nesterov adds the gradient to the velocity twice", nesterov=lambda new, old, g, m: new + m * g),
    instead("nesterov is left out", options(nesterov=False)),
    instead("momentum is left out", options(momentum=0.0, nesterov=False)),
    instead("weight decay is left out", options(weight_decay=0.0)),
    sgd("weight decay is decoupled, not coupled", decoupled=True),
    sgd("the parameters move by the gradient, not by the velocity", plain=lambda new, old, g, m: g),
)


# --- clipping ---------------------------------------------------------------------------------------------------------


def global_norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(array * array) for array in arrays)))


class Clipping(NamedTuple):
    """The parts that mistakes replace: the norm of all, and the factor from norm and limit, for each array."""

    norm: Callable[[list[np.ndarray]], float] = global_norm
    factor: Callable[[float, float], float] = lambda norm, limit: limit / norm if norm > limit else 1.0
    by_array: bool = False
    returned: Callable[[float, float], float] = lambda norm, limit: norm

    def results(self, case: Case) -> Results:
        limit = case.options["limit"]
        arrays = [array.astype(float) for array in listed(case.inputs, "gradients")]
        norm = np.float64(self.norm(arrays))  # by which a limit may be divided, also where it is 0
        factors = [self.factor(np.float64(self.norm([a])) if self.by_array else norm, limit) for a in arrays]
        found = {f"gradients[{i}]": a * f for i, (a, f) in enumerate(zip(arrays, factors, strict=True))}
        return found | {"norm": np.asarray(self.returned(norm, limit))}


def clipping(name: str, **parts: Any) -> Mistake:
    wrong = Clipping(**parts)
    return resulting(name, lambda failing: wrong.results(failing.case))


def by_value(failing: Failing) -> Results:
    limit = failing.case.options["limit"]
    arrays = {name: array.astype(float) for name, array in failing.case.inputs.items()}
    return {name: np.clip(array, -limit, limit) for name, array in arrays.items()}


CLIPPING = (
    clipping("1e-6 is added to the norm", factor=lambda norm, limit: min(1.0, limit / (norm + 1e-6))),
    clipping("every array is clipped by its own norm", by_array=True),
    clipping("gradients are scaled to the limit below it too", factor=lambda norm, limit: limit / norm),
    clipping("gradients are divided by the norm", factor=lambda norm, limit: 1 / norm if norm > limit else 1.0),
    clipping("gradients are not clipped", factor=lambda norm, limit: 1.0),
    clipping("the norm is the sum of sizes", norm=lambda arrays: float(sum(np.abs(a).sum() for a in arrays))),
    clipping("the norm is the largest size", norm=lambda arrays: float(max(np.abs(a).max() for a in arrays))),
    clipping("the norm is not the root of the sum", norm=lambda arrays: float(sum(np.sum(a * a) for a in arrays))),
    clipping("the norm is the sum of the arrays' norms",
             norm=lambda arrays: float(sum(np.sqrt(np.sum(a * a)) for a in arrays))),
    clipping("the norm is that of the first array", norm=lambda arrays: float(np.sqrt(np.sum(arrays[0] ** 2)))),
    clipping("the norm is that of the last array", norm=lambda arrays: float(np.sqrt(np.sum(arrays[-1] ** 2)))),
    clipping("the norm returned is that after clipping", returned=min),
    resulting("gradients are clipped by value", by_value),
)  # fmt: skip
