"""Losses gone wrong (LOSS-1, LOSS-2): targets, smoothing, means, gradients, and what overflows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds.losses import counted_targets, smooth_targets
from conformance.cases.arguments import gradient_name, is_gradient
from conformance.cases.case import Case
from conformance.cases.facts import operation_facts
from conformance.mistakes.call import Call, Results
from conformance.mistakes.mistake import Change, Mistake, Topic, name_entries
from specification.dtypes import compute_dtype_name

Array = np.ndarray
BOTH = ("cross_entropy", "nll_loss")
RULES = {"cross_entropy": "LOSS-1", "nll_loss": "LOSS-2"}


class Loss(NamedTuple):
    """What a loss computes with; rows are one axis.

    x: logits or log-probabilities [N, V]. targets: classes [N], as they came. mixed: the target of each row [N, V].
    weights: what each row's loss is multiplied with, 0 where its target does not count. slope_weights: the same in the
    gradient, before the cotangent. classes: how many of the first ones are in the log-sum-exp. log: log-probabilities
    from x, where they are not x less its log-sum-exp. sign: of losses and slopes.
    """

    case: Case
    x: Array
    targets: Array
    mixed: Array
    weights: Array
    slope_weights: Array
    smoothing: float
    normalize: bool
    classes: int
    log: Callable[[Array], Array] | None = None
    sign: int = 1
    zero_times_nan: bool = False

    @property
    def row_mask(self) -> Array:
        return self.weights != 0

    def log_probabilities(self) -> Array:
        if self.log is not None:
            return self.log(self.x.astype(compute_dtype_name(self.case.dtype))).astype(float)
        return self.x - self.logsumexp()

    def logsumexp(self) -> Any:
        if not self.normalize:
            return 0.0
        kept = self.x[:, : self.classes]
        maximum = np.max(kept, axis=-1, keepdims=True)
        return maximum + np.log(np.sum(np.exp(kept - maximum), axis=-1, keepdims=True))

    def output(self) -> Array:
        parts = self.mixed * self.log_probabilities()
        if not self.zero_times_nan:
            parts = np.where(self.mixed != 0, parts, 0)
        losses = -self.sign * np.sum(parts, axis=-1)
        rows = self.weights * losses if self.zero_times_nan else np.where(self.row_mask, self.weights * losses, 0)
        if self.case.options.get("reduction") == "none":
            return np.asarray(rows.reshape(self.case.inputs["targets"].shape))
        return np.asarray(np.sum(rows))

    def gradient(self) -> Array:
        slopes = self.sign * ((np.exp(self.x - self.logsumexp()) if self.normalize else 0) - self.mixed)
        received = (self.slope_weights * self.case.cotangents["output"].astype(float).reshape(-1))[:, None]
        return np.where(received != 0, received * slopes, 0)

    def results(self) -> Results:
        found = {"output": self.output()}
        if self.case.cotangents and self.log is None:
            (name,) = operation_facts(self.case.operation).differentiated
            found[gradient_name(name)] = self.gradient().reshape(self.case.inputs[name].shape)
        return found


def reduction_of(case: Case) -> str:
    return str(case.options.get("reduction", "mean"))


def loss_of(case: Case) -> Loss:
    counted, classes = counted_targets(case)
    (name,) = operation_facts(case.operation).differentiated
    x = np.asarray(case.inputs[name], float)
    x = x.reshape(counted.size, x.shape[-1])
    smoothing = float(case.options.get("label_smoothing", 0.0))
    weights = counted.reshape(-1) / (max(int(counted.sum()), 1) if reduction_of(case) == "mean" else 1)
    mixed = smooth_targets(classes.reshape(-1), x.shape[1], smoothing)
    targets, normalize = case.inputs["targets"].reshape(-1), case.operation == "cross_entropy"
    return Loss(case, x, targets, mixed, weights, weights, smoothing, normalize, x.shape[1])


def change_loss(change: Callable[..., Loss | None], reduction: str, alone: bool) -> Change:
    """The loss and its gradient, or the gradient alone, by other quantities; in calls of a reduction, or in all."""

    def results(call: Call, **values: object) -> Results | None:
        right_call = reduction in ("", reduction_of(call.case))
        changed = change(loss_of(call.case), **values) if right_call else None
        found = None if changed is None else changed.results()
        return found if found is None or not alone else {n: a for n, a in found.items() if is_gradient(n)}

    return results


def loss(
    name: str, says: str, change: Callable[..., Loss | None], operations: tuple[str, ...] = BOTH, reduction: str = "",
    **parameters: Any,
) -> Mistake:  # fmt: skip
    wrong = change_loss(change, reduction, alone=False)
    return Topic("losses", RULES[operations[0]], operations).entry(name, says, wrong, **parameters)


def gradient(name: str, says: str, change: Callable[..., Loss | None], reduction: str = "") -> Mistake:
    wrong = change_loss(change, reduction, alone=True)
    return Topic("losses", "LOSS-1", BOTH, of_gradients=True).entry(name, says, wrong, needs=("gradients",))


def weigh(loss: Loss, weights: Array, **others: Any) -> Loss:
    return loss._replace(weights=weights, slope_weights=weights, **others)


# --- which rows count, and how ----------------------------------------------------------------------------------------


def average_all_rows(loss: Loss) -> Loss:
    return weigh(loss, loss.row_mask / len(loss.weights))


def sum_losses(loss: Loss) -> Loss:
    return weigh(loss, loss.row_mask * 1.0)


def average_sequences(loss: Loss) -> Loss | None:
    shape = loss.case.inputs["targets"].shape
    if len(shape) < 2:
        return None
    counted = loss.row_mask.reshape(shape)
    each = counted / np.maximum(counted.sum(-1, keepdims=True), 1)
    return weigh(loss, (each / (counted.size // shape[-1])).reshape(-1))


def count_targets(loss: Loss, counted: Array, targets: Array) -> Loss | None:
    """Other targets count, or count for other classes; a mean is taken over those that count."""
    V = loss.x.shape[1]
    classes = np.where(counted, targets, 0)
    if ((classes < 0) | (classes >= V)).any():
        return None
    weights = counted / (max(int(counted.sum()), 1) if reduction_of(loss.case) == "mean" else 1)
    return weigh(loss, weights, mixed=smooth_targets(classes, V, loss.smoothing))


def count_ignored_as_class_0(loss: Loss) -> Loss | None:
    return count_targets(loss, np.ones_like(loss.row_mask), np.where(loss.row_mask, loss.targets, 0))


def count_only_other_than(loss: Loss, ignored: int) -> Loss | None:
    """A fixed number marks the targets that do not count, whatever the call says."""
    V, targets = loss.x.shape[1], loss.targets
    return count_targets(loss, targets != ignored, np.where((targets >= 0) & (targets < V), targets, 0))


ROWS = (
    loss("mean-over-all-rows", "the mean is taken over all rows, not over the targets that count", average_all_rows,
         reduction="mean"),
    loss("sum-for-mean", "the losses are added up, and not divided by their number", sum_losses, reduction="mean"),
    loss("mean-for-sum", "the losses are averaged, and not added up",
         lambda loss: weigh(loss, loss.weights / max(np.count_nonzero(loss.weights), 1)), reduction="sum"),
    loss("mean-of-means", "the mean of every sequence is taken first, and then the mean of these", average_sequences,
         reduction="mean"),
    loss("ignored-as-class-0", "targets that do not count are taken for class 0", count_ignored_as_class_0),
    loss("all-targets-count", "every target counts, ignored ones too",
         lambda loss: count_targets(loss, np.ones_like(loss.row_mask), loss.targets)),
    loss("fixed-ignored-target", "the target {ignored} does not count, whatever the call says", count_only_other_than,
         ignored=(-100, 0, -1)),
    loss("targets-shifted", "every target is taken for the class {shift:+d} from it",
         lambda loss, shift: count_targets(loss, loss.row_mask, loss.targets + shift), shift=(-1, 1)),
    loss("targets-in-few-bits", "targets are kept in {bits} bits",
         lambda loss, bits: count_targets(loss, loss.row_mask, loss.targets & (2**bits - 1)), bits=(16, 8)),
    loss("mean-of-nothing", "where no target counts, the mean is 0 / 0",
         lambda loss: None if loss.row_mask.any() else weigh(loss, np.full(len(loss.weights), np.nan)),
         reduction="mean"),
    loss("zero-times-nan", "rows that do not count are multiplied by 0, and 0 * NaN and 0 * inf are NaN",
         lambda loss: loss._replace(zero_times_nan=True)),
)  # fmt: skip

# --- targets and probabilities ----------------------------------------------------------------------------------------

ENTROPY = ("cross_entropy",)


def smooth(share: Callable[[Loss, Array, int], Array]) -> Callable[..., Loss | None]:
    """Another mixed target, from the one-hot one and the number of classes, in a call with label smoothing."""

    def change(loss: Loss) -> Loss | None:
        V = loss.x.shape[1]
        hot = smooth_targets(np.where(loss.row_mask, loss.targets, 0), V, 0.0)
        return loss._replace(mixed=share(loss, hot, V)) if loss.smoothing else None

    return change


def softmax(x: Array) -> Any:
    exponentials = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return exponentials / np.sum(exponentials, axis=-1, keepdims=True)


def take_logs(log: Callable[..., Array]) -> Callable[..., Loss]:
    """Log-probabilities from logits in the compute dtype."""
    return lambda loss, **values: loss._replace(log=lambda x: log(x, **values))


def normalize_whole_blocks(loss: Loss, block: int) -> Loss | None:
    V = loss.x.shape[1]
    return loss._replace(classes=V // block * block) if block < V and V % block else None


LEAST = (1e-7, 1e-6, 1e-8, 1e-9, 1e-10, 1e-12)
TARGETS = (
    loss("smoothing-left-out", "the smoothing is left out", smooth(lambda loss, hot, V: hot), ENTROPY),
    loss("smoothing-over-others", "the smoothing is spread over the V - 1 other classes",
         smooth(lambda loss, hot, V: (1 - loss.smoothing) * hot + loss.smoothing * (1 - hot) / max(V - 1, 1)), ENTROPY),
    loss("smoothing-added", "the smoothing is added to the target, and not taken from it",
         smooth(lambda loss, hot, V: hot + loss.smoothing / V), ENTROPY),
    loss("smoothing-exchanged", "the target keeps the part s, and 1 - s is spread",
         smooth(lambda loss, hot, V: loss.smoothing * hot + (1 - loss.smoothing) / V), ENTROPY),
    loss("base-2", "the logarithm has base 2", lambda loss: weigh(loss, loss.weights / np.log(2))),
    loss("sign", "the sign is not turned", lambda loss: loss._replace(sign=-1)),
    loss("not-normalized", "logits are taken for log-probabilities",
         lambda loss: loss._replace(normalize=False), ENTROPY),
    loss("normalized-again", "log-probabilities are normalised again", lambda loss: loss._replace(normalize=True),
         ("nll_loss",)),
    loss("no-maximum", "exponentials overflow, since the maximum of the row is not subtracted",
         take_logs(lambda x: x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))), ENTROPY),
    loss("log-of-softmax", "the logarithm is taken of a softmax that is 0", take_logs(lambda x: np.log(softmax(x))),
         ENTROPY),
    loss("least-probability", "probabilities are {least:g} at least",
         take_logs(lambda x, least: np.log(np.maximum(softmax(x), x.dtype.type(least)))), ENTROPY,
         least=LEAST),
    loss("number-added-to-probability", "{least:g} is added to the probabilities",
         take_logs(lambda x, least: np.log(softmax(x) + x.dtype.type(least))), ENTROPY, least=LEAST),
    loss("softmax-twice", "the softmax is taken twice", take_logs(lambda x: np.log(softmax(softmax(x)))), ENTROPY),
    loss("last-block-left-out", "classes past the last whole block of {block} are not in the log-sum-exp",
         normalize_whole_blocks, ENTROPY, block=(256, 128, 512, 1024, 64, 32)),
    loss("classes-left-out", "classes past the first {first} are not in the log-sum-exp",
         lambda loss, first: loss._replace(classes=first) if loss.x.shape[1] > first else None, ENTROPY,
         first=(32768, 65536, 1024, 4096, 8192, 16384, 50257, 100277)),
)  # fmt: skip

# --- gradients alone --------------------------------------------------------------------------------------------------


def change_cotangent(change: Callable[[Array], Array]) -> Callable[[Loss], Loss]:
    def change_cotangents(loss: Loss) -> Loss:
        bars = {name: change(bar) for name, bar in loss.case.cotangents.items()}
        return loss._replace(case=replace(loss.case, cotangents=bars))

    return change_cotangents


GRADIENTS = (
    gradient("gradient-undivided", "the gradient of a mean is not divided by the number of targets that count",
             sum_losses, "mean"),
    gradient("gradient-over-all-rows", "the gradient is divided by the number of all rows", average_all_rows, "mean"),
    gradient("cotangent-ignored", "the gradient does not depend on the cotangent", change_cotangent(np.ones_like)),
    # As of a loss that is always reduced.
    gradient("first-cotangent", "every row takes the cotangent of the first one",
             change_cotangent(lambda bar: np.full_like(bar, bar.flat[0])), "none"),
    gradient("ignored-rows-get-gradients", "rows whose target does not count have the gradient of class 0",
             count_ignored_as_class_0),
    gradient("gradient-without-target", "the gradient is that of the log-sum-exp alone, without the target",
             lambda loss: loss._replace(mixed=0 * loss.mixed) if loss.normalize else None),
    gradient("gradient-without-smoothing", "the gradient knows no smoothing", smooth(lambda loss, hot, V: hot)),
    gradient("gradient-of-softmax-too", "the gradient of log-probabilities has a softmax in it",
             lambda loss: None if loss.normalize else loss._replace(normalize=True)),
)  # fmt: skip

MISTAKES = (*ROWS, *TARGETS, *GRADIENTS)
NAMED = name_entries(MISTAKES)
NLL = ("mean-over-all-rows", "mean-of-nothing", "zero-times-nan", "targets-in-few-bits", "gradient-undivided",
       "gradient-of-softmax-too")  # fmt: skip
"""Mistakes that are planted in `nll_loss`, too."""
PLANTED = (
    *(one.choose() for one in MISTAKES if one.id != "losses.gradient-of-softmax-too"),
    *(NAMED[name].choose().plant_in("nll_loss", rule="LOSS-2") for name in NLL),
)
