"""Feed-forward networks and SiLU gone wrong (FFN-1, FFN-2, ACT-1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import layers
from conformance.bounds.arithmetic import Precision
from conformance.bounds.operations import dropout_factor
from conformance.cases.arguments import expected_dtype, gradient_name
from conformance.cases.case import Case
from conformance.cases.signatures import default
from conformance.checks.comparison import PRECISION
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import (
    compute_in_float32,
    count_rows,
    lose_results,
    rearrange_inputs,
    round_stage,
    round_to,
)
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Change, Mistake, Prediction, Topic, name_entries
from specification.dtypes import HALF, compute_dtype_name

Array = np.ndarray
NETWORKS = ("feed_forward", "gated_feed_forward")
GATED = NETWORKS[1:]
RULES = {"feed_forward": "FFN-1", "gated_feed_forward": "FFN-2", "silu": "ACT-1"}
STEP = 1e-200j
"""Slopes are taken by a step so small that its square is 0; see `AttentionSteps.slope`."""


def entry(
    name: str, says: str, change: Change, operations: tuple[str, ...] = NETWORKS, needs: tuple[str, ...] = (),
    **parameters: Any,
) -> Mistake:  # fmt: skip
    return Topic("feed_forward", RULES[operations[0]], operations).entry(name, says, change, needs=needs, **parameters)


# --- activations, of complex numbers ----------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def gelu(x: Array) -> Array:
    real = np.real(x)
    return np.asarray(x * (layers.normal_distribution(real) + 1j * np.imag(x) * layers.normal_density(real)))


def gelu_by_tanh(x: Array, cube: float = 0.044715) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + cube * x**3))))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.where(np.real(x) > 0, x, 0),
    "gelu": gelu,
    "gelu_tanh": gelu_by_tanh,
    "silu": lambda x: x * sigmoid(x),
    "quick GELU, x * sigmoid(1.702 x),": lambda x: x * sigmoid(1.702 * x),
    "gelu_tanh with the constant 0.0447": partial(gelu_by_tanh, cube=0.0447),
    "a leaky relu (0.01)": lambda x: np.where(np.real(x) > 0, x, 0.01 * x),
    "relu cut off at 6": lambda x: np.where(np.real(x) > 6, 6, np.where(np.real(x) > 0, x, 0)),
    "relu squared": lambda x: np.where(np.real(x) > 0, x, 0) ** 2,
    "hard swish": lambda x: x * np.where(np.abs(np.real(x)) < 3, x / 6 + 0.5, np.real(x) > 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "nothing": lambda x: x,
}


def activation_of(case: Case) -> str:
    return str(case.options.get("activation") or default(case.operation, "activation"))


# --- a network whose inside may be changed ----------------------------------------------------------------------------


class Network(NamedTuple):
    """What a network computes with; rows are one axis.

    Attributes:
        sides: the weights and biases of `gate` and `inner`, or of `inner` alone.
        hide: what is between the projections, of what each side gives; it takes complex numbers.
        factor: of dropout.
    """

    case: Case
    x: Array
    sides: dict[str, tuple[Array, Any]]
    outer: tuple[Array, Any]
    hide: Callable[..., Array]
    activation: str
    factor: Any

    @classmethod
    def read_call(cls, call: Call) -> Network:
        case, keep = call.case, dropout_factor(call.case)
        wide = {name: array.astype(float) for name, array in case.inputs.items()}
        names = ("gate", "inner", "outer") if "gate.weight" in wide else ("inner", "outer")
        sides = {name: (wide[f"{name}.weight"], wide.get(f"{name}.bias", 0.0)) for name in names}
        outer, name = sides.pop("outer"), activation_of(case)
        factor = 1.0 if keep is None else keep.reshape(-1, len(outer[0]))
        x = wide["x"].reshape(-1, wide["x"].shape[-1])
        return cls(case, x, sides, outer, hidden_layer(ACTIVATIONS[name]), name, factor)

    @property
    def cotangent(self) -> Array:
        bar = self.case.cotangents["output"].astype(float)
        return np.asarray(bar.reshape(-1, bar.shape[-1]))

    def project_sides(self) -> list[Array]:
        """What each side gives, rounded to the dtype of x."""
        return [round_to(self.x @ weight + bias, self.case.dtype) for weight, bias in self.sides.values()]

    def hidden(self) -> Array:
        return np.asarray(np.real(self.hide(*self.project_sides())) * self.factor)

    def results(self) -> Results:
        hidden = self.hidden()
        found = {"output": hidden @ self.outer[0] + self.outer[1]}
        return self.shape(found | self.gradients(hidden) if self.case.cotangents else found)

    def gradients(self, hidden: Array) -> Results:
        """From these hidden numbers, and the slopes of `hide`."""
        projected, bar = self.project_sides(), self.cotangent
        hidden_bar = bar @ self.outer[0].T * self.factor
        found = {"outer.weight": hidden.T @ bar, "outer.bias": bar.sum(axis=0), "x": np.zeros_like(self.x)}
        for place, (name, (weight, _)) in enumerate(self.sides.items()):
            stepped = [array + STEP * (place == other) for other, array in enumerate(projected)]
            slope = np.imag(self.hide(*stepped)) / STEP.imag
            side = np.where(slope == 0, 0, hidden_bar * slope)
            found |= {f"{name}.weight": self.x.T @ side, f"{name}.bias": side.sum(axis=0)}
            found["x"] = found["x"] + side @ weight.T
        return {gradient_name(name): array for name, array in found.items()}

    def shape(self, found: Results) -> Results:
        """In the shapes of the case, of which x has all its axes."""
        lead = self.case.inputs["x"].shape[:-1]
        wide = ("output", gradient_name("x"))
        return {n: array.reshape(*lead, array.shape[-1]) if n in wide else array for n, array in found.items()}


def hidden_layer(activation: Callable[[Array], Array]) -> Callable[..., Array]:
    """activation(inner), or activation(gate) * inner."""
    return lambda first, value=1.0: activation(first) * value


def change_network(change: Callable[..., Network | None]) -> Change:
    """The mistake in both passes."""

    def results(call: Call, **values: object) -> Results | None:
        changed = change(Network.read_call(call), **values)
        return None if changed is None else changed.results()

    return results


def take_activation(network: Network, asked: str, used: str) -> Network | None:
    if asked not in ("any", network.activation) or used == network.activation:
        return None
    return network._replace(hide=hidden_layer(ACTIVATIONS[used]))


OVERFLOWING: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "tanh(z) as (exp(2 z) - 1) / (exp(2 z) + 1)": (
        "gelu_tanh", lambda x: 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "sigmoid(x) as exp(x) / (1 + exp(x))": ("silu", lambda x: x),
}  # fmt: skip
"""The activation, and the exponent that leaves the compute dtype."""


def overflow(network: Network, form: str) -> Network | None:
    activation, exponent = OVERFLOWING[form]
    largest = math.log(np.finfo(compute_dtype_name(network.case.dtype)).max)
    if network.activation != activation or not (exponent(network.project_sides()[0]) > largest).any():
        return None

    def activate(x: Array) -> Array:
        return np.where(exponent(np.real(x)) > largest, complex(np.nan, np.nan), ACTIVATIONS[activation](x))

    return network._replace(hide=hidden_layer(activate))


PRODUCTS: dict[str, Callable[[Callable[[Array], Array]], Callable[[Array, Array], Array]]] = {
    "gate * activation(inner)": lambda f: lambda gate, value: gate * f(value),
    "activation(gate) * activation(inner)": lambda f: lambda gate, value: f(gate) * f(value),
    "activation(gate * inner)": lambda f: lambda gate, value: f(gate * value),
    "activation(gate) + inner": lambda f: lambda gate, value: f(gate) + value,
    "gate * inner": lambda f: lambda gate, value: gate * value,
    "activation(gate)": lambda f: lambda gate, value: f(gate) + 0 * value,
    "activation(gate) * gate": lambda f: lambda gate, value: f(gate) * gate + 0 * value,
    "inner": lambda f: lambda gate, value: value + 0 * gate,
}
"""What is between the projections instead of activation(gate) * inner."""


FACTORS: dict[str, Callable[[Array, float], Array]] = {
    "not divided by 1 - rate": lambda keep, rate: keep,
    "ignored": lambda keep, rate: np.ones_like(keep),
    "inverted": lambda keep, rate: (1 - keep) / (1 - rate),
}


def drop_otherwise(network: Network, dropout: str) -> Network:
    keep = (np.asarray(network.factor) > 0).astype(float)
    return network._replace(factor=FACTORS[dropout](keep, network.case.options["dropout_rate"]))


def add_bias_after(network: Network) -> Network | None:
    weight, bias = network.sides["inner"]
    hide = network.hide
    added = network._replace(sides={"inner": (weight, 0.0)}, hide=lambda inner: hide(inner) + bias)
    return added if np.any(bias) else None


def round_activation(call: Call) -> Prediction | None:
    """Round for 16-bit inputs what the definition rounds, and the activation, the product and their gradients."""
    case = call.case
    if case.dtype not in HALF:
        return None
    round_here, factor = partial(round_stage, form=case.dtype), dropout_factor(case)
    found = layers.gated_feed_forward(
        {name: array.astype(float) for name, array in case.inputs.items()},
        case.cotangents.get("output"),
        activation_of(case),
        1.0 if factor is None else factor,
        Precision.make(case.dtype),
        round_here,
        round_here,
    )
    named = {(name if name == "output" else gradient_name(name)): x for name, x in found.items()}
    rounded = {name: round_stage(x, expected_dtype(name, case)) for name, x in named.items() if name in call.right}
    return Prediction({n: x.value for n, x in rounded.items()}, {n: x.error for n, x in rounded.items()})


ACTIVATED = (
    entry("activation", "the activation is {used} where {asked} is asked for", change_network(take_activation),
          asked=("gelu", "gelu_tanh", "silu", "relu", "any"), used=tuple(dict.fromkeys(("gelu_tanh", *ACTIVATIONS)))),
    entry("overflow", "{form} overflows: the activation is NaN past a value", change_network(overflow),
          operations=NETWORKS[::-1], form=tuple(OVERFLOWING)),
    entry("product", "{product} stands for activation(gate) * inner",
          change_network(lambda n, product: n._replace(hide=PRODUCTS[product](ACTIVATIONS[n.activation]))),
          operations=GATED, product=tuple(PRODUCTS)),
    entry("activation-rounded", "the activation is rounded to 16 bits before it is multiplied", round_activation,
          operations=GATED, needs=("finite",)),
    entry("dropout", "dropout is {dropout}", change_network(drop_otherwise), needs=("dropout_keep",),
          dropout=tuple(FACTORS)),
    entry("bias-after-activation", "the inner bias is added after the activation", change_network(add_bias_after),
          operations=NETWORKS[:1]),
)  # fmt: skip

# --- projections ------------------------------------------------------------------------------------------------------


@rearrange_inputs
def drop_biases(case: Case, of: str) -> Case | None:
    dropped = {f"{name}.bias" for name in of.split(", ")}
    if not dropped <= case.inputs.keys():
        return None
    return replace(case, inputs={name: at for name, at in case.inputs.items() if name not in dropped})


LOST = {
    "hidden numbers": {"outer.weight": 0},
    "columns of x": {"x": -1},
    "columns of the output": {"outer.weight": -1, "outer.bias": -1},
}
"""The axes along which arrays are cut."""


@rearrange_inputs
def lose_past(case: Case, what: str, first: int = 0, block: int = 0) -> Case:
    """Leave 0 past the first ones, or past the last whole block."""
    inputs = dict(case.inputs)
    for name in LOST[what].keys() & inputs.keys():
        size = inputs[name].shape[LOST[what][name]]
        kept = np.arange(size) < (size // block * block or size if block else first)
        inputs[name] = np.where(kept if LOST[what][name] else kept[:, None], inputs[name], 0)
    return replace(case, inputs=inputs)


def lose_rows(call: Call, first: int = 0, block: int = 0) -> Results | None:
    """Rows past the first ones, or past the last whole block, are 0 and have no gradient."""
    shape = call.case.inputs["x"].shape[:-1]
    rows = math.prod(shape)
    kept = (np.arange(rows) < (rows // block * block if block else first)).reshape(*shape, 1)
    return lose_results(call, kept) if kept.any() else None


def count_last_block_twice(call: Call, block: int) -> Results | None:
    """The last block of hidden numbers ends with the row, and overlaps the one before."""
    network = Network.read_call(call)
    F = len(network.outer[0])
    if block >= F or F % block == 0:
        return None
    often = 1.0 + ((np.arange(F) >= F - block) & (np.arange(F) < F // block * block))
    return network._replace(factor=network.factor * often).results()


PROJECTIONS = (
    entry("biases-ignored", "biases are ignored: {of}", drop_biases,
          of=("outer", "inner", "inner, outer", "gate", "gate, inner", "gate, inner, outer")),
    entry("past-size", "{what} past the first {first} are left out", lose_past,
          what=tuple(LOST), first=(64, 256, 1024, 4096, 16384, 16, 32, 128, 512, 2048)),
    entry("partial-block", "{what} past the last whole block of {block} are left out", lose_past,
          what=tuple(LOST), block=(32, 128, 4, 8, 16, 64, 256)),
    entry("rows-past-size", "rows past the first {first} are 0", lose_rows, first=(64, 1024, 32768, 65535)),
    entry("rows-past-block", "rows past the last whole block of {block} are 0", lose_rows,
          block=(4, 2, 8, 16, 64, 128)),
    entry("last-block-twice", "the last block of {block} hidden numbers overlaps the one before, and both count",
          count_last_block_twice, block=(4, 8, 16, 32, 64, 128)),
)  # fmt: skip

# --- gradients alone --------------------------------------------------------------------------------------------------


def take_slope(call: Call, slope: str) -> Results:
    """Another slope, beside the hidden numbers of the forward pass."""
    network = Network.read_call(call)
    activate = ACTIVATIONS[network.activation]

    def take(x: Array) -> Array:
        at = np.real(activate(x)) if slope == "of the activation's value" else x
        right = np.imag(activate(at + STEP)) / STEP.imag
        return np.where(x == 0, {"1 at 0": 1.0, "1/2 at 0": 0.5}.get(slope, right), 0.0 if slope == "0" else right)

    wrong = network._replace(
        hide=hidden_layer(lambda x: np.real(activate(np.real(x))) + 1j * np.imag(x) * take(np.real(x)))
    )
    return wrong.shape(wrong.gradients(network.hidden()))


def lose_gradient(call: Call, of: str, first: int) -> Results | None:
    """The gradient of a weight is 0 past a row."""
    right = call.right.get(gradient_name(of))
    if right is None or len(right) <= first:
        return None
    return {gradient_name(of): np.where(np.arange(len(right))[:, None] < first, right, 0)}


def take_side(call: Call, which: str) -> Results:
    """The gradient of x through one of two projections, or the other one's gradient of a bias."""
    network = Network.read_call(call)
    gate, _ = network.project_sides()
    inner = network.cotangent @ network.outer[0].T * network.factor * np.real(network.hide(gate))
    if which == "the gradient of x lacks its part through the gate":
        return network.shape({gradient_name("x"): inner @ network.sides["inner"][0].T})
    return {gradient_name("gate.bias"): inner.sum(axis=0)}


