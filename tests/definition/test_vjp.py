"""Every gradient written by hand, against difference quotients of the operation itself, in float64.

For f = sum(cotangent * result) and one entry x of one argument, with D(h) = (f(x + h) - f(x - h)) / 2h, Richardson's
extrapolation R(h) = (4 D(h / 2) - D(h)) / 3 removes the leading error of D. What is compared is R(h / 2), and the bound
on its error is the sum of two terms that are both measured, not chosen:

truncation: R(h) and R(h / 2) differ by at least as much as R(h / 2) still errs, whatever the order p >= 1 of the
    remaining error, since halving h divides that by 2^p: |R(h / 2) - f'| <= |R(h) - R(h / 2)| / (2^p - 1) to leading
    order. Twice the difference is allowed, for the orders after the leading one.
rounding: if every f is off by e at most, D(h / 4) is so by 4 e / h, D(h / 2) by 2 e / h, and R(h / 2) by 6 e / h. e is
    one rounding of every result and of every product with its cotangent, plus six standard deviations of f's noise,
    which shows in high differences of f at points so close together that a smooth function would have none
    (More and Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33, 2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import reference_numpy
from reference_numpy import attention_steps as steps
from specification import (
    Causal,
    FeedForward,
    GatedFeedForward,
    KeyLengths,
    KeyPadding,
    LatentAttention,
    Linear,
    MixtureOfExperts,
    MultiHeadAttention,
    Norm,
    Segments,
    SlidingWindow,
    YarnScaling,
)
from tests.support.small_models import plant

B, H, G, Q, K, D, V, E = 2, 4, 2, 3, 5, 3, 2, 6
STEP = 2.0**-6
UNIT_ROUNDOFF = 2.0**-53


class Case(NamedTuple):
    """One call. Its floating arrays are differentiated: the positional ones, then bias, sinks and choice bias."""

    id: str
    rules: tuple[str, ...]
    operation: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    step: float = STEP


def leaves(structure: Any) -> list[np.ndarray]:
    """The floating arrays inside tuples, lists and NamedTuples, in order."""
    if isinstance(structure, np.ndarray):
        return [structure] if structure.dtype.kind == "f" else []
    if isinstance(structure, tuple | list):
        return [leaf for part in structure for leaf in leaves(part)]
    return []


def inputs(case: Case) -> list[np.ndarray]:
    return leaves([case.arguments, *(case.options.get(name) for name in ("bias", "sinks", "choice_bias"))])


class Function:
    """f = sum(cotangent * result) over the finite entries of the results; the others do not depend on anything."""

    def __init__(self, case: Case) -> None:
        self.case = case
        results = self.results()
        rng = np.random.default_rng(7)
        self.cotangents = [rng.standard_normal(result.shape) for result in results]
        self.finite = [np.isfinite(result) for result in results]

    def results(self) -> list[np.ndarray]:
        return leaves(getattr(reference_numpy, self.case.operation)(*self.case.arguments, **self.case.options))

    def terms(self) -> np.ndarray:
        parts = zip(self.cotangents, self.results(), self.finite, strict=True)
        return np.concatenate([(cotangent * result)[finite] for cotangent, result, finite in parts])

    def __call__(self) -> float:
        return math.fsum(self.terms())

    def gradients(self) -> list[np.ndarray]:
        vjp = getattr(reference_numpy, f"{self.case.operation}_vjp")
        return leaves([vjp(*self.case.arguments, *self.cotangents, **self.case.options)])


def noise(function: Function) -> float:
    """The standard deviation of f's rounding errors, from its differences of order 3 to 6 at almost equal points."""
    arrays = inputs(function.case)
    originals = [array.copy() for array in arrays]
    directions = [np.random.default_rng(11).standard_normal(array.shape) for array in arrays]
    values = []
    for k in range(13):
        for array, original, direction in zip(arrays, originals, directions, strict=True):
            array[...] = original + k * 2.0**-40 * direction
        values.append(function())
    for array, original in zip(arrays, originals, strict=True):
        array[...] = original
    orders = range(3, 7)
    variances = [np.mean(np.diff(values, order) ** 2) / math.comb(2 * order, order) for order in orders]
    return math.sqrt(max(variances))


