"""How far an honest port may be off from end to end, by Monte Carlo arithmetic (Parker, 1997).

Bounds that are carried through a model assume that all roundings conspire. They do not: from end to end the error is a
hundredth of such a bound or less, and mistakes as small as another eps hide below it. So the scale of an honest error
is measured. The definition runs RUNS times in float64 with every rounding replaced by a random one, and an element's
scale is the root of the mean square of its deviations.

Each deviation is a sum of many independent roundings through one linear map, hence nearly normal. So is the error of a
port, which rounds as often, in another order. Then error / scale has Student's t distribution with RUNS degrees of
freedom, and an honest port exceeds `quantile(elements)` scales in a result of so many elements with probability
FAILURE.

What one rounding is:
- Every operation that an eager implementation takes rounds its result to the model's dtype: projections, norms,
  products, activations. That moves x by at most u |x|, and at random in between.
- A sum of n products is kept in float32 (float64 for float64), and added up one after the other in a random order: n
  products and n partial sums are rounded. Let S be the sum of the terms, and R that of their squares. Over all orders,
  the squares of the partial sums come to R (n + 1) / 6 + S^2 (n + 1) / 3 in the mean (sampling without replacement). A
  rounding of a number s has the variance (u s)^2 / 3 or less.
- exp, tanh, erf, sin, cos and pow are off by as much as `bounds.arithmetic` allows them, at random in between. An
  implementation's own errors go one way for many arguments alike. This allowance is several times what they are.

In float64 the definition that is compared with is off itself, and the scale is sqrt(2) times as large.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from conformance.bounds.arithmetic import EXP, LOG, POW, TANH, Precision, exact
from conformance.bounds.layers import activation as bound_activation
from conformance.ports.computation import Computation, copy_functions
from reference_numpy import blocks, materialize
from reference_numpy.attention_steps import fill_empty_rows, repeat_heads, resolve_scale
from reference_numpy.feed_forward import ACTIVATIONS
from reference_numpy.positions import sinusoidal_positions
from reference_numpy.rotary import rotary_table
from specification.frequencies import attention_factor, exact_frequencies
from specification.masks import Mask
from specification.parameters import FeedForward, GatedFeedForward, Linear, MixtureOfExperts
from specification.rotary import Scaling

# The package has functions of these names.
experts = importlib.import_module("reference_numpy.experts")
latent_attention = importlib.import_module("reference_numpy.latent_attention")
MULTI_HEAD_ATTENTION = importlib.import_module("reference_numpy.multi_head_attention")
TRANSFORMER = importlib.import_module("reference_numpy.transformer")
RUNS = 48
"""Of the noisy definition. More runs lower the quantile slowly: for 30,000 elements it is 12.9 at 32, 10.6 at 48 and
8.9 at 96."""
MOST_NUMBERS = 2**19
"""Of the results of runs that stand in one batch: small models take less time so, and large ones little memory."""
SCALING = 4.0
"""Roundings of a rotary frequency that its scaling adds at most."""
OPERATIONS = (
    *("linear", "attention", "layer_norm", "rms_norm", "standard_deviation_norm", "rotary_table", "rotate"),
    *("feed_forward", "gated_feed_forward", "add", "shrink", "squeeze", "log_softmax"),
)
"""The definition's functions in whose place those of `Noise` stand."""
LATENT = ("project_latent_queries", "project_latents", "attend_to_latents")
"""The definition's functions of latent attention, which consist of these operations."""
COMPOUND = ("attend", "transform", "normalize", "pool", "multi_head_attention")
"""The definition's steps that consist of these operations."""
FAILURE = 1e-9
"""Probability that an honest port is accused for one result, so small that ten thousand checks of a hundred results
each accuse one with probability 1e-3."""


