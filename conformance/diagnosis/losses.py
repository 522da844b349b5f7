"""Known mistakes of losses: of targets, smoothing, means and their gradients, and what overflows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.bounds.losses import counted_targets, mixed
from conformance.cases.case import Case
from conformance.diagnosis.extents import WHOLE_BLOCKS, likely
from conformance.diagnosis.matching import Failing, Mistake, close, closest, computed, explained, giving, resulting
from specification.dtypes import compute_dtype_name

GRADIENTS = ("gradient of logits", "gradient of log_probabilities")
LEAST = (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)
"""Smallest probabilities that are common."""


@dataclass(frozen=True)
class Loss:
    """What a loss computes with; rows are one axis. sign: -1 where it is turned.

    targets: as they came, with what does not count. q: the mixed target of every row. weights: by which every row's
    loss is multiplied, 0 where its target does not count. normalized: whether x are logits.
    """

    x: np.ndarray
    targets: np.ndarray
    q: np.ndarray
    weights: np.ndarray
    smoothing: float
    normalized: bool
    sign: int = 1

    @property
    def losses(self) -> np.ndarray:
        parts = self.logsumexp - self.x
        return self.sign * np.sum(np.where(self.q != 0, self.q * parts, 0), axis=-1)

    @property
    def logsumexp(self) -> Any:
        if not self.normalized:
            return 0.0
        maximum = np.max(self.x, axis=-1, keepdims=True)
        return maximum + np.log(np.sum(np.exp(self.x - maximum), axis=-1, keepdims=True))

    @property
    def slopes(self) -> np.ndarray:
        return self.sign * ((np.exp(self.x - self.logsumexp) if self.normalized else 0) - self.q)


def loss_of(case: Case) -> Loss:
    counted, classes = counted_targets(case)
    name = "logits" if case.operation == "cross_entropy" else "log_probabilities"
    x = np.asarray(case.inputs[name], float).reshape(counted.size, -1)
    smoothing = float(case.options.get("label_smoothing", 0.0))
    weights = counted.reshape(-1) / (max(int(counted.sum()), 1) if is_mean(case) else 1)
    q = mixed(classes.reshape(-1), x.shape[1], smoothing)
    return Loss(x, case.inputs["targets"].reshape(-1), q, weights, smoothing, case.operation == "cross_entropy")


def is_mean(case: Case) -> bool:
    return bool(case.options.get("reduction", "mean") == "mean")


def output_of(loss: Loss, case: Case) -> np.ndarray:
    rows = np.where(loss.weights != 0, loss.weights * loss.losses, 0)
    return rows.reshape(case.inputs["targets"].shape) if case.options.get("reduction") == "none" else np.sum(rows)


def gradient_of(loss: Loss, case: Case, shape: tuple[int, ...]) -> np.ndarray:
    received = (loss.weights * np.asarray(case.cotangents["output"], float).reshape(-1))[:, None]
    return np.where(received != 0, received * loss.slopes, 0).reshape(shape)


# --- the loss of something else ---------------------------------------------------------------------------------------

Change = Callable[[Loss, Case], Loss | None]


def over_all(loss: Loss, case: Case) -> Loss | None:
    return replace(loss, weights=(loss.weights != 0) / len(loss.weights)) if is_mean(case) else None


def added_up(loss: Loss, case: Case) -> Loss | None:
    return replace(loss, weights=(loss.weights != 0) * 1.0) if is_mean(case) else None


def averaged(loss: Loss, case: Case) -> Loss | None:
    count = max(np.count_nonzero(loss.weights), 1)
    return replace(loss, weights=loss.weights / count) if case.options.get("reduction") == "sum" else None


def sequences_first(loss: Loss, case: Case) -> Loss | None:
    shape = case.inputs["targets"].shape
    if not is_mean(case) or len(shape) < 2:
        return None
    counted = (loss.weights != 0).reshape(shape)
    each = counted / np.maximum(counted.sum(-1, keepdims=True), 1)
    return replace(loss, weights=(each / (counted.size // shape[-1])).reshape(-1))


def counting(which: Callable[[Loss], np.ndarray], targets: Callable[[Loss], np.ndarray] | None = None) -> Change:
    """Other targets count, or count for other classes; a mean is taken over those that count."""

    def change(loss: Loss, case: Case) -> Loss | None:
        counted, V = which(loss), loss.x.shape[1]
        classes = np.where(counted, loss.targets if targets is None else targets(loss), 0)
        if ((classes < 0) | (classes >= V)).any():
            return None
        weights = counted / (max(int(counted.sum()), 1) if is_mean(case) else 1)
        return replace(loss, weights=weights, q=mixed(classes, V, loss.smoothing))

    return change


def all_rows(loss: Loss) -> np.ndarray:
    return np.ones(len(loss.targets), bool)


def those_that_count(loss: Loss) -> np.ndarray:
    return loss.weights != 0


def as_class_0(loss: Loss) -> np.ndarray:
    return np.where(loss.weights != 0, loss.targets, 0)


def smoothed(share: Callable[[Loss, np.ndarray, int], np.ndarray]) -> Change:
    """With another mixed target, from the one-hot one and the number of classes."""

    def change(loss: Loss, case: Case) -> Loss | None:
        V = loss.x.shape[1]
        hot = mixed(loss.targets, V, 0.0)
        return replace(loss, q=share(loss, hot, V)) if loss.smoothing else None

    return change


def of_base_2(loss: Loss, case: Case) -> Loss:
    return replace(loss, weights=loss.weights / np.log(2))


CHANGES: dict[str, Change] = {
    "the mean is taken over all rows, not over the targets that count": over_all,
    "the losses are added up, and not divided by their number": added_up,
    "the losses are averaged, and not added up": averaged,
    "the mean of every sequence is taken first, and then of these": sequences_first,
    "targets that do not count are taken for class 0": counting(all_rows, as_class_0),
    "every target counts, ignored ones too": counting(all_rows),
    "targets of class 0 do not count": counting(lambda loss: those_that_count(loss) & (loss.targets != 0)),
    "every target is taken for the class before it": counting(those_that_count, lambda loss: loss.targets - 1),
    "every target is taken for the class after it": counting(those_that_count, lambda loss: loss.targets + 1),
    "targets are kept in 16 bits": counting(those_that_count, lambda loss: loss.targets & 0xFFFF),
    "targets are kept in 8 bits": counting(those_that_count, lambda loss: loss.targets & 0xFF),
    "the smoothing is left out": smoothed(lambda loss, hot, V: hot),
    "the smoothing is spread over the V - 1 other classes": smoothed(
        lambda loss, hot, V: (1 - loss.smoothing) * hot + loss.smoothing * (1 - hot) / max(V - 1, 1)
    ),
    "the smoothing is added to the target, and not taken from it": smoothed(
        lambda loss, hot, V: hot + loss.smoothing / V
    ),
    "the target keeps the part s, and 1 - s is spread": smoothed(
        lambda loss, hot, V: loss.smoothing * hot + (1 - loss.smoothing) / V
    ),
    "the logarithm has base 2": of_base_2,
    "the sign is not turned": lambda loss, case: replace(loss, sign=-1),
}
"""In the loss and its gradients."""
OF_LOGITS: dict[str, Change] = {
    "logits are taken for log-probabilities": lambda loss, case: replace(loss, normalized=False),
}
OF_LOG_PROBABILITIES: dict[str, Change] = {
    "log-probabilities are normalised again": lambda loss, case: replace(loss, normalized=True),
}


def changed(name: str, change: Change) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        loss = change(loss_of(failing.case), failing.case)
        if loss is None:
            return None
        found = {"output": output_of(loss, failing.case)}
        for gradient in GRADIENTS:
            if gradient in failing.truth:
                found[gradient] = gradient_of(loss, failing.case, failing.right(gradient).shape)
        return found

    return resulting(name, results, limits=near)


def near(failing: Failing, name: str, array: np.ndarray) -> np.ndarray:
    """As `close`, and a small part of the error, where what is right is copied and has no bound."""
    return np.maximum(close(failing, name, array), explained(failing, name, array, 2.0**-12))


# --- what overflows, and what is cut off ------------------------------------------------------------------------------


def by_logarithms(name: str, logarithms: Callable[[np.ndarray], np.ndarray]) -> Mistake:
    """The output of a row is the mixed target's share of these, in the compute dtype."""

    def output(case: Case) -> np.ndarray:
        loss = loss_of(case)
        found = logarithms(loss.x.astype(compute_dtype_name(case.dtype))).astype(float)
        losses = -np.sum(np.where(loss.q != 0, loss.q * found, 0), axis=-1)
        rows = np.where(loss.weights != 0, loss.weights * losses, 0)
        return rows.reshape(case.inputs["targets"].shape) if case.options.get("reduction") == "none" else np.sum(rows)

    return computed(name, output)


