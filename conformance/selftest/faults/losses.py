"""Losses gone wrong (LOSS-1, LOSS-2), and the right ones that they are made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.declaration import declare
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_numpy import Function, widen

# --- right ------------------------------------------------------------------------------------------------------------


def at(rows: Any, classes: Any) -> Any:
    return np.take_along_axis(rows, classes[..., None], -1)[..., 0]


def one_hot(rows: Any, classes: Any) -> Any:
    return (classes[..., None] == np.arange(rows.shape[-1])).astype(rows.dtype)


def counts(targets: Any, ignore: Any, classes: int) -> Any:
    """Which targets count, and the class of each, 0 where one does not."""
    counted = np.ones(targets.shape, bool) if ignore is None else targets != ignore
    return counted, np.where(counted, targets, 0).astype(np.int64)


def selected(counted: Any, array: Any) -> Any:
    """The array where targets count, 0 elsewhere."""
    return np.where(counted.reshape(counted.shape + (1,) * (array.ndim - counted.ndim)), array, 0)


def log_softmax(x: Any) -> Any:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def row_losses(x: Any, classes: Any, smoothing: float) -> Any:
    found = log_softmax(x)
    losses = -at(found, classes)
    return (1 - smoothing) * losses - smoothing * found.mean(-1) if smoothing > 0 else losses


def mixed(x: Any, classes: Any, smoothing: float) -> Any:
    return (1 - smoothing) * one_hot(x, classes) + smoothing / x.shape[-1]


def slopes(x: Any, classes: Any, smoothing: float) -> Any:
    """softmax(x) less the mixed target."""
    return np.exp(log_softmax(x)) - mixed(x, classes, smoothing)


def reduced(losses: Any, counted: Any, reduction: str) -> Any:
    if reduction == "none":
        return losses
    return losses.sum() / (max(counted.sum(), 1) if reduction == "mean" else 1)


def shares(bar: Any, counted: Any, reduction: str) -> Any:
    """What every row's loss receives."""
    found = np.broadcast_to(bar, counted.shape)
    return selected(counted, found / max(counted.sum(), 1) if reduction == "mean" else found)


class Steps(NamedTuple):
    """Every step of a loss under the name by which a fault replaces it."""

    losses: Function = row_losses
    slopes: Function = slopes
    reduced: Function = reduced
    shares: Function = shares
    counts: Function = counts
    selected: Function = selected
    selected_gradient: Function = selected
    widen: Function = widen


def loss_by(s: Steps, x: Any, targets: Any, smoothing: float, ignore: Any, reduction: str) -> Any:
    counted, classes = s.counts(targets, ignore, x.shape[-1])
    losses = s.losses(s.widen(x), classes, float(smoothing))
    return np.asarray(s.reduced(s.selected(counted, losses), counted, reduction), x.dtype)


def gradient_by(s: Steps, x: Any, targets: Any, bar: Any, smoothing: float, ignore: Any, reduction: str) -> Any:
    counted, classes = s.counts(targets, ignore, x.shape[-1])
    found = s.slopes(s.widen(x), classes, float(smoothing))
    found = found * s.shares(s.widen(bar), counted, reduction)[..., None]
    return s.selected_gradient(counted, found).astype(x.dtype)


def cross_entropy_by(s: Steps) -> Function:
    """`cross_entropy` in these steps."""

    @np.errstate(all="ignore")
    def vjp(logits: Any, targets: Any, cotangent: Any, *, label_smoothing: float = 0.0, ignore: int | None = None,
            reduction: str = "mean") -> Any:  # fmt: skip
        return {"logits": gradient_by(s, logits, targets, cotangent, label_smoothing, ignore, reduction)}

    @declare(vjp=vjp)
    @np.errstate(all="ignore")
    def cross_entropy(logits: Any, targets: Any, *, label_smoothing: float = 0.0, ignore: int | None = None,
                      reduction: str = "mean") -> Any:  # fmt: skip
        return loss_by(s, logits, targets, label_smoothing, ignore, reduction)

    return cross_entropy