def difference_quotients(function: Function) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For every argument: R(h / 2) of every entry, and the bound on its error."""
    step = function.case.step
    rounding = 6 * noise(function) + 2 * UNIT_ROUNDOFF * math.fsum(np.abs(function.terms()))
    for array in inputs(function.case):
        quotient, bound = np.zeros_like(array), np.zeros_like(array)
        for index in np.ndindex(array.shape):
            x = array[index]
            if not np.isfinite(x):
                continue  # NaN and infinity behind a mask, and -inf in a bias: f does not depend on them
            central = []
            for h in (step, step / 2, step / 4):
                array[index] = above = x + h
                value = function()
                array[index] = below = x - h
                central.append((value - function()) / (above - below))
            array[index] = x
            coarse, fine = ((4 * b - a) / 3 for a, b in pairwise(central))
            quotient[index], bound[index] = fine, 2 * abs(fine - coarse) + 6 * rounding / step
        yield quotient, bound


def worst_ratio(case: Case) -> float:
    """The largest |gradient - difference quotient| / bound over all entries of all arguments."""
    function = Function(case)
    gradients = function.gradients()
    assert [gradient.shape for gradient in gradients] == [array.shape for array in inputs(case)]
    ratios = []
    for gradient, (quotient, bound) in zip(gradients, difference_quotients(function), strict=True):
        error = np.abs(gradient - quotient)
        ratios.append(np.max(np.where(error == 0, 0, error / np.where(bound == 0, UNIT_ROUNDOFF, bound)), initial=0))
        if gradient.size:  # a bound as large as the gradient would let anything through
            assert bound.max() <= 1e-5 * max(np.abs(gradient).max(), np.abs(quotient).max(), 1)
    return float(max(ratios))


# --- the cases --------------------------------------------------------------------------------------------------------


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def booleans(*shape: int, share: float = 0.7) -> np.ndarray:
    return np.random.default_rng([5, *shape]).random(shape) < share


def with_entry(array: np.ndarray, index: Any, entry: float) -> np.ndarray:
    array = array.copy()
    array[index] = entry
    return array


def integers(*numbers: Any) -> np.ndarray:
    return np.array(numbers)


def triple() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return floats(B, H, Q, D, seed=1), floats(B, G, K, D, seed=2), floats(B, G, K, V, seed=3)


CASES: list[Case] = []


def case(id: str, rules: str, operation: str, *arguments: Any, step: float = STEP, **options: Any) -> None:
    CASES.append(Case(f"{operation}-{id}", tuple(rules.split()), operation, arguments, options, step))


SCORING: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("", {}),
    "scale": ("ATT-1", {"scale": -0.7}),
    "scale-0": ("ATT-1", {"scale": 0.0}),
    "large-scores": ("ATT-5", {"scale": 3.0}),
    "softcap": ("ATT-2", {"softcap": 0.8}),
    "bias-pairs": ("ATT-3", {"bias": floats(Q, K)}),
    "bias-shared": ("ATT-3", {"bias": floats(1, 1, Q, K)}),
    "bias-batch": ("ATT-3", {"bias": floats(B, 1, Q, K)}),
    "bias-heads": ("ATT-3", {"bias": floats(1, H, Q, K)}),
    "bias-whole": ("ATT-3", {"bias": floats(B, H, Q, K)}),
    "bias-forbids": ("ATT-3", {"bias": with_entry(floats(1, H, Q, K), (0, 1, slice(1, 3)), -np.inf)}),
    "sinks": ("ATT-5", {"sinks": floats(H)}),
    "causal": ("MASK-3", {"mask": Causal(0)}),
    "causal-empty": ("MASK-3 ATT-6", {"mask": Causal(-2)}),
    "causal-batch": ("MASK-3", {"mask": Causal(integers(2, -1))}),
    "window": ("MASK-4", {"mask": SlidingWindow(1, 2, offset=1)}),
    "lengths": ("MASK-2", {"mask": KeyLengths(integers(4, 2))}),
    "lengths-empty": ("ATT-6", {"mask": KeyLengths(integers(3, 0))}),
    "padding": ("MASK-2", {"mask": KeyPadding(np.arange(K) >= [[1], [2]])}),
    "segments": ("MASK-2", {"mask": Segments(integers([0, 0, 1]), integers([0, 0, 1, 1, 2], [1, 0, 2, 2, 2]))}),
    "dense": ("MASK-5", {"mask": booleans(Q, K)}),
    "dense-heads": ("MASK-5", {"mask": booleans(1, H, Q, K)}),
    "dense-whole": ("MASK-5", {"mask": booleans(B, H, Q, K)}),
    "combined": ("MASK-6", {"mask": KeyLengths(integers(4, 3)) & (Causal(1) | booleans(B, 1, Q, K, share=0.3))}),
    "sinks-empty": ("ATT-5 ATT-6", {"mask": KeyLengths(integers(3, 0)), "sinks": floats(H)}),
    "everything": (
        "ATT-1 ATT-2 ATT-3 ATT-5 MASK-6",
        {
            "mask": Causal(1) & booleans(1, H, Q, K), "bias": with_entry(floats(B, 1, Q, K), (0, 0, 1, 1), -np.inf),
            "scale": 0.9, "softcap": 1.5, "sinks": floats(H),
        },
    ),
}  # fmt: skip

query, key, value = triple()
for id, (rules, options) in SCORING.items():
    case(id, f"ATT-12 {rules}", "attention", *triple(), **options)
    case(id, f"ATT-12 ATT-14 {rules}", "attention_weights", query, key, **options)
    case(id, f"ATT-12 ATT-14 {rules}", "attention_logsumexp", query, key, **options)

case("no-groups", "ATT-7 ATT-12", "attention", query, floats(B, H, K, D), floats(B, H, K, V))
case("one-group", "ATT-7 ATT-12", "attention", query, floats(B, 1, K, D), floats(B, 1, K, V), mask=booleans(Q, K))
dropped: dict[str, Any] = {"dropout_keep": booleans(B, H, Q, K), "dropout_rate": 0.3}
case("dropout", "ATT-11 ATT-12", "attention", *triple(), **dropped)
case("dropout-empty", "ATT-11 ATT-6 ATT-12", "attention", *triple(), mask=Causal(-1), sinks=floats(H), **dropped)
case("dropout-mean", "ATT-11 ATT-6 ATT-12", "attention", *triple(), mask=Causal(-1), empty_rows="mean", **dropped)
case("mean", "ATT-6 ATT-12", "attention", *triple(), mask=KeyLengths(integers(3, 0)), empty_rows="mean")
case("mean", "ATT-6 ATT-12", "attention_weights", query, key, mask=KeyLengths(integers(3, 0)), empty_rows="mean")

HIDDEN = KeyLengths(integers(4, 3))
case(
    "hidden-nan", "MASK-7 ATT-12", "attention", query,
    with_entry(key, (slice(None), slice(None), 4), np.nan),
    with_entry(with_entry(value, (1, 0, 3), np.inf), (slice(None), slice(None), 4, 0), np.nan),
    mask=HIDDEN, bias=with_entry(floats(B, H, Q, K), (1, 2, 0, 4), np.nan),
)  # fmt: skip
case("no-keys", "ATT-6 ATT-8", "attention", query, floats(B, G, 0, D), floats(B, G, 0, V), sinks=floats(H))
case("no-queries", "ATT-8 ATT-12", "attention", floats(B, H, 0, D), key, value, bias=floats(0, K), sinks=floats(H))

parts = [floats(B, H, Q, V, seed=part) for part in range(3)]
sums = [floats(B, H, Q, seed=part) for part in range(3)]
unseen = [sums[0], with_entry(sums[1], (slice(None), 1), -np.inf), with_entry(sums[2], (1, slice(0, 2)), -np.inf)]
case("plain", "ATT-14 ATT-12", "merge_attention", parts, sums)
case("single", "ATT-14 ATT-12", "merge_attention", parts[:1], sums[:1])
case(
    "unseen",
    "ATT-14 ATT-12",
    "merge_attention",
    [parts[0], with_entry(parts[1], (0, 1, 0, 0), np.nan), parts[2]],
    unseen,
)
case("nothing", "ATT-14 ATT-6", "merge_attention", parts[:2], [np.full((B, H, Q), -np.inf)] * 2)


def layers(biases: bool = True) -> MultiHeadAttention:
    """Four query heads of width 3, two key and value heads, the value's of width 2."""

    def linear(seed: int, rows: int, columns: int) -> Linear:
        return Linear(floats(rows, columns, seed=seed), floats(columns, seed=seed) if biases else None)

    return MultiHeadAttention(linear(1, E, H * D), linear(2, 5, G * D), linear(3, 4, G * V), linear(4, H * V, 7))