def softmax(x: np.ndarray) -> Any:
    exponentials = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return exponentials / np.sum(exponentials, axis=-1, keepdims=True)


def at_least(least: float, added: bool) -> Mistake:
    if added:
        return by_logarithms(f"{least:g} is added to the probabilities", lambda x: np.log(softmax(x) + least))
    return by_logarithms(f"probabilities are {least:g} at least", lambda x: np.log(np.maximum(softmax(x), least)))


def of_nothing(case: Case) -> np.ndarray:
    loss = loss_of(case)
    return output_of(loss, case) if loss.weights.any() or not is_mean(case) else np.asarray(np.nan)


OVERFLOWS = (
    computed("where no target counts, the mean is 0 / 0", of_nothing),
    by_logarithms(
        "exponentials overflow, since the maximum of the row is not subtracted",
        lambda x: x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True)),
    ),
    by_logarithms("the logarithm is taken of a softmax that is 0", lambda x: np.log(softmax(x))),
    *(at_least(least, added) for least in LEAST for added in (False, True)),
    by_logarithms("softmax is taken twice", lambda x: np.log(softmax(softmax(x)))),
)

# --- gradients alone --------------------------------------------------------------------------------------------------


def gradient(name: str, result: Callable[[Loss, Failing], np.ndarray | None]) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        if not failing.case.cotangents:
            return None
        key = next(key for key in GRADIENTS if key in failing.truth)
        found = result(loss_of(failing.case), failing)
        return None if found is None else {key: found.reshape(failing.right(key).shape)}

    return resulting(name, results, limits=close)


