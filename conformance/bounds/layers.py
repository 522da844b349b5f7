"""Error bounds of linear projections, activations and position encodings.

A projection is a sum of n products and a bias: gamma(n + 1) of the sum of absolute terms, plus what the input's own
error becomes. An activation multiplies its input's error by its steepest slope nearby and adds its own rounding, which
for the GELUs and SiLU is absolute in |x|, because 1 + erf and 1 + tanh cancel for negative x in the form most people
write. A gated network multiplies two projections of one input: its bound carries both, and rounds the product once.
A sinusoid's error is that of its angle: float32 frequencies by way of exp(-log(10000) 2i/E) are off by up to
(2 log(10000) + 4) u, which at position p makes the angle off by p times as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from conformance.bounds.arithmetic import (
    EXP,
    TANH,
    Approx,
    Precision,
    add,
    exact,
    matmul,
    multiply,
    side,
    side_gradient,
    total,
    transpose,
)
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case

FREQUENCY = 2 * math.log(10000.0) + 6


def linear(x: Approx, weight: Approx, bias: Approx | None, p: Precision) -> Approx:
    """x [..., in] @ weight + bias."""
    output = matmul(side(x, p), side(weight, p), p, 1, independent=True)
    if bias is None:
        return output
    value = output.value + bias.value
    return Approx(value, output.error + bias.error + p.inner * (np.abs(value) + output.error + np.abs(bias.value)))


def linear_gradients(x: Approx, weight: Approx, cotangent: Approx, p: Precision) -> tuple[Approx, Approx, Approx]:
    """Gradients of x, weight and bias."""
    return input_gradient(weight, cotangent, p), *parameter_gradients(x, cotangent, p)


def input_gradient(weight: Approx, cotangent: Approx, p: Precision) -> Approx:
    return side_gradient(matmul(side(cotangent, p), transpose(side(weight, p)), p), p)


def parameter_gradients(x: Approx, cotangent: Approx, p: Precision) -> tuple[Approx, Approx]:
    """Gradients of weight and bias."""
    rows, bars = flatten_rows(side(x, p)), flatten_rows(side(cotangent, p))
    # Batches may be summed one after the other, which rounds once more for each.
    extra = int(np.prod(x.value.shape[:-2]))
    return side_gradient(matmul(transpose(rows), bars, p, extra), p), total(flatten_rows(cotangent), 0, p)


def flatten_rows(x: Approx) -> Approx:
    """[rows, width]."""
    return x.reshape(-1, x.value.shape[-1])


def normal_distribution(x: np.ndarray) -> np.ndarray:
    numbers = memoryview(np.ravel(x) / -math.sqrt(2))  # twice as fast as `np.vectorize`
    return 0.5 * np.fromiter(map(math.erfc, numbers), float, len(numbers)).reshape(np.shape(x))


def normal_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def sigmoid(x: np.ndarray) -> np.ndarray:
    below = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, below) / (1 + below)


def tanh_argument(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    root = math.sqrt(2 / math.pi)
    return root * (x + 0.044715 * x**3), root * (1 + 3 * 0.044715 * x**2)


def activation(name: str, x: Approx, p: Precision) -> Approx:
    if name == "relu":
        return Approx(np.maximum(x.value, 0), x.error)
    if name == "clamped_swiglu":
        # min(x, 7) times a sigmoid, as that of 1.702 min(x, 7) over 1.702: the constant rounds twice.
        kept = Approx(1.702 * np.minimum(x.value, 7), 1.702 * x.error + 2 * p.inner * 1.702 * np.minimum(x.size, 7))
        found = activation("silu", kept, p)
        return Approx(found.value / 1.702, found.error / 1.702 + 2 * p.inner * np.abs(found.value))
    if name == "gelu":
        value = x.value * normal_distribution(x.value)
    elif name == "silu":
        value = x.value * sigmoid(x.value)
    else:
        value = 0.5 * x.value * (1 + np.tanh(tanh_argument(x.value)[0]))
    # All are at most 1.13 steep. tanh's argument has 6 roundings, and |a| (1 - tanh^2 a) is below 0.45. A sigmoid may
    # be taken by a tanh, too; by an exponential it is off by less.
    error = 1.13 * x.error + (TANH + 4) * p.inner * x.size + 4 * p.inner * np.abs(value) + p.inner_tiny
    return Approx(value, error)


def activation_slope(name: str, x: Approx, p: Precision) -> Approx:
    if name == "relu":
        # Within its error of 0 the input may be on either side.
        return Approx((x.value > 0).astype(float), ((np.abs(x.value) <= x.error) & (x.error > 0)).astype(float))
    if name == "clamped_swiglu":
        found = activation_slope("silu", Approx(1.702 * x.value, 1.702 * (x.error + 2 * p.inner * x.size)), p)
        return unless_cut(Approx(x.value, x.error), found, x.value <= 7, np.abs(x.value - 7) <= x.error)
    if name == "gelu":
        value = normal_distribution(x.value) + x.value * normal_density(x.value)
        own = (TANH + 6) * p.inner + 12 * p.inner * (1 + x.size**2) * x.size * normal_density(x.value)
    elif name == "silu":
        s = sigmoid(x.value)
        value = s + x.value * s * (1 - s)
        # s is off by TANH u, and so is 1 - s; x multiplies both.
        own = (TANH + 6) * p.inner * (1 + x.size)
    else:
        argument, steep = tanh_argument(x.value)
        t = np.tanh(argument)
        value = 0.5 * (1 + t) + 0.5 * x.value * (1 - t**2) * steep
        # 1 - t^2 is off by 2 |t| times tanh's own error and its argument's, and by 2 u.
        own = (TANH + 6) * p.inner + 0.5 * x.size * steep * (2 * (TANH + 4) + 8) * p.inner
    # The second derivatives are at most 0.85, that of SiLU 0.5.
    return Approx(value, 0.85 * x.error + own)


def unless_cut(x: Approx, slope: Approx, kept: np.ndarray, near: np.ndarray) -> Approx:
    """A slope, and 0 where x is cut off; within its error of the edge x may be on either side."""
    value = np.where(kept, slope.value, 0)
    return Approx(
        value, np.where(near & (x.error > 0), np.abs(slope.value) + slope.error, np.where(kept, slope.error, 0))
    )


def gated_value(name: str, x: Approx, p: Precision) -> Approx:
    """What the gate multiplies: for clamped_swiglu the value between -7 and 7, and 1 more."""
    if name != "clamped_swiglu":
        return x
    value = np.clip(x.value, -7, 7) + 1
    return Approx(value, x.error + p.inner * (np.abs(value) + x.error))


def gated_value_slope(name: str, x: Approx) -> Approx:
    one = exact(np.ones_like(x.value))
    if name != "clamped_swiglu":
        return one
    return unless_cut(x, one, np.abs(x.value) <= 7, np.abs(np.abs(x.value) - 7) <= x.error)


def cotangent_approx(cotangent: np.ndarray | Approx) -> Approx:
    return cotangent if isinstance(cotangent, Approx) else exact(cotangent)


def feed_forward(
    inputs: dict[str, np.ndarray],
    cotangent: np.ndarray | Approx | None,
    name: str,
    factor: np.ndarray | float,
    p: Precision,
    store: Callable[[Approx], Approx],
) -> dict[str, Approx]:
    """Errors of the output and of all gradients. `store` rounds to the dtype that stands between the layers."""
    approx = {key: exact(array) for key, array in inputs.items()}
    before = store(linear(approx["x"], approx["inner.weight"], approx.get("inner.bias"), p))
    activated = activation(name, before, p)
    hidden = store(Approx(activated.value * factor, (activated.error + 2 * p.inner * activated.size) * factor))
    results = {"output": linear(hidden, approx["outer.weight"], approx.get("outer.bias"), p)}
    if cotangent is None:
        return results
    bar = cotangent_approx(cotangent)
    hidden_bar, outer_weight, outer_bias = linear_gradients(hidden, approx["outer.weight"], bar, p)
    hidden_bar = store(hidden_bar)
    dropped = Approx(hidden_bar.value * factor, (hidden_bar.error + 2 * p.inner * hidden_bar.size) * factor)
    # Autodiff of GELU adds up several terms, each of them rounded.
    before_bar = store(multiply(dropped, activation_slope(name, before, p), p, 4))
    x_bar, inner_weight, inner_bias = linear_gradients(approx["x"], approx["inner.weight"], before_bar, p)
    results |= {"x": x_bar, "inner.weight": inner_weight, "inner.bias": inner_bias}
    return results | {"outer.weight": outer_weight, "outer.bias": outer_bias}


def gated_feed_forward(
    inputs: dict[str, np.ndarray],
    cotangent: np.ndarray | Approx | None,
    name: str,
    factor: np.ndarray | float,
    p: Precision,
    store: Callable[[Approx], Approx],
    between: Callable[[Approx], Approx] = lambda x: x,
) -> dict[str, Approx]:
    """As `feed_forward`, with the product of two projections inside, of which one is activated.

    The gradient of x is a sum of two parts, each of which may be rounded before they are added. `between` rounds the
    activation, the product before dropout, and their gradients.
    """
    approx = {key: exact(array) for key, array in inputs.items()}
    before = store(linear(approx["x"], approx["gate.weight"], approx.get("gate.bias"), p))
    projected = store(linear(approx["x"], approx["inner.weight"], approx.get("inner.bias"), p))
    value = gated_value(name, projected, p)
    gate = between(activation(name, before, p))
    # Two roundings for dropout, which may come before the product or after it.
    product = between(multiply(gate, value, p, 3))
    hidden = store(Approx(product.value * factor, product.error * factor))
    results = {"output": linear(hidden, approx["outer.weight"], approx.get("outer.bias"), p)}
    if cotangent is None:
        return results
    bar = cotangent_approx(cotangent)
    hidden_bar, outer_weight, outer_bias = linear_gradients(hidden, approx["outer.weight"], bar, p)
    hidden_bar = store(hidden_bar)
    dropped = between(Approx(hidden_bar.value * factor, (hidden_bar.error + 2 * p.inner * hidden_bar.size) * factor))
    value_bar = store(multiply(multiply(dropped, gate, p), gated_value_slope(name, projected), p, 0))
    gate_bar = between(multiply(dropped, value, p))
    before_bar = store(multiply(gate_bar, activation_slope(name, before, p), p, 4))
    gate_x, gate_weight, gate_bias = linear_gradients(approx["x"], approx["gate.weight"], before_bar, p)
    inner_x, inner_weight, inner_bias = linear_gradients(approx["x"], approx["inner.weight"], value_bar, p)
    results |= {"x": add(store(gate_x), store(inner_x), p), "gate.weight": gate_weight, "gate.bias": gate_bias}
    results |= {"inner.weight": inner_weight, "inner.bias": inner_bias}
    return results | {"outer.weight": outer_weight, "outer.bias": outer_bias}


def sinusoid(positions: np.ndarray, frequencies: np.ndarray, p: Precision) -> np.ndarray:
    """Largest error of sin and cos of position * frequency."""
    angle = np.abs(positions[:, None] * frequencies)
    return np.minimum(2.0, FREQUENCY * p.inner * angle + TANH * p.inner)


# --- silu -------------------------------------------------------------------------------------------------------------


def silu(case: Case, p: Precision) -> dict[str, Approx]:
    """x sigmoid(x) = max(x, 0) - t with t = a sigmoid(-a) and a = |x|; all errors below are in units of u.

    An exponential exp(-a) is off by E = 2 EXP + 2 a + 1, relatively: by EXP when it is taken at once, by 2 EXP + 1 as
    the square of exp(-a / 2), and by 2 a more as exp2(-a log2(e)), whose constant and product are rounded.

    Output. t is a product of a, exp(-a) and 1 / (1 + exp(-a)). exp(-a) is at most half of that sum, which is off by
    E / 2 + 1, so that t is off by 3/2 E + 4 of itself: two products and a quotient. For x >= 0 the result x - t rounds
    once more. Taken as x / (1 + exp(-x)), or as x times that reciprocal, it rounds 3 times, and E of the exponential
    moves it by t sigmoid(a) E, which is less than t E.

    Slope. With s = sigmoid(-a) it is s - a s (1 - s) for x < 0, and 1 less that for x >= 0. Differentiation of any of
    these forms adds up products of s, a s, a s^2 and a s (1 - s), at most s (1 + 2 a) in all. Each is off by 3 E + 9 at
    most: three exponentials, and the roundings of sums, products and quotients, with those of the cotangent; adding
    them up and multiplying what comes of it by the cotangent rounds 4 times. Where 1 - sigmoid(x) is formed for x >= 0
    it is off by 2, and x times as much counts. From exp(-x) < u / 2 on sigmoid(x) is 1 and the difference 0: what is
    lost then, x s, falls with x and is less than that.

    What is too small for a normal number may be lost. The root of exp(-a) is normal as long as the result is, so that
    nothing lost is a factor of anything large: a result and its t, and 4 terms of a gradient, before they are
    multiplied by the cotangent or after it.
    """
    x = np.asarray(case.inputs["x"], float)
    size = np.minimum(np.abs(x), 2.0**12)  # there the exponential is 0
    root = np.exp(-size / 2)
    below = root * root / (1 + root * root)
    lost = size * root * root / (1 + root * root)
    exponential = 2 * EXP + 2 * size + 1
    value = np.where(x >= 0, x, 0) - lost
    error = p.inner * (4 * np.abs(value) + (1.5 * exponential + 4) * lost) + 2 * p.inner_tiny
    results = {"output": Approx(value, error)}
    if not case.cotangents:
        return results
    slope = root * (1 - size / (1 + root * root)) * root / (1 + root * root)
    slope = np.where(x >= 0, 1 - slope, slope)
    complement = np.where(x >= 0, 2 * np.minimum(size, np.log(2 / p.inner)), 0)
    own = (
        p.inner * ((3 * exponential + 13) * below * (1 + 2 * size) + complement + 2 * np.abs(slope)) + 4 * p.inner_tiny
    )
    gradient = multiply(exact(case.cotangents["output"]), Approx(slope, own), p, 2)
    return results | {gradient_name("x"): Approx(gradient.value, gradient.error + 4 * p.inner_tiny)}