def quantile(elements: int, runs: int = RUNS) -> float:
    """Return the t that one of so many elements exceeds with probability FAILURE at most.

    The tail of Student's distribution, both sides, is at most 2 c v / ((v - 1) t) (1 + t^2 / v)^(-(v - 1) / 2): under
    its integral 1 is at most x / t.
    """
    v = runs
    constant = math.lgamma((v + 1) / 2) - math.lgamma(v / 2) - 0.5 * math.log(v * math.pi) + math.log(2 * v / (v - 1))
    low, high = 1.0, 1e9
    for _ in range(100):
        t = math.sqrt(low * high)
        tail = constant - math.log(t) - (v - 1) / 2 * math.log1p(t * t / v)
        low, high = (low, t) if tail <= math.log(FAILURE / max(elements, 1)) else (t, high)
    return high


def noise_bound(
    computation: Computation,
    dtype: str,
    seed: int = 0,
    runs: int = RUNS,
    change: Callable[[Computation], Computation] = lambda computation: computation,
    operations: Collection[str] = OPERATIONS,
) -> tuple[Any, Any]:
    """Return the exact result of a model and the bound of an honest implementation in that dtype, of one shape.

    Runs stand side by side in one batch, as many as are about MOST_NUMBERS. change: makes the computation of a port
    with a mistake, of one batch as of several. operations: those that are in that dtype; all others are exact, and so
    is the result.
    """
    result = np.asarray(change(computation).run())
    at_once = int(np.clip(MOST_NUMBERS // max(result.size, 1), 1, runs))
    squares, left = np.zeros(result.shape), runs
    while left > 0:
        count = min(at_once, left)
        noise = Noise(np.random.default_rng([seed, left]), dtype, count, operations)
        with np.errstate(all="ignore"):
            several = np.asarray(change(noise.repeat(computation)).run(steps=noise.steps)).reshape(count, *result.shape)
            squares += np.sum((several - result) ** 2, axis=0)
        left -= count
    deviation = bound_deviation(squares, result.size, dtype, runs)
    return result, deviation + (bound_rounding(result, dtype) if operations is OPERATIONS else 0)


def bound_deviation(squares: np.ndarray, elements: int, dtype: str, runs: int = RUNS) -> Any:
    """Return what no honest deviation exceeds, by the squares of those of all runs, added up.

    elements: of the result that is held to it.
    """
    return quantile(elements, runs) * np.sqrt(squares / runs * (2 if dtype == "float64" else 1))


def bound_rounding(result: np.ndarray, dtype: str) -> Any:
    """Return the bound of the last rounding as it is: in 16 bits it may be all that there is, and is not normal."""
    p = Precision.make(dtype)
    return p.output * np.abs(result) + p.output_tiny


class Noise:
    """Steps of the definition that round at random, for several runs of a model in one batch.

    What a model computes once for a whole batch, angles and factors, has other noise in each run.

    steps: functions by the name of the definition's steps.
    """

    def __init__(
        self, generator: np.random.Generator, dtype: str, runs: int, operations: Collection[str] = OPERATIONS
    ) -> None:
        self.generator, self.p, self.runs = generator, Precision.make(dtype), runs
        self.shared: dict[int, tuple[np.ndarray, Any]] = {}
        """By the identity of an array that all runs share, which is kept alive: how each run has it."""
        own = {name: getattr(self, name) for name in operations}
        every = operations is OPERATIONS
        router = {"router_logits": self.router_logits, "clamped_gate": self.clamped_gate} if every else {}
        inner = copy_functions(own | router, latent_attention, experts)
        self.mixture = inner["mixture_of_experts"]
        own |= {name: inner[name] for name in LATENT}
        own["mixture_of_experts"] = self.mixture_of_experts if every else self.mixture
        copied = copy_functions(own, MULTI_HEAD_ATTENTION, blocks, TRANSFORMER)
        self.steps: dict[str, Any] = own | {name: copied[name] for name in COMPOUND}
        if every:
            self.steps |= {"embedding": self.embedding, "sinusoidal_positions": self.sinusoidal_positions}

    def repeat(self, computation: Computation) -> Computation:
        """Return the computation with its batch once for each run."""

        def several(array: Any) -> Any:
            return np.tile(array, (self.runs,) + (1,) * (array.ndim - 1)) if isinstance(array, np.ndarray) else array

        options = {
            name: value if name.endswith("mask") else several(value) for name, value in computation.options.items()
        }
        return computation.change(inputs=tuple(map(several, computation.inputs)), options=options)

    def share(self, array: np.ndarray, by_run: Any) -> Any:
        """Keep how each run has an array that is computed once."""
        self.shared[id(array)] = array, by_run
        return array

    def each_run(self, array: np.ndarray, like: np.ndarray) -> Any:
        """Return the array as each run has it, once for each element of the batch of `like`."""
        if id(array) not in self.shared:
            return array
        return np.repeat(self.shared[id(array)][1], len(like) // self.runs, axis=0)

    # --- roundings ---

    def spread(self, like: np.ndarray) -> Any:
        """Numbers between -1 and 1."""
        return self.generator.uniform(-1, 1, np.shape(like))

    def round(self, x: np.ndarray) -> Any:
        """Round to the model's dtype."""
        return x + self.spread(x) * (self.p.output * np.abs(x) + self.p.output_tiny)

    def move(self, x: np.ndarray, error: np.ndarray | float) -> Any:
        """Move by as much as the error at most."""
        return x + self.spread(x) * error

    def sum_noise(self, total: np.ndarray, squares: np.ndarray, n: int | np.ndarray) -> Any:
        """The error of a sum of n terms, by the sum and the sum of squares of the terms."""
        variance = squares * (1 + (n + 1) / 6) + total**2 * (n + 1) / 3
        return self.p.inner * np.sqrt(variance / 3) * self.generator.standard_normal(np.shape(total))

    def multiply(self, left: np.ndarray, right: np.ndarray) -> Any:
        """left @ right, before it is rounded to the model's dtype."""
        total = left @ right
        return total + self.sum_noise(total, left**2 @ right**2, left.shape[-1])

    def average(self, x: np.ndarray) -> Any:
        """The mean over the last axis."""
        total, n = np.sum(x, axis=-1, keepdims=True), x.shape[-1]
        total = total + self.sum_noise(total, np.sum(x**2, axis=-1, keepdims=True), n)
        return self.move(total / n, self.p.inner * np.abs(total / n))

    # --- operations, as those of the definition of the same name ---

    def linear(self, parameters: Linear, x: np.ndarray) -> Any:
        product = self.multiply(x, parameters.weight)
        if parameters.bias is None:
            return self.round(product)
        return self.round(self.round(product) + parameters.bias)

    def attention(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: Mask | np.ndarray | None = None,
        bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
        dropout_keep: np.ndarray | None = None, dropout_rate: float = 0.0, empty_rows: str = "zero",
    ) -> Any:  # fmt: skip
        (B, H, Q, D), K, p = query.shape, key.shape[2], self.p
        key, value = repeat_heads(key, H), repeat_heads(value, H)
        allowed = np.broadcast_to(materialize(mask, Q, K, batch=B, heads=H), (B, H, Q, K))
        scores = self.round(self.round(self.multiply(query, np.swapaxes(key, -1, -2))) * resolve_scale(scale, D))
        if softcap is not None:
            scores = self.round(softcap * self.move(np.tanh(self.round(scores / softcap)), TANH * p.inner))
        if bias is not None:
            allowed = allowed & (bias != -np.inf)
            scores = self.round(scores + np.where(allowed, bias, 0))
        largest = np.max(scores, axis=-1, where=allowed, initial=-np.inf, keepdims=True)
        largest = largest if sinks is None else np.maximum(largest, sinks[:, None, None])
        largest = np.where(largest == -np.inf, 0, largest)
        below = np.where(allowed, scores - largest, -np.inf)
        powers = self.relative(np.exp(np.where(allowed, self.relative(np.where(allowed, below, 0)), -np.inf)), EXP)
        total = np.sum(powers, axis=-1, keepdims=True)
        total = total + self.sum_noise(total, np.sum(powers**2, axis=-1, keepdims=True), K)
        if sinks is not None:
            total = total + self.relative(np.exp(sinks[:, None, None] - largest), EXP)
        weights = self.round(np.where(allowed, powers / np.where(total == 0, 1, total), 0))
        weights, _ = fill_empty_rows(weights, allowed, empty_rows)
        if dropout_keep is not None:
            weights = self.round(np.where(dropout_keep, weights / (1 - dropout_rate), 0))
        return self.round(self.multiply(weights, value))

    def relative(self, x: np.ndarray, units: float = 1.0) -> Any:
        """Move by so many roundings of the arithmetic inside."""
        return self.move(x, units * self.p.inner * np.abs(x))

    def layer_norm(self, x: np.ndarray, weight: np.ndarray, bias: Any, *, eps: float) -> Any:
        return self.scale_rows(self.relative(x - self.average(x)), weight, bias, eps)

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, *, eps: float, plus_one: bool = False) -> Any:
        return self.scale_rows(x, self.relative(1 + weight) if plus_one else weight, None, eps)

    def standard_deviation_norm(self, x: np.ndarray, weight: np.ndarray, bias: Any, *, eps: float) -> Any:
        return self.scale_rows(self.relative(x - self.average(x)), weight, bias, eps, outside=True)

    def scale_rows(
        self, deviation: np.ndarray, weight: np.ndarray, bias: Any, eps: float, *, outside: bool = False
    ) -> Any:
        """Divide rows by their spread and apply the affine step. outside: of `standard_deviation_norm`."""
        variance, n = self.average(deviation**2), deviation.shape[-1]
        spread = np.sqrt(variance * n / (n - 1)) + eps if outside else np.sqrt(self.relative(variance + eps))
        # The root, its reciprocal and their product, each at most 2 units.
        normalized = self.round(self.relative(deviation * self.relative(1 / spread, 4.0)))
        output = self.round(normalized * weight)
        return output if bias is None else self.round(output + bias)

    def rotary_table(self, positions: np.ndarray, *rest: Any) -> tuple[Any, Any]:
        sine, cosine = rotary_table(positions, *rest)
        by_run = self.draw_rotary_table(positions, *rest)
        return self.share(sine, by_run[0]), self.share(cosine, by_run[1])

    def draw_rotary_table(
        self, positions: np.ndarray, width: int, base: float, scaling: Scaling | None, length: int | None, dtype: str
    ) -> list[Any]:
        """Return the sine and the cosine of each run."""
        exactly = np.array([float(one) for one in exact_frequencies(width, float(base), scaling, length)])
        frequencies = self.relative(np.broadcast_to(exactly, (self.runs, 1, 1, len(exactly))), POW + SCALING)
        angles = self.relative(positions[..., None, :, None] * frequencies)
        factor = attention_factor(scaling)
        return [self.round(factor * self.move(f(angles), TANH * self.p.inner)) for f in (np.sin, np.cos)]

    def rotate(self, x: np.ndarray, sine: np.ndarray, cosine: np.ndarray, pairing: str) -> Any:
        sine, cosine = self.each_run(sine, x), self.each_run(cosine, x)
        turned = np.arange(x.shape[-1]) < 2 * sine.shape[-1]
        # Each of the two products of a number is at most as large as it is with both signs alike.
        sizes = [np.abs(blocks.rotate(np.abs(x), sign * np.abs(sine), np.abs(cosine), pairing)) for sign in (-1, 1)]
        exactly = blocks.rotate(x, sine, cosine, pairing)
        return np.where(turned, self.round(self.move(exactly, self.p.output * np.maximum(*sizes))), exactly)

    def activate(self, name: str, x: np.ndarray) -> Any:
        return self.round(self.move(ACTIVATIONS[name](x), bound_activation(name, exact(x), self.p).error))

    def feed_forward(
        self, parameters: FeedForward, x: np.ndarray, *, activation: str = "relu", dropout_keep: Any = None,
        dropout_rate: float = 0.0,
    ) -> Any:  # fmt: skip
        hidden = self.activate(activation, self.linear(parameters.inner, x))
        hidden = hidden if dropout_keep is None else self.round(np.where(dropout_keep, hidden / (1 - dropout_rate), 0))
        return self.linear(parameters.outer, hidden)

    def gated_feed_forward(
        self, parameters: GatedFeedForward, x: np.ndarray, *, activation: str = "silu", dropout_keep: Any = None,
        dropout_rate: float = 0.0,
    ) -> Any:  # fmt: skip
        gate = self.activate(activation, self.linear(parameters.gate, x))
        hidden = self.round(gate * self.linear(parameters.inner, x))
        hidden = hidden if dropout_keep is None else self.round(np.where(dropout_keep, hidden / (1 - dropout_rate), 0))
        return self.linear(parameters.outer, hidden)

    def router_logits(self, x: np.ndarray, router: Linear) -> Any:
        return self.linear(router, x)

    def clamped_gate(self, gate: np.ndarray) -> Any:
        """Rounded twice, as the product of it and the other projection is."""
        exactly = experts.clamped_gate(gate)
        return self.round(self.round(self.move(exactly, bound_activation("silu", exact(1.702 * gate), self.p).error)))

    def mixture_of_experts(self, parameters: MixtureOfExperts, x: np.ndarray, **options: Any) -> Any:
        """Roundings of logits may change the choice, and the sum rounds once more than the networks."""
        return self.round(self.mixture(parameters, x, **options))

    def add(self, x: np.ndarray, y: np.ndarray) -> Any:
        return self.round(x + self.each_run(y, x))

    def embedding(self, table: np.ndarray, ids: np.ndarray, *, scaled: bool = False) -> Any:
        """The factor sqrt(E) is one number, which a model may hold in its dtype."""
        rows = table[ids]
        if not scaled:
            return rows
        factor = self.round(np.full((self.runs, 1, 1), np.sqrt(table.shape[1])))
        return self.round(rows * np.repeat(factor, len(rows) // self.runs, axis=0))

    def sinusoidal_positions(self, length: int, width: int, **options: Any) -> Any:
        return self.share(sinusoidal_positions(length, width, **options), self.draw_positions(length, width, **options))

    def draw_positions(self, length: int, width: int, *, offset: Any = 0, **options: Any) -> Any:
        """Return the positions of each run."""
        exactly = sinusoidal_positions(length, width, offset=offset, **options)
        error = self.p.inner * (TANH + (POW + 1) * np.abs(np.arange(length)[:, None] + offset))
        return self.round(self.move(np.broadcast_to(exactly, (self.runs, *exactly.shape)), error))

    def shrink(self, x: np.ndarray) -> Any:
        return self.round(self.relative(x / math.sqrt(x.shape[-1])))

    def squeeze(self, x: np.ndarray, cap: float) -> Any:
        return self.round(cap * self.move(np.tanh(self.round(x / cap)), TANH * self.p.inner))

    def log_softmax(self, x: np.ndarray) -> Any:
        below = self.relative(x - np.max(x, axis=-1, keepdims=True))
        powers = self.relative(np.exp(below), EXP)
        total = np.sum(powers, axis=-1, keepdims=True)
        total = total + self.sum_noise(total, np.sum(powers**2, axis=-1, keepdims=True), x.shape[-1])
        return self.round(below - self.move(np.log(total), LOG * self.p.inner * np.maximum(np.abs(np.log(total)), 1)))