streams = floats(B, Q, E), floats(B, K, 5), floats(B, K, 4)
case("plain", "MHA-1 ATT-12", "multi_head_attention", layers(), *streams, num_heads=H)
case("no-bias", "MHA-1 ATT-12", "multi_head_attention", layers(biases=False), *streams, num_heads=H, scale=0.2)
case(
    "everything", "MHA-1 ATT-12", "multi_head_attention", layers(), *streams, num_heads=H, scale=0.2, softcap=2.0,
    mask=Causal(1), bias=floats(1, H, Q, K), sinks=floats(H), dropout_keep=booleans(B, H, Q, K), dropout_rate=0.2,
)  # fmt: skip
case("empty-mean", "ATT-6", "multi_head_attention", layers(), *streams, num_heads=H, mask=Causal(-1), empty_rows="mean")


def latent_layers(compressed: bool, biases: bool = True) -> LatentAttention:
    """Four heads with keys of 3 + 2 columns and values of 2, and latents of 5."""

    def linear(seed: int, rows: int, columns: int, biased: bool = biases) -> Linear:
        return Linear(floats(rows, columns, seed=seed), floats(columns, seed=seed) if biased else None)

    down, norm = (linear(4, E, 3), Norm(floats(3, seed=2))) if compressed else (None, None)
    query, key = linear(1, 3 if compressed else E, H * 5), linear(2, E, 7)
    up, output = linear(3, 5, H * 5, biased=False), linear(5, H * 2, 7)
    return LatentAttention(query, key, Norm(floats(5, seed=1)), up, output, down, norm)