ROWS: dict[str, Callable[[Array, int], Array]] = {
    "the first block": lambda row, n: row < n,
    "the last block": lambda row, n: row >= (len(row) - 1) // n * n,
    "whole blocks": lambda row, n: row < len(row) // n * n,
    "the first row of each block": lambda row, n: row % n == 0,
}


def take_rows(call: Call, of: str, rows: str, block: int) -> Results | None:
    """Sums over rows count some of them."""
    bar = call.case.cotangents["output"]
    kept = ROWS[rows](np.arange(bar[..., 0].size), block).reshape(*bar.shape[:-1], 1)
    found = count_rows(call, kept) if kept.any() else None
    ends = ("weight", "bias") if of == "weights and biases" else of
    return None if found is None else {name: array for name, array in found.items() if name.endswith(ends)}


GRADIENTS = (
    entry("slope", "the slope of the activation is {slope} in the backward pass", take_slope,
          needs=("gradients", "finite"), slope=("of the activation's value", "0", "1/2 at 0", "1 at 0")),
    entry("gradient-past-size", "the gradient of {of} is 0 past row {first}", lose_gradient,
          of=("outer.weight", "inner.weight"), first=(128, 2048, 64, 256, 512, 1024)),
    entry("gradient-of-rows", "the gradient of {of} comes from {rows} only (blocks of {block} rows)", take_rows,
          needs=("gradients", "finite"), of=("weights and biases", "weight", "bias"),
          rows=tuple(ROWS), block=(1, 2, 4, 8, 16, 32, 64, 128)),
    entry("gradient-of-side", "{which}", take_side, operations=GATED, needs=("gradients",),
          which=("the gradient of x lacks its part through the gate",
                 "the gradient of the gate's bias is that of the inner one")),
)  # fmt: skip

