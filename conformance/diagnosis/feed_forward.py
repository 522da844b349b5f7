"""Known mistakes of the feed-forward network and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.diagnosis.extents import WHOLE_BLOCKS, ends, likely, without_bias
from conformance.diagnosis.matching import Arrays, Failing, Mistake, giving, loose, only_backwards, resulting
from conformance.diagnosis.row_sums import RowSum, of_products, of_rows, row_sum_mistakes
from reference_numpy.feed_forward import ACTIVATIONS
from reference_numpy.feed_forward_vjp import SLOPES

Elementwise = Callable[[Any], Any]
PRODUCTS = 2**22
"""Numbers that are looked through for the columns that take part, at most."""


def sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def swish(beta: float) -> Elementwise:
    return lambda x: x * sigmoid(beta * x)


def swish_slope(beta: float) -> Elementwise:
    return lambda x: sigmoid(beta * x) * (1 + beta * x * (1 - sigmoid(beta * x)))


OTHERS: dict[str, tuple[Elementwise, Elementwise]] = {
    **{name: (ACTIVATIONS[name], SLOPES[name]) for name in ACTIVATIONS},
    "silu": (swish(1.0), swish_slope(1.0)),
    "quick GELU, x * sigmoid(1.702 x)": (swish(1.702), swish_slope(1.702)),
    "left out": (lambda x: x, np.ones_like),
    "a leaky relu (0.01)": (lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1, 0.01)),
    "relu cut off at 6": (lambda x: np.clip(x, 0, 6), lambda x: ((x > 0) & (x < 6)).astype(float)),
    "relu squared": (lambda x: np.maximum(x, 0) ** 2, lambda x: 2 * np.maximum(x, 0)),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
}
"""Activations and their slopes."""


@dataclass(frozen=True)
class Network:
    """What a feed-forward network computes with; rows are one axis. factor: what dropout multiplies with."""

    x: np.ndarray
    inner: np.ndarray
    inner_bias: np.ndarray
    outer: np.ndarray
    outer_bias: np.ndarray
    factor: Any
    activation: Elementwise
    slope: Elementwise

    @property
    def before(self) -> np.ndarray:
        """What the activation takes."""
        return self.x @ self.inner + self.inner_bias

    @property
    def hidden(self) -> np.ndarray:
        return self.activation(self.before) * self.factor

    @property
    def output(self) -> np.ndarray:
        return self.hidden @ self.outer + self.outer_bias

    def before_bar(self, bar: np.ndarray) -> np.ndarray:
        return bar @ self.outer.T * self.factor * self.slope(self.before)


def network_of(failing: Failing) -> Network:
    case = failing.case
    wide: dict[str, Any] = {name: array.astype(float) for name, array in case.inputs.items()}
    keep, (activation, slope) = case.options.get("dropout_keep"), OTHERS[case.options.get("activation", "relu")]
    F, out = wide["outer.weight"].shape
    return Network(
        wide["x"].reshape(-1, wide["x"].shape[-1]),
        wide["inner.weight"],
        wide.get("inner.bias", np.zeros(F)),
        wide["outer.weight"],
        wide.get("outer.bias", np.zeros(out)),
        1.0 if keep is None else np.where(keep, 1 / (1 - case.options["dropout_rate"]), 0.0).reshape(-1, F),
        activation,
        slope,
    )


def bar_of(failing: Failing) -> np.ndarray:
    return failing.bar.reshape(-1, failing.bar.shape[-1])


# --- output -----------------------------------------------------------------------------------------------------------

Change = Callable[[Network, Failing], Network | None]


def with_activation(name: str) -> Change:
    activation, slope = OTHERS[name]
    return lambda n, failing: replace(n, activation=activation, slope=slope)


def dropped(factor: Callable[[np.ndarray, float], Any]) -> Change:
    """With another factor for dropout, from what is kept and the rate."""

    def change(n: Network, failing: Failing) -> Network | None:
        options = failing.case.options
        if options.get("dropout_keep") is None:
            return None
        return replace(n, factor=factor(np.asarray(n.factor > 0, float), options["dropout_rate"]))

    return change


CHANGES: dict[str, Change] = {
    **{f"the activation is {name}": with_activation(name) for name in OTHERS},
    "the inner bias is ignored": lambda n, f: replace(n, inner_bias=0 * n.inner_bias),
    "the outer bias is ignored": lambda n, f: replace(n, outer_bias=0 * n.outer_bias),
    "the inner bias is added twice": lambda n, f: replace(n, inner_bias=2 * n.inner_bias),
    "the outer bias is added twice": lambda n, f: replace(n, outer_bias=2 * n.outer_bias),
    "dropout is ignored": dropped(lambda keep, rate: 1.0),
    "the dropout mask is inverted": dropped(lambda keep, rate: (1 - keep) / (1 - rate)),
    "activations are not divided by 1 - rate": dropped(lambda keep, rate: keep),
}
"""The network with something else in it, forwards or backwards."""


def changed(name: str, change: Change) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        n = network_of(failing)
        other = change(n, failing)
        if other is None:
            return None
        found = {"output": other.output}
        if failing.case.cotangents:
            bar = bar_of(failing)
            found |= gradients(n, bar, other.hidden, other.before_bar(bar))
        return shaped(failing, found)

    return resulting(name, results)


def shaped(failing: Failing, found: Arrays) -> Arrays:
    """The results that the subject gives, in their shapes."""
    return {
        name: array.reshape(failing.truth[name].high.shape) for name, array in found.items() if name in failing.truth
    }


def bias_after_activation(failing: Failing) -> dict[str, Any] | None:
    n = network_of(failing)
    hidden = (n.activation(n.x @ n.inner) + n.inner_bias) * n.factor
    return {"output": (hidden @ n.outer + n.outer_bias).reshape(failing.right("output").shape)}


MISTAKES = (
    *(changed(name, change) for name, change in CHANGES.items()),
    resulting("the inner bias is added after the activation", bias_after_activation),
)


def measured(failing: Failing, name: str) -> Iterator[Mistake]:
    """Mistakes in one result, with numbers that the answers tell."""
    n, shape = network_of(failing), failing.right(name).shape
    if name == "output":
        for words, array in of_first_columns(failing, name, n.hidden, n.outer, n.outer_bias, "inside"):
            yield giving(words, name, array.reshape(shape))
        yield from of_first_inputs(failing, n)
        yield from counted_twice(n, shape)
        yield from without_bias(failing, "the outer bias", n.outer_bias)
        return
    bar = bar_of(failing)
    if name == "gradient of x":
        for words, array in of_first_columns(failing, name, n.before_bar(bar), n.inner.T, 0.0, "inside"):
            yield giving(f"{words} in the {name}", name, array.reshape(shape))
    else:
        yield from row_sum_mistakes(failing, name, row_sums(failing)[name])
    yield from backward_mistakes(failing, n, bar)


def of_first_columns(
    failing: Failing, name: str, left: np.ndarray, right: np.ndarray, bias: Any, where: str
) -> Iterator[tuple[str, np.ndarray]]:
    """left @ right + bias by the first columns of left only."""
    shape, N = (len(left), right.shape[1]), left.shape[1]
    got, off = failing.answer(name).reshape(shape), failing.off(name).reshape(shape)
    row = int(np.argmax(off.sum(axis=1)))
    if right.size > PRODUCTS:
        return
    limits = loose(failing, name, got)[row]
    sums = np.cumsum(left[row][:, None] * right, axis=0) + bias
    near = (np.abs(sums - got[row]) <= limits).all(axis=1)
    for n in likely(np.flatnonzero(near[:-1]) + 1, N):
        for words in ends(f"columns {where} past {{end}} are left out", n, N):
            yield words, left[:, :n] @ right[:n] + bias


def of_first_inputs(failing: Failing, n: Network) -> Iterator[Mistake]:
    """The inner projection by the first columns of x only."""
    shape, E = failing.right("output").shape, n.x.shape[1]
    got = failing.answer("output").reshape(len(n.x), -1)
    row = int(np.argmax(failing.off("output").reshape(got.shape).sum(axis=1)))
    if n.inner.size + E * n.outer.size > PRODUCTS:
        return
    factor = n.factor if np.ndim(n.factor) == 0 else n.factor[row]
    hidden = n.activation(np.cumsum(n.x[row][:, None] * n.inner, axis=0) + n.inner_bias) * factor
    near = np.abs(hidden @ n.outer + n.outer_bias - got[row]) <= loose(failing, "output", got)[row]
    for count in likely(np.flatnonzero(near.all(axis=1)[:-1]) + 1, E):
        fewer = replace(n, x=n.x[:, :count], inner=n.inner[:count])
        for words in ends("columns of x past {end} are left out", count, E):
            yield giving(words, "output", fewer.output.reshape(shape))


def counted_twice(n: Network, shape: tuple[int, ...]) -> Iterator[Mistake]:
    """The last block of columns inside ends with the row, and overlaps the one before."""
    F = n.outer.shape[0]
    for block in WHOLE_BLOCKS:
        if block < F and F % block:
            again = slice(F - block, F // block * block)
            output = n.output + n.hidden[:, again] @ n.outer[again]
            words = (
                f"the last block overlaps the one before, and what both hold counts twice (blocks of {block} columns)"
            )
            yield giving(words, "output", output.reshape(shape))


# --- gradients --------------------------------------------------------------------------------------------------------


def gradients(n: Network, bar: np.ndarray, hidden: np.ndarray, before_bar: np.ndarray) -> Arrays:
    return {
        "gradient of x": before_bar @ n.inner.T,
        "gradient of inner.weight": n.x.T @ before_bar,
        "gradient of inner.bias": before_bar.sum(0),
        "gradient of outer.weight": hidden.T @ bar,
        "gradient of outer.bias": bar.sum(0),
    }


def backward_mistakes(failing: Failing, n: Network, bar: np.ndarray) -> Iterator[Mistake]:
    """The backward pass is that of another network; its hidden activations may be those of the forward pass."""

    def answering(name: str, found: Arrays) -> Mistake:
        return resulting(name, lambda failing: shaped(failing, found))

    for name, change in CHANGES.items():
        other = change(n, failing)
        if other is not None:
            words = only_backwards(failing, name, other.output.reshape(failing.right("output").shape))
            for hidden in (n.hidden, other.hidden):
                yield answering(words, gradients(n, bar, hidden, other.before_bar(bar)))
    own = bar @ n.outer.T * n.factor
    for name, slope in (
        ("the slope is taken at the activation, not before it", n.slope(n.activation(n.before))),
        ("the slope at 0 is 1", np.where(n.before == 0, 1.0, n.slope(n.before))),
        ("the slope at 0 is 1/2", np.where(n.before == 0, 0.5, n.slope(n.before))),
    ):
        yield answering(f"in the backward pass {name}", gradients(n, bar, n.hidden, own * slope))


def row_sums(failing: Failing) -> dict[str, RowSum]:
    """The gradients that are sums over rows."""
    n, bar = network_of(failing), bar_of(failing)
    before_bar, shapes = n.before_bar(bar), {name: array.shape for name, array in failing.case.inputs.items()}
    found = {
        "inner.weight": lambda shape: of_products(n.x, before_bar, shape),
        "inner.bias": lambda shape: of_rows(before_bar, shape),
        "outer.weight": lambda shape: of_products(n.hidden, bar, shape),
        "outer.bias": lambda shape: of_rows(bar, shape),
    }
    return {f"gradient of {name}": make(shapes[name]) for name, make in found.items() if name in shapes}