for id, absorbed in (("expanded", False), ("absorbed", True)):
    rule, given = ("MLA-2" if absorbed else "MLA-1"), (latent_layers(False), floats(B, Q, E, seed=6))
    sizes: dict[str, Any] = {"num_heads": H, "rotary_width": 2, "absorbed": absorbed}
    case(id, rule, "latent_attention", *given, **sizes)
    case(f"{id}-compressed", rule, "latent_attention", latent_layers(True), given[1], mask=Causal(0), eps=0.3, **sizes)
    case(f"{id}-no-bias", rule, "latent_attention", latent_layers(True, biases=False), given[1], scale=0.3, **sizes)
    empty = KeyLengths(integers(2, 0))
    case(f"{id}-halves", f"{rule} ATT-6", "latent_attention", *given, mask=empty, pairing="halves", **sizes)
    ramp = YarnScaling(factor=4.0, original_length=16)
    places = {"positions": integers([4, 0, 7], [3, 3, 1]), "scaling": ramp, "base": 50.0}
    case(f"{id}-positions", f"{rule} POS-4", "latent_attention", *given, **places, **sizes)
    case(f"{id}-nothing", rule, "latent_attention", given[0], floats(B, 0, E), **sizes)

for id, x, weight in (
    ("rows", floats(2, 3, E), floats(E)),
    ("one-row", floats(E), floats(E)),
    ("two-axes", floats(2, 3, 4), floats(3, 4)),
    ("far-from-zero", floats(2, E) + 1000, floats(E)),
    ("constant-row", with_entry(floats(2, E), 0, 3.0), floats(E)),
    ("no-rows", floats(0, E), floats(E)),
):
    bias = floats(*weight.shape, seed=9)
    case(id, "NORM-6 NORM-1", "layer_norm", x, weight, bias, eps=0.3)
    case(id, "NORM-6 NORM-7", "rms_norm", x, weight, eps=0.3)
    case(f"{id}-plus-one", "NORM-6 NORM-8", "rms_norm", x, weight, eps=0.3, plus_one=True)
    # The deviation has a kink where it is 0, so that the quotients err by the first power of the step, not the second.
    step = 2.0**-24 if id == "constant-row" else STEP
    case(id, "NORM-6 NORM-7", "standard_deviation_norm", x, weight, bias, eps=0.3, step=step)
case("default-eps", "NORM-6 NORM-1", "layer_norm", floats(2, E), floats(E), None)
case("one-element", "NORM-6 NORM-3", "layer_norm", floats(3, 1), floats(1), floats(1))
case("no-bias", "NORM-6 NORM-7", "standard_deviation_norm", floats(2, E), floats(E), None, eps=1e-6)


def network(inner_bias: np.ndarray | None, outer_bias: np.ndarray | None) -> FeedForward:
    return FeedForward(Linear(floats(4, E), inner_bias), Linear(floats(E, 3), outer_bias))


def gated(gate_bias: np.ndarray | None, inner_bias: np.ndarray | None, outer_bias: np.ndarray | None) -> Any:
    gate = Linear(floats(4, E, seed=1), gate_bias)
    return GatedFeedForward(gate, *network(inner_bias, outer_bias))