def nll_loss_by(s: Steps) -> Function:
    """`nll_loss` in these steps."""

    @np.errstate(all="ignore")
    def vjp(log_probabilities: Any, targets: Any, cotangent: Any, *, ignore: int | None = None,
            reduction: str = "mean") -> Any:  # fmt: skip
        return {"log_probabilities": gradient_by(s, log_probabilities, targets, cotangent, 0.0, ignore, reduction)}

    @declare(vjp=vjp)
    @np.errstate(all="ignore")
    def nll_loss(log_probabilities: Any, targets: Any, *, ignore: int | None = None, reduction: str = "mean") -> Any:
        return loss_by(s, log_probabilities, targets, 0.0, ignore, reduction)

    return nll_loss


ENTROPY = Steps()
LIKELIHOOD = Steps(
    losses=lambda y, classes, smoothing: -at(y, classes), slopes=lambda y, classes, smoothing: -one_hot(y, classes)
)
cross_entropy, nll_loss = cross_entropy_by(ENTROPY), nll_loss_by(LIKELIHOOD)

# --- wrong ------------------------------------------------------------------------------------------------------------


def entropy(name: str, **steps: Callable[..., Any]) -> Fault:
    return Fault("LOSS-1", name, "cross_entropy", cross_entropy_by(ENTROPY._replace(**steps)), cross_entropy)


def likelihood(name: str, **steps: Callable[..., Any]) -> Fault:
    return Fault("LOSS-2", name, "nll_loss", nll_loss_by(LIKELIHOOD._replace(**steps)), nll_loss)


def mean_of_all(losses: Any, counted: Any, reduction: str) -> Any:
    return losses.mean() if reduction == "mean" else reduced(losses, counted, reduction)


def mean_of_means(losses: Any, counted: Any, reduction: str) -> Any:
    """The mean of each sequence first, then of these."""
    if reduction != "mean" or losses.ndim < 2:
        return reduced(losses, counted, reduction)
    return (losses.sum(-1) / np.maximum(counted.sum(-1), 1)).mean()


def sum_for_mean(losses: Any, counted: Any, reduction: str) -> Any:
    return reduced(losses, counted, "sum" if reduction == "mean" else reduction)


def of_nothing(losses: Any, counted: Any, reduction: str) -> Any:
    """0 / 0."""
    return losses.sum() / counted.sum() if reduction == "mean" else reduced(losses, counted, reduction)


def shares_of_all(bar: Any, counted: Any, reduction: str) -> Any:
    found = np.broadcast_to(bar, counted.shape)
    return selected(counted, found / counted.size if reduction == "mean" else found)


def shares_undivided(bar: Any, counted: Any, reduction: str) -> Any:
    return selected(counted, np.broadcast_to(bar, counted.shape))


def only_100(targets: Any, ignore: Any, classes: int) -> Any:
    """-100 does not count; what else is no class is taken for class 0."""
    return targets != -100, np.where((targets >= 0) & (targets < classes), targets, 0)


def as_class_0(targets: Any, ignore: Any, classes: int) -> Any:
    return np.ones(targets.shape, bool), counts(targets, ignore, classes)[1]


def times(counted: Any, array: Any) -> Any:
    """Products with 0, which leave NaN."""
    return array * counted.reshape(counted.shape + (1,) * (array.ndim - counted.ndim))


def without_maximum(x: Any, classes: Any, smoothing: float) -> Any:
    found = x - np.log(np.exp(x).sum(-1, keepdims=True))
    losses = -at(found, classes)
    return (1 - smoothing) * losses - smoothing * found.mean(-1) if smoothing > 0 else losses


def of_probabilities(log: Callable[[Any], Any]) -> Function:
    """-log(softmax), by a logarithm of its own."""

    def losses(x: Any, classes: Any, smoothing: float) -> Any:
        exponentials = np.exp(x - x.max(-1, keepdims=True))
        found = log(exponentials / exponentials.sum(-1, keepdims=True))
        losses = -at(found, classes)
        return (1 - smoothing) * losses - smoothing * found.mean(-1) if smoothing > 0 else losses

    return losses


def clipped(x: Any) -> Any:
    return np.log(np.maximum(x, x.dtype.type(1e-7)))


def dense(x: Any, classes: Any, smoothing: float) -> Any:
    """Every class times its share, a share of 0 too."""
    return -(mixed(x, classes, smoothing) * log_softmax(x)).sum(-1)


def over_others(x: Any, classes: Any, smoothing: float) -> Any:
    """The smoothing is spread over the V - 1 other classes."""
    share = smoothing / max(x.shape[-1] - 1, 1)
    return (1 - smoothing - share) * row_losses(x, classes, 0.0) - share * log_softmax(x).sum(-1)