# --- SiLU alone -------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """x of a call of `silu`, its right output and slope, the compute dtype's range, and what exp(-x) is in it."""

    x: Array
    output: Array
    slope: Array
    limits: Any
    exponential: Array


UNITS: dict[str, tuple[Callable[[Unit], Array] | None, Callable[[Unit], Array] | None]] = {
    "x * sigmoid(1.702 x)": (
        lambda u: u.x * sigmoid(1.702 * u.x),
        lambda u: sigmoid(1.702 * u.x) * (1 + 1.702 * u.x * sigmoid(-1.702 * u.x))),
    "hard swish": (lambda u: u.x * np.clip(u.x / 6 + 0.5, 0, 1), None),
    "x / (1 + exp(-x)), whose exponential overflows": (
        lambda u: np.where(u.exponential > u.limits.max, 0, u.output), None),
    "x * sigmoid(x) with a sigmoid that is 0 where it is subnormal": (
        lambda u: np.where(1 / u.exponential < u.limits.tiny, 0, u.output), None),
    "0 below -20": (lambda u: np.where(u.x < -20, 0, u.output), None),
    "x * sigmoid(x), which is NaN at -infinity": (lambda u: np.where(u.x == -np.inf, np.nan, u.output), None),
    "0 where x is NaN": (lambda u: np.where(np.isnan(u.x), 0, u.output), None),
    "its sigmoid, as gradient": (None, lambda u: sigmoid(u.x)),
    "NaN at infinity, in the gradient": (None, lambda u: np.where(np.isinf(u.x), np.nan, u.slope)),
    "0 where x is NaN, in the gradient": (None, lambda u: np.where(np.isnan(u.x), 0, u.slope)),
}  # fmt: skip
"""The output and its slope by other formulas; None for the right one."""