for activation in ("relu", "gelu", "gelu_tanh", "silu"):
    both, gates = network(floats(E), floats(3)), gated(floats(E, seed=3), floats(E), floats(3))
    options = {"activation": activation}
    case(activation, "FFN-2", "gated_feed_forward", gates, floats(2, 3, 4), **options)
    case(f"{activation}-no-bias", "FFN-2", "gated_feed_forward", gated(None, None, None), floats(4), **options)
    case(
        f"{activation}-dropout", "FFN-2", "gated_feed_forward", gates, floats(2, 3, 4), **options,
        dropout_keep=booleans(2, 3, E), dropout_rate=0.4,
    )  # fmt: skip
    case(activation, "FFN-1", "feed_forward", both, floats(2, 3, 4), activation=activation)
    case(f"{activation}-no-bias", "FFN-1", "feed_forward", network(None, None), floats(4), activation=activation)
    case(
        f"{activation}-dropout", "FFN-1", "feed_forward", both, floats(2, 3, 4), activation=activation,
        dropout_keep=booleans(2, 3, E), dropout_rate=0.4,
    )  # fmt: skip

case("plain", "ACT-1", "silu", 3 * floats(2, 3, 4))
case("no-axes", "ACT-1", "silu", floats())
case("nothing", "ACT-1", "silu", floats(0, 4))

targets = integers([0, 3, 1], [-1, 3, 5])
for id, options in {
    "mean": {}, "sum": {"reduction": "sum"}, "none": {"reduction": "none"}, "none-counts": {"ignore": 2},
}.items():  # fmt: skip
    of = integers([2, 2, 2]) if id == "none-counts" else targets[:, :2] if id == "mean" else targets
    ignored = {"ignore": -1} | options
    rows = floats(*of.shape, E, seed=3)
    case(id, "LOSS-1", "cross_entropy", rows, of, **ignored)
    case(f"{id}-smoothed", "LOSS-1", "cross_entropy", rows, of, label_smoothing=0.2, **ignored)
    case(id, "LOSS-2", "nll_loss", rows, of, **ignored)
case("hidden-nan", "LOSS-1", "cross_entropy", with_entry(floats(2, 3, E), (1, 0), np.nan), targets, ignore=-1)
case("minus-infinity", "LOSS-1", "cross_entropy", with_entry(floats(2, E), (0, 1), -np.inf), integers(3, 5))
case("hidden-nan", "LOSS-2", "nll_loss", with_entry(floats(2, 3, E), (1, 0), np.nan), targets, ignore=-1)
case("nothing", "LOSS-1", "cross_entropy", floats(0, E), np.zeros(0, int))

X = 6
tokens, keep = floats(2, 3, 4, seed=21), integers([1, 1, 0], [1, 0, 1]).astype(bool)
router, chooser = Linear(floats(4, X, seed=22), floats(X, seed=23)), floats(X, seed=24)
three = {"groups": 3, "chosen_groups": 2, "choice_bias": chooser}
for id, options in {
    "plain": {}, "scores": {"weighting": "scores", "scale": 2.5}, "softmax": {"weighting": "softmax"},
    "sigmoid": {"scoring": "sigmoid"} | three, "none": {"scoring": "none", "weighting": "softmax"} | three,
    "logits": {"scoring": "none", "weighting": "scores"}, "largest": {"group_score": "largest"} | three,
}.items():  # fmt: skip
    case(id, "MOE-1 MOE-2 MOE-3", "route", tokens, router, chosen=2, **options)
case("no-bias", "MOE-1", "route", floats(4, seed=21), Linear(router.weight), chosen=1)
case("nothing", "MOE-1", "route", floats(0, 4), router, chosen=2)


def stacked(columns: tuple[int, int], biases: bool, *lead: int) -> tuple[Linear, Linear]:
    """An inner and an outer projection, with axes before the others."""
    inner, outer = columns
    parts = ((4, inner, 31), (inner, outer, 33))
    return tuple(
        Linear(floats(*lead, i, o, seed=seed), floats(*lead, o, seed=seed + 1) if biases else None)
        for i, o, seed in parts
    )  # type: ignore[return-value]