def added_smoothing(x: Any, classes: Any, smoothing: float) -> Any:
    return row_losses(x, classes, 0.0) - smoothing * log_softmax(x).mean(-1) if smoothing else row_losses(x, classes, 0)


def one_number(x: Any, classes: Any, smoothing: float) -> Any:
    """max + log(sum) is rounded before the logits are taken from it."""
    maximum = x.max(-1, keepdims=True)
    logsumexp = (maximum + np.log(np.exp(x - maximum).sum(-1, keepdims=True)))[..., 0]
    losses = logsumexp - at(x, classes)
    return (1 - smoothing) * losses + smoothing * (logsumexp - x.mean(-1)) if smoothing > 0 else losses


def whole_blocks(x: Any, classes: Any, smoothing: float) -> Any:
    """Past 1024 classes, those that fill no block of 256 are left out of the sum."""
    V = x.shape[-1]
    if V <= 1024:
        return row_losses(x, classes, smoothing)
    shifted = x - x.max(-1, keepdims=True)
    logsumexp = np.log(np.exp(shifted[..., : V // 256 * 256]).sum(-1))
    losses = logsumexp - at(shifted, classes)
    return (1 - smoothing) * losses + smoothing * (logsumexp - shifted.mean(-1)) if smoothing > 0 else losses


def in_16_bits(targets: Any, ignore: Any, classes: int) -> Any:
    counted, found = counts(targets, ignore, classes)
    return counted, found.astype(np.uint16).astype(np.int64)


def in_its_dtype(x: Any) -> Any:
    return x


def unsmoothed(x: Any, classes: Any, smoothing: float) -> Any:
    return slopes(x, classes, 0.0)


def normalized(y: Any, classes: Any, smoothing: float) -> Any:
    """As if log-probabilities were logits."""
    return row_losses(y, classes, 0.0)


def by_products(y: Any, classes: Any, smoothing: float) -> Any:
    return -(one_hot(y, classes) * y).sum(-1)


@np.errstate(all="ignore")
def sum_unless_told(logits: Any, targets: Any, *, label_smoothing: float = 0.0, ignore: int | None = None,
                    reduction: str = "sum") -> Any:  # fmt: skip
    return loss_by(ENTROPY, logits, targets, label_smoothing, ignore, reduction)


FAULTS = (
    Fault("LOSS-1", "sum unless told otherwise", "cross_entropy", sum_unless_told, cross_entropy),
    entropy("mean over all rows", reduced=mean_of_all),
    entropy("mean of every sequence's mean", reduced=mean_of_means),
    entropy("sum for the mean", reduced=sum_for_mean),
    entropy("NaN where no target counts", reduced=of_nothing),
    entropy("-100 alone does not count", counts=only_100),
    entropy("what does not count taken for class 0", counts=as_class_0),
    entropy("losses that do not count times 0", selected=times),
    entropy("no maximum subtracted", losses=without_maximum),
    entropy("logarithm of the softmax", losses=of_probabilities(np.log)),
    entropy("probabilities of 1e-7 at least", losses=of_probabilities(clipped)),
    entropy("classes without a share times 0", losses=dense),
    entropy("smoothing over the other classes", losses=over_others),
    entropy("smoothing added", losses=added_smoothing),
    entropy("log-sum-exp as one number", losses=one_number),
    entropy("classes past whole blocks left out", losses=whole_blocks),
    entropy("targets in 16 bits", counts=in_16_bits),
    entropy("computed in the dtype of the logits", widen=in_its_dtype),
    entropy("gradient not divided by the count", shares=shares_undivided),
    entropy("gradient divided by all rows", shares=shares_of_all),
    entropy("gradient without smoothing", slopes=unsmoothed),
    entropy("gradients that do not count times 0", selected_gradient=times),
    likelihood("sign not turned", losses=lambda y, classes, smoothing: at(y, classes)),
    likelihood("mean over all rows", reduced=mean_of_all),
    likelihood("NaN where no target counts", reduced=of_nothing),
    likelihood("losses that do not count times 0", selected=times),
    likelihood("log-probabilities normalised again", losses=normalized),
    likelihood("log-probabilities times 0", losses=by_products),
    likelihood("targets in 16 bits", counts=in_16_bits),
    likelihood("gradient of the softmax too", slopes=slopes),
    likelihood("gradient not divided by the count", shares=shares_undivided),
)  # fmt: skip