def take_unit(call: Call, form: str) -> Prediction:
    """Bounds are those of each element, as many times larger as it is, and twice so, as in `add_bounds`."""
    case, (output, slope) = call.case, UNITS[form]
    x, right = case.inputs["x"].astype(float), call.right["output"]
    bar = case.cotangents["output"].astype(float) if case.cotangents else np.ones_like(x)
    gradient = call.right.get(gradient_name("x"), bar)
    unit = Unit(x, right, gradient / np.where(bar == 0, 1, bar), np.finfo(compute_dtype_name(case.dtype)), np.exp(-x))
    found = {} if output is None else {"output": output(unit)}
    found |= {gradient_name("x"): bar * slope(unit)} if slope is not None and case.cotangents else {}
    bounds = {}
    for name, array in found.items():
        growth = np.where(call.right[name] == 0, 1, np.maximum(1, np.abs(array / call.right[name])))
        bounds[name] = 2 * (call.bounds[name] * growth + 2.0 ** -PRECISION[case.dtype][0] * np.abs(array))
    return Prediction(found, bounds)


SILU = (
    entry("silu", "SiLU is {form}", take_unit, operations=("silu",), form=tuple(UNITS)),
    entry(
        "float64-in-float32", "float64 inputs are computed with in float32", compute_in_float32, operations=("silu",)
    ),
)