plain = FeedForward(*stacked((5, 3), True, X))
gates = Linear(4 * floats(X, 4, 5, seed=35), floats(X, 5, seed=36))
gated_experts = GatedFeedForward(gates, *stacked((5, 3), True, X))
shared = GatedFeedForward(Linear(floats(4, 7, seed=37)), *stacked((7, 3), False))
everything = MixtureOfExperts(router, gated_experts, chooser, shared)
for id, parameters, options in (
    ("plain", MixtureOfExperts(router, plain), {"activation": "relu"}),
    ("gated", MixtureOfExperts(router, gated_experts), {"scoring": "sigmoid", "scale": 2.5}),
    ("shared", everything, {"groups": 3, "chosen_groups": 2, "token_mask": keep}),
    ("clamped", everything, {"activation": "clamped_swiglu", "weighting": "softmax", "scoring": "none"}),
    ("capacity", everything, {"capacity": 1, "token_mask": keep}),
):
    case(id, "MOE-4 MOE-5", "mixture_of_experts", parameters, tokens, chosen=2, **options)
hidden = with_entry(tokens, (0, 2), np.nan)
case("hidden-nan", "MOE-5", "mixture_of_experts", everything, hidden, chosen=2, token_mask=keep)
case("nothing", "MOE-4", "mixture_of_experts", everything, floats(0, 4), chosen=2)

hidden = with_entry(floats(2, 3, X, seed=25), (0, 2), np.nan)
for id, options in {"plain": {}, "masked": {"token_mask": keep}}.items():
    rows = hidden if options else floats(2, 3, X, seed=25)
    case(id, "MOE-6", "load_balancing_loss", rows, chosen=2, **options)
    case(id, "MOE-6", "router_z_loss", rows, **options)
case("nothing", "MOE-6", "load_balancing_loss", floats(0, X), chosen=2)
case("nothing", "MOE-6", "router_z_loss", floats(2, X), token_mask=np.zeros(2, bool))

ids = integers([0, 3, 3], [1, 3, 0])
case("repeated", "EMB-1", "embedding", floats(5, E), ids)
case("scaled", "EMB-1", "embedding", floats(5, E), ids, scaled=True)
case("nothing", "EMB-1", "embedding", floats(5, E), np.zeros((2, 0), int))
case("start", "POS-2", "learned_positions", floats(7, E), 4)
case("offset", "POS-2", "learned_positions", floats(7, E), 4, offset=3)
table = floats(8, H)
case("both", "POS-6", "relative_position_bias", table, 3, 5, bidirectional=True, furthest=5)
case("offset", "POS-6", "relative_position_bias", table, 2, 9, bidirectional=True, furthest=7, offset=4)
case("before", "POS-6", "relative_position_bias", table, 3, 9, bidirectional=False, furthest=9, offset=8)
case("nothing", "POS-6", "relative_position_bias", table, 0, 3, bidirectional=False)

row, several = np.array([0, 3, 1]), integers([0, 70000, 2], [5, 1, 2**30])
ramp = YarnScaling(factor=4.0, original_length=2048)
case("halves", "POS-3", "rotary_embedding", floats(2, 3, 3, E), row)
case("interleaved", "POS-3", "rotary_embedding", floats(2, 3, 3, E), several, pairing="interleaved", base=500.0)
case("partial", "POS-3", "rotary_embedding", floats(2, 1, 3, E), row, rotary_width=4)
case("scaled", "POS-3 POS-4", "rotary_embedding", floats(2, 1, 3, E), row, scaling=ramp)
case("nothing", "POS-3", "rotary_embedding", floats(2, 1, 0, E), np.zeros((2, 0), int))

BY_ID = {case.id: case for case in CASES}


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id, marks=pytest.mark.rule(*c.rules)) for c in CASES])
def test_gradient(case: Case) -> None:
    assert worst_ratio(case) <= 1


@pytest.mark.rule("ATT-12")
@pytest.mark.parametrize("id", ["attention-everything", "attention_logsumexp-sinks", "attention-dropout"])
def test_gradient_in_blocks_of_queries(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "BLOCK_SCORES", B * H * K)
    assert len(list(steps.query_blocks(B, H, Q, K))) == Q
    assert worst_ratio(BY_ID[id]) <= 1


@pytest.mark.rule("MHA-2")
def test_gradient_of_separate_projections_is_the_fused_one() -> None:
    fused, case = layers(), BY_ID["multi_head_attention-everything"]
    separate = fused._replace(
        query=[
            Linear(fused.query.weight[:, h * D : (h + 1) * D], fused.query.bias[h * D : (h + 1) * D]) for h in range(H)
        ]
    )
    cotangent = floats(B, Q, 7)
    expected = reference_numpy.multi_head_attention_vjp(fused, *streams, cotangent, **case.options)
    got = reference_numpy.multi_head_attention_vjp(separate, *streams, cotangent, **case.options)
    for gradient, other in zip(leaves([got]), leaves([expected]), strict=True):
        np.testing.assert_array_equal(gradient, other)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id, marks=pytest.mark.rule("ATT-13")) for c in CASES])
