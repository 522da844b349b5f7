"""Known mistakes of the gated feed-forward network and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.diagnosis.feed_forward import OTHERS, Elementwise, shaped
from conformance.diagnosis.matching import Arrays, Failing, Mistake, backwards, resulting
from conformance.diagnosis.row_sums import RowSum, of_products, of_rows


@dataclass(frozen=True)
class Side:
    """A projection of x; rows are one axis."""

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray

    @property
    def value(self) -> np.ndarray:
        return self.x @ self.weight + self.bias


@dataclass(frozen=True)
class Network:
    """What a gated feed-forward network computes with. factor: what dropout multiplies with."""

    gate: Side
    inner: Side
    outer: np.ndarray
    outer_bias: np.ndarray
    factor: Any
    activation: Elementwise
    slope: Elementwise
    crossed: bool = False

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        """What is activated, and what it is multiplied with."""
        found = self.gate.value, self.inner.value
        return (found[1], found[0]) if self.crossed else found

    @property
    def hidden(self) -> np.ndarray:
        gate, value = self.sides
        return self.activation(gate) * value * self.factor

    def bars(self, bar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What reaches the projections `gate` and `inner`."""
        (gate, value), product = self.sides, bar @ self.outer.T * self.factor
        found = product * value * self.slope(gate), product * self.activation(gate)
        return (found[1], found[0]) if self.crossed else found

    def results(self, failing: Failing) -> Arrays:
        found = {"output": self.hidden @ self.outer + self.outer_bias}
        if not failing.case.cotangents:
            return found
        bar = failing.bar.reshape(-1, failing.bar.shape[-1])
        gate, inner = self.bars(bar)
        found |= {"gradient of x": gate @ self.gate.weight.T + inner @ self.inner.weight.T}
        found |= {"gradient of gate.weight": self.gate.x.T @ gate, "gradient of gate.bias": gate.sum(0)}
        found |= {"gradient of inner.weight": self.inner.x.T @ inner, "gradient of inner.bias": inner.sum(0)}
        return found | {"gradient of outer.weight": self.hidden.T @ bar, "gradient of outer.bias": bar.sum(0)}


def network_of(failing: Failing) -> Network:
    case = failing.case
    wide: dict[str, Any] = {name: array.astype(float) for name, array in case.inputs.items()}
    keep, (activation, slope) = case.options.get("dropout_keep"), OTHERS[case.options.get("activation", "silu")]
    (F, out), x = wide["outer.weight"].shape, wide["x"].reshape(-1, wide["x"].shape[-1])
    gate, inner = (Side(x, wide[f"{n}.weight"], wide.get(f"{n}.bias", np.zeros(F))) for n in ("gate", "inner"))
    factor = 1.0 if keep is None else np.where(keep, 1 / (1 - case.options["dropout_rate"]), 0.0).reshape(-1, F)
    return Network(gate, inner, wide["outer.weight"], wide.get("outer.bias", np.zeros(out)), factor, activation, slope)


def another(name: str) -> Callable[[Network], Network]:
    activation, slope = OTHERS[name]
    return lambda n: replace(n, activation=activation, slope=slope)


def without_bias(side: str) -> Callable[[Network], Network]:
    return lambda n: replace(n, **{side: replace(getattr(n, side), bias=0 * n.gate.bias)})


CHANGES: dict[str, Callable[[Network], Network]] = {
    **{f"the activation is {name}": another(name) for name in OTHERS},
    "the activation is on the inner projection, and not on the gate": lambda n: replace(n, crossed=True),
    "the gate's bias is ignored": without_bias("gate"),
    "the inner bias is ignored": without_bias("inner"),
    "the outer bias is ignored": lambda n: replace(n, outer_bias=0 * n.outer_bias),
    "dropout is ignored": lambda n: replace(n, factor=1.0),
    "products are not divided by 1 - rate": lambda n: replace(n, factor=np.sign(n.factor)),
}
"""The network with something else in it."""

PRODUCTS: dict[str, Callable[[Network, np.ndarray, np.ndarray], np.ndarray]] = {
    "the inner projection is left out": lambda n, gate, value: n.activation(gate),
    "the gate is left out": lambda n, gate, value: value,
    "the two are added, not multiplied": lambda n, gate, value: n.activation(gate) + value,
    "both projections are activated": lambda n, gate, value: n.activation(gate) * n.activation(value),
    "the product is activated, and not the gate": lambda n, gate, value: n.activation(gate * value),
    "the gate multiplies itself": lambda n, gate, value: n.activation(gate) * gate,
}
"""What is between the projections instead of activation(gate) * inner."""


def changed(name: str, change: Callable[[Network], Network]) -> Mistake:
    return resulting(name, lambda failing: shaped(failing, change(network_of(failing)).results(failing)))


def multiplied(name: str, product: Callable[[Network, np.ndarray, np.ndarray], np.ndarray]) -> Mistake:
    def results(failing: Failing) -> Arrays:
        n = network_of(failing)
        return shaped(failing, {"output": product(n, *n.sides) * n.factor @ n.outer + n.outer_bias})

    return resulting(name, results)


FORWARD = tuple(changed(name, change) for name, change in CHANGES.items())
MISTAKES = (
    *FORWARD,
    *map(backwards, FORWARD),
    *(multiplied(name, product) for name, product in PRODUCTS.items()),
)


def row_sums(failing: Failing) -> dict[str, RowSum]:
    """The gradients that are sums over rows."""
    n, bar, inputs = network_of(failing), failing.bar.reshape(-1, failing.bar.shape[-1]), failing.case.inputs
    gate, inner = n.bars(bar)
    sums = {"gate": (n.gate.x, gate), "inner": (n.inner.x, inner), "outer": (n.hidden, bar)}
    found = {}
    for name, (left, right) in sums.items():
        found[f"gradient of {name}.weight"] = of_products(left, right, inputs[f"{name}.weight"].shape)
        if f"{name}.bias" in inputs:
            found[f"gradient of {name}.bias"] = of_rows(right, inputs[f"{name}.bias"].shape)
    return found