MISTAKES = (*ACTIVATED, *PROJECTIONS, *GRADIENTS, *SILU)
OWN = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(OWN["activation"].choose(asked=asked, used=used) for asked, used in (
        ("gelu_tanh", "gelu"), ("gelu", "quick GELU, x * sigmoid(1.702 x),"),
        ("gelu_tanh", "gelu_tanh with the constant 0.0447"), ("relu", "a leaky relu (0.01)"),
        ("relu", "relu cut off at 6"), ("silu", "quick GELU, x * sigmoid(1.702 x),"))),
    *(OWN["activation"].choose(asked=asked, used=used).plant_in(*GATED, rule="FFN-2") for asked, used in (
        ("gelu_tanh", "gelu"), ("silu", "quick GELU, x * sigmoid(1.702 x),"))),
    *(OWN["product"].choose(product=product) for product in tuple(PRODUCTS)[1:4]),
    *(OWN["biases-ignored"].choose(of=of).plant_in(*GATED, rule="FFN-2") for of in ("outer", "gate, inner")),
    OWN["dropout"].choose().plant_in(*GATED, rule="FFN-2"),
    OWN["past-size"].choose(first=16384),
    OWN["past-size"].choose(what="columns of x", first=512),
    OWN["past-size"].choose(what="columns of the output", first=1024),
    OWN["activation"].choose().limit(Condition(passes="backward")),
    OWN["gradient-of-side"].choose(which="the gradient of the gate's bias is that of the inner one"),
    OWN["gradient-of-rows"].choose(rows="whole blocks", block=32),
    OWN["rows-past-size"].choose(first=65535),
    OWN["gradient-past-size"].choose(first=2048),
    OWN["silu"].choose().limit(Condition(passes="backward")),
    *(OWN["silu"].choose(form=form) for form in tuple(UNITS)[1:]),
)  # fmt: skip