def test_gradients_are_new_arrays_and_leave_the_arguments_alone(case: Case) -> None:
    function = Function(case)
    arrays = [*inputs(case), *function.cotangents]
    before = [array.copy() for array in arrays]
    first, second = function.gradients(), function.gradients()
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    for gradient, again in zip(first, second, strict=True):
        np.testing.assert_array_equal(gradient, again)
        assert not any(np.shares_memory(gradient, array) for array in [*arrays, *second])


# --- planted faults ---------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def edited(module: str, old: str, new: str) -> Plant:
    """In a module of gradients `old`, which occurs once, becomes `new`."""
    return lambda monkeypatch: plant(f"reference_numpy.{module}", old, new, monkeypatch)


def replace_options(operation: str, **changed: Any) -> Plant:
    """The gradient of the operation with other options than it was called with."""
    right = getattr(reference_numpy, f"{operation}_vjp")
    return lambda patch: patch.setattr(
        reference_numpy, f"{operation}_vjp", lambda *given, **options: right(*given, **options | changed)
    )


STEPS, SCALE = "attention_steps_vjp", "resolve_scale(scale, query.shape[-1])"
FAULTS: tuple[tuple[tuple[str, ...], Plant], ...] = (
    (("attention-plain", "attention_weights-causal", "merge_attention-plain", "multi_head_attention-plain"),
     edited(STEPS, "weights_cotangent - mean", "weights_cotangent")),
    (("attention_logsumexp-plain", "merge_attention-unseen"),
     edited(STEPS, "- mean + logsumexp_", "- mean + 0 * logsumexp_")),
    (("attention-softcap", "attention-everything"), edited(STEPS, "if softcap is not None:", "if False:")),
    (("attention-plain", "attention_logsumexp-plain"), edited(STEPS, SCALE, SCALE.replace("[-1]", "[-1] + 1"))),
    (("attention-scale",), edited(STEPS, SCALE, f"{SCALE} * (1 + 1e-6)")),
    (
        ("attention-plain", "multi_head_attention-plain"),  # groups tiled instead of repeated
        edited(
            STEPS,
            "key_heads, H // max(key_heads, 1), K, W).sum(axis=2)",
            "H // key_heads, key_heads, K, W).sum(axis=1)",
        ),
    ),
    (("attention-bias-pairs", "attention-bias-shared", "attention-bias-batch", "attention-bias-heads"),
     edited(STEPS, "gradient.sum(axis=axes)", "gradient[: shape[0], : shape[1]]")),
    (("attention-sinks", "attention_weights-sinks"), edited(STEPS, "np.sum(weight * (", "-np.sum(weight * (")),
    (("attention-dropout",), replace_options("attention", dropout_rate=0.0)),
    (("attention-dropout",), replace_options("attention", dropout_keep=None, dropout_rate=0.0)),
    (("attention-causal",), replace_options("attention", mask=Causal(1))),
    (("attention-mean",), replace_options("attention", empty_rows="zero")),
    (("attention-sinks",), replace_options("attention", sinks=np.zeros(H))),
    (
        ("latent_attention-expanded", "latent_attention-expanded-compressed"),  # the shared key's, of one head only
        edited("latent_attention_vjp", "np.sum(widen(others), axis=1, keepdims=True)", "others[:, :1]"),
    ),
    (
        ("latent_attention-expanded", "latent_attention-absorbed"),
        edited("latent_attention_vjp", "start:end] = cotangent", "start:end] = cotangent[:1]"),
    ),
    (("latent_attention-absorbed",), edited("latent_attention_vjp", "cotangent.transpose(2, 0, 1)", "0 * width")),
    (("latent_attention-absorbed",), edited("latent_attention_vjp", "= cotangent.swapaxes(0, 1)", "= 0")),
    (("latent_attention-absorbed",), edited("latent_attention_vjp", "return products", "return 2 * products")),
    (("latent_attention-expanded-compressed",), replace_options("latent_attention", eps=0.31)),
    (("layer_norm-default-eps",), replace_options("layer_norm", eps=1.1e-5)),
    (("rms_norm-rows",), replace_options("rms_norm", eps=0.31)),
    (("rms_norm-rows-plus-one",), replace_options("rms_norm", plus_one=False)),
    (("standard_deviation_norm-rows",), replace_options("standard_deviation_norm", eps=0.31)),
    (("embedding-scaled",), replace_options("embedding", scaled=False)),
    (("learned_positions-offset",), replace_options("learned_positions", offset=2)),
    (("relative_position_bias-offset",), replace_options("relative_position_bias", offset=0)),
    (("relative_position_bias-both",), replace_options("relative_position_bias", bidirectional=False)),
    (("relative_position_bias-before",), replace_options("relative_position_bias", furthest=128)),
    (("gated_feed_forward-silu",), replace_options("gated_feed_forward", activation="gelu")),
    (("gated_feed_forward-relu-dropout",), replace_options("gated_feed_forward", dropout_rate=0.0)),
    (("feed_forward-gelu",), replace_options("feed_forward", activation="gelu_tanh")),
    (("feed_forward-gelu_tanh",), replace_options("feed_forward", activation="gelu")),
    (("feed_forward-relu-dropout",), replace_options("feed_forward", dropout_rate=0.0)),
    (("layer_norm-rows",), edited("layer_norm_vjp", "centered = deviations(inner, axes)", "centered = inner")),
    (("standard_deviation_norm-rows", "standard_deviation_norm-constant-row"),
     edited("layer_norm_vjp", "(deviations(inner, axes) - ", "(inner - ")),
    (("layer_norm-rows", "rms_norm-rows", "standard_deviation_norm-rows"),
     edited("layer_norm_vjp", "np.sum(widen(cotangent) * normalized,", "np.sum((widen(cotangent) * normalized)[:1],")),
    (
        (
            "feed_forward-relu",
            "feed_forward-gelu",
            "feed_forward-gelu_tanh",
            "feed_forward-silu",
            "gated_feed_forward-silu",
        ),
        edited("feed_forward_vjp", "SLOPES[activation](x)", "np.ones_like(x)"),
    ),
    (("silu-plain",), edited("feed_forward_vjp", "root * (1 - size / total) * root", "root * root")),
    (("cross_entropy-mean", "cross_entropy-hidden-nan", "nll_loss-mean"),
     edited("losses_vjp", 'if reduction == "mean"', "if False")),
    (("cross_entropy-none-smoothed",), edited("losses_vjp", "float(label_smoothing) - 1)", "-1.0)")),
    (
        ("embedding-repeated",),
        edited(
            "embedding_vjp",
            "np.add.at(gradient, ids.reshape(-1), widen(cotangent).reshape(ids.size, table.shape[1]))",
            "gradient[ids] += cotangent",
        ),
    ),
    (("rotary_embedding-halves", "rotary_embedding-interleaved", "rotary_embedding-partial"),
     edited("rotary_vjp", "rotate(cotangent, -sine", "rotate(cotangent, sine")),
    (("rotary_embedding-scaled",),
     edited("rotary_vjp", "cosine, pairing, cotangent)", "cosine, pairing, cotangent / 1.1)")),
    (("route-scores",), edited("experts_vjp", "weights_cotangent * float(scale)", "weights_cotangent")),
    (("route-plain", "mixture_of_experts-plain"),
     edited("experts_vjp", "np.sum(weights * received, axis=-1, keepdims=True)", "0")),
    (("route-sigmoid", "mixture_of_experts-gated"), edited("experts_vjp", "scores * (1 - scores)", "scores")),
    (("mixture_of_experts-clamped",), edited("experts_vjp", "np.abs(value) > 7", "np.abs(value) > 70")),
    (("mixture_of_experts-shared", "mixture_of_experts-capacity"),
     edited("experts_vjp", "tokens_gradient[rows] += widen(through_shared)", "pass")),
    (("load_balancing_loss-plain",), edited("losses_vjp", "logits.shape[-1] * row_cotangents", "row_cotangents")),
    (("router_z_loss-masked",), edited("losses_vjp", "received = 2 * ", "received = 1 * ")),
    (("multi_head_attention-plain",), edited("multi_head_attention_vjp", "rows.sum(axis=0)", "rows.mean(axis=0)")),
)  # fmt: skip


@pytest.mark.rule("ATT-2", "ATT-12", "NORM-6")
@pytest.mark.parametrize(("id", "planted"), [(id, planted) for ids, planted in FAULTS for id in ids])
def test_planted_fault_is_caught(id: str, planted: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    assert worst_ratio(BY_ID[id]) > 100