def divided_by_all(loss: Loss, failing: Failing) -> np.ndarray | None:
    other = over_all(loss, failing.case)
    return None if other is None else gradient_of(other, failing.case, loss.x.shape)


def without_cotangent(loss: Loss, failing: Failing) -> np.ndarray:
    return loss.weights[:, None] * loss.slopes


def softmax_alone(loss: Loss, failing: Failing) -> np.ndarray:
    return gradient_of(replace(loss, q=0 * loss.q), failing.case, loss.x.shape)


def uncounted_too(loss: Loss, failing: Failing) -> np.ndarray | None:
    """As if the rows whose target does not count had class 0."""
    count = max(np.count_nonzero(loss.weights), 1) if is_mean(failing.case) else 1
    return gradient_of(replace(loss, weights=all_rows(loss) / count), failing.case, loss.x.shape)


GRADIENTS_ALONE = (
    gradient("the gradient is divided by the number of all rows, not of targets that count", divided_by_all),
    gradient("the gradient does not depend on the cotangent", without_cotangent),
    gradient("rows whose target does not count have the gradient of class 0", uncounted_too),
)

CROSS_ENTROPY = (
    *(changed(name, change) for name, change in (CHANGES | OF_LOGITS).items()),
    *OVERFLOWS,
    *GRADIENTS_ALONE,
    gradient("the gradient is that of the log-sum-exp alone, without the target", softmax_alone),
)
NLL = (
    computed("where no target counts, the mean is 0 / 0", of_nothing),
    *(changed(name, change) for name, change in (CHANGES | OF_LOG_PROBABILITIES).items() if "smoothing" not in name),
    *GRADIENTS_ALONE,
)


# --- which classes take part ------------------------------------------------------------------------------------------


def measured(failing: Failing, name: str) -> Iterator[Mistake]:
    """The first classes alone take part in the log-sum-exp; how many, the answers tell."""
    if name != "output" or failing.case.operation != "cross_entropy":
        return
    loss = loss_of(failing.case)
    V = loss.x.shape[1]
    maximum = np.max(loss.x, axis=-1, keepdims=True)
    logsumexp = maximum + np.log(np.cumsum(np.exp(loss.x - maximum), axis=-1))
    kept = np.sum(loss.q * loss.x, axis=-1, keepdims=True)
    rows = np.where(loss.weights[:, None] != 0, loss.weights[:, None] * (logsumexp - kept), 0)
    got = failing.answer("output").reshape(-1)
    sums = rows if failing.case.options.get("reduction") == "none" else rows.sum(0, keepdims=True)
    limits = np.max(closest(failing, "output", failing.answer("output")))
    fits = np.flatnonzero((np.abs(sums - got[:, None]) <= limits).all(axis=0)) + 1
    for n in likely(fits[fits < V], V):
        found = sums[:, n - 1].reshape(failing.right("output").shape)
        for block in WHOLE_BLOCKS:
            if n == V // block * block:
                words = f"classes past the last whole block take no part in the log-sum-exp (blocks of {block} classes)"
                yield giving(words, "output", found, limits=closest)
        yield giving(
            f"classes past the first ones take no part in the log-sum-exp ({n})", "output", found, limits=closest
        )
