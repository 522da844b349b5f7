"""Error bounds of latent attention (MLA-1, MLA-2), composed of those of its steps.

Each step's bound takes the error of what it is given, and `round_output` adds the rounding to the inputs' dtype that
stands between two steps. Projections and attention have bounds for such inputs. For the others they follow.

Norm. A row x is off by e. Then mean(x^2) is off by mean(2 |x| e + e^2) beside its own rounding, which is that of a sum
of n squares of numbers up to |x| + e. The reciprocal root and the products with it carry errors as elsewhere
(`layer_norm.py`). An error of the whole row in proportion to it would cancel; that is not used.

Rotation. It is linear, so an error e of a pair (e1, e2) becomes m (|cos| e1 + |sin| e2), and its rounding is that of
numbers up to |x| + e: that of `rotation` for these, and u of the result.

Shared key. Its gradient is a sum over H heads: gamma(H) of the sum of sizes. In the expanded form each term is rounded
to the inputs' dtype before that, in the absorbed one attention adds the heads up.

Two forms. An implementation may expand the latents to keys and values of all heads, or attend to the latents
themselves. Both are computed here, each with the roundings of its own steps: keys and values to the inputs' dtype in
one, queries in the latents' space and sums of latents in the other. Of every number the larger of the two bounds
counts, so that whoever is within the bound of the form that he takes conforms. The latent's gradient has one part in
the expanded form, and two that are rounded by themselves in the absorbed one, as key and as value.

Roundings that a subject declares are those of the steps: of products and weights, of scores, of rows before the weight
of a norm, of sines, cosines and their products, and of angles (`arithmetic.py`, `attention.py`, `rotary.py`).

NaN. Where NaN stands in a token, a row that attends to it is NaN, and no other row depends on it: bounds are those of
the same call with 0 there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conformance.bounds import attention as att
from conformance.bounds import layer_norm as norm
from conformance.bounds import layers
from conformance.bounds.arithmetic import (
    Approx,
    Precision,
    add,
    exact,
    map_approx,
    matmul,
    multiply,
    round_approx,
    round_output,
    side,
    side_gradient,
)
from conformance.bounds.arithmetic import total as total_of
from conformance.bounds.operations import concatenate_heads, split_heads
from conformance.bounds.rotary import angles, rotation, single_angle_error
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.signatures import default
from reference_numpy import materialize
from specification.frequencies import attention_factor


class Turn(NamedTuple):
    """The rotation of a call: angles [T, R / 2] or [B, 1, T, R / 2], the attention factor, the pairing.

    angle_error: of the angles, beside that of exact products.
    """

    angles: np.ndarray
    factor: float
    pairing: str
    angle_error: float | np.ndarray

    def __call__(self, x: Approx, sign: int, p: Precision) -> Approx:
        """x turned, or with a sign of -1 turned back."""
        value, rounding = (
            rotation(array, self.angles, self.factor, self.pairing, sign, p, self.angle_error)
            for array in (x.value, x.size)
        )
        carried = self.carry(x.error)
        return Approx(value.value, rounding.error + carried + p.inner * (np.abs(value.value) + carried))

    def carry(self, error: np.ndarray) -> np.ndarray:
        """What an error becomes: that of either number of a pair reaches both."""
        pairs = 2 * self.angles.shape[-1]
        shape, axis = ((2, pairs // 2), -2) if self.pairing == "halves" else ((pairs // 2, 2), -1)
        first, second = np.moveaxis(error.reshape(*error.shape[:-1], *shape), axis, 0)
        sine, cosine = np.abs(np.sin(self.angles)), np.abs(np.cos(self.angles))
        carried = self.factor * np.stack([first * cosine + second * sine, second * cosine + first * sine], axis)
        return np.asarray(carried.reshape(error.shape))


def rotary_call(case: Case) -> Case:
    """The call of `rotary_embedding` whose angles are those of the case."""
    names = ("rotary_width", "base", "scaling", "length", "pairing")
    options = {name: case.options.get(name, default(case.operation, name)) for name in names}
    positions = case.inputs.get("positions", np.arange(case.inputs["x"].shape[1]))
    return Case("rotary_embedding", case.dtype, {"x": case.inputs["x"], "positions": positions}, options)


def turn_of(case: Case, p: Precision, angle_error: float | np.ndarray) -> Turn:
    call = rotary_call(case)
    angle_error = np.maximum(angle_error, single_angle_error(call)) if "angles" in p.declared else angle_error
    size = abs(attention_factor(call.options["scaling"]))
    return Turn(angles(call)[0], size, call.options["pairing"], angle_error)


# --- a norm of what has an error --------------------------------------------------------------------------------------


def normalize(x: Approx, eps: float, p: Precision) -> tuple[Approx, Approx]:
    """The reciprocal root of a row's mean square, and the row times it."""
    n = x.value.shape[-1]
    square = norm.mean_square(x.value, p, n)
    moved = norm.average(2 * np.abs(x.value) * x.error + x.error**2)
    error = norm.mean_square(x.size, p, n).error + moved
    reciprocal = norm.reciprocal_root(Approx(square.value, error), eps, p)
    return reciprocal, multiply(x, reciprocal, p, 2)


def rms_norm(x: Approx, weight: Approx, eps: float, p: Precision) -> Approx:
    return multiply(round_approx(normalize(x, eps, p)[1], p.normalized), weight, p)


def rms_norm_gradients(x: Approx, weight: Approx, cotangent: Approx, eps: float, p: Precision) -> tuple[Approx, Approx]:
    """Gradients of x and weight, as `layer_norm.gradients` has them for an exact x."""
    reciprocal, n = normalize(x, eps, p)
    count = x.value.shape[-1]
    inner = round_approx(multiply(cotangent, weight, p), p.normalized)
    products = multiply(inner, n, p)
    slope = Approx(
        norm.average(products.value),
        norm.average(products.error) + p.gamma(count + 4) * norm.average(products.size),
    )
    second = multiply(n, slope, p, 2)
    error = inner.error + second.error + 4 * p.inner * (inner.size + second.size + norm.average(inner.size))
    gradient = multiply(Approx(inner.value - second.value, error), reciprocal, p, 2)
    terms = round_approx(multiply(cotangent, round_approx(n, p.normalized), p), p.normalized)
    return gradient, total_of(layers.flatten_rows(terms), 0, p)


# --- one form ---------------------------------------------------------------------------------------------------------


def cut(x: Approx, width: int) -> tuple[Approx, Approx]:
    """The first columns and the others."""
    return x.select((..., slice(0, width))), x.select((..., slice(width, None)))


def join(*parts: Approx) -> Approx:
    """Columns side by side; one head stands for all of another's."""
    lead = np.broadcast_shapes(*(part.value.shape[:-1] for part in parts))
    spread = [map_approx(part, lambda a: np.broadcast_to(a, (*lead, a.shape[-1]))) for part in parts]
    return Approx(*(np.concatenate(arrays, -1) for arrays in zip(*spread, strict=True)))


def weight_gradient(x: Approx, cotangent: Approx, p: Precision) -> Approx:
    """Of one weight for each head, [H, I, O]: x [B, H, T, I] and the cotangent [B, H, T, O], summed over B and T."""
    B, H, T, _ = x.value.shape
    rows, bars = (map_approx(a, lambda b: b.swapaxes(0, 1).reshape(H, B * T, b.shape[3])) for a in (x, cotangent))
    return side_gradient(matmul(side(rows, p).transposed, side(bars, p), p, B), p)


def project_heads(x: Approx, weights: Approx, p: Precision) -> Approx:
    """x [B, H, T, I] times one weight for each head, [H, I, O]."""
    return matmul(side(x, p), side(weights, p), p, 1, independent=True)


def project_back(x: Approx, weights: Approx, p: Precision) -> Approx:
    """The gradient of what `project_heads` was given."""
    return side_gradient(matmul(side(x, p), side(weights, p).transposed, p), p)


def one_form(
    case: Case, p: Precision, absorbed: bool, angle_error: float | np.ndarray, factor: np.ndarray | None
) -> dict[str, Approx]:
    """Values and errors of all results, as an implementation of one form has them."""
    given = {n: exact(np.where(np.isnan(a), 0, a) if n == "x" else a) for n, a in case.inputs.items()}
    x, options, turn = given["x"], case.options, turn_of(case, p, angle_error)
    eps = float(options.get("eps", default(case.operation, "eps")))
    H, R, (B, T, _) = options["num_heads"], options["rotary_width"], x.value.shape
    width = given["query.weight"].value.shape[1] // H
    D, C = width - R, given["key_value_norm.weight"].value.size
    scale = options.get("scale")
    scale = width**-0.5 if scale is None else float(scale)
    allowed = np.broadcast_to(materialize(options.get("mask"), T, T, batch=B, heads=H), (B, H, T, T))

    def store(approx: Approx) -> Approx:
        return round_output(approx, p)

    def project(name: str, source: Approx) -> Approx:
        return store(layers.linear(source, given[f"{name}.weight"], given.get(f"{name}.bias"), p))

    def attend(query: Approx, key: Approx, value: Approx, bar: Approx | None) -> tuple[Approx, dict[str, Approx]]:
        result, found = att.attention(
            "output", query, key, value, allowed, bar, bias=None, scale=scale, softcap=None, sinks=None, factor=factor,
            empty_rows="zero", p=p,
        )  # fmt: skip
        return store(result), {name: store(gradient) for name, gradient in found.items()}

    source, squeezed = x, None
    if "query_down.weight" in given:
        squeezed = project("query_down", x)
        source = store(rms_norm(squeezed, given["query_norm.weight"], eps, p))
    part, turning = cut(split_heads(project("query", source), H), D)
    turned = store(turn(turning, 1, p))
    raw, shared = cut(project("key_value_down", x), C)
    latent = store(rms_norm(raw, given["key_value_norm.weight"], eps, p))
    key = store(turn(split_heads(shared, 1), 1, p))
    up = given["key_value_up.weight"]
    by_head = map_approx(up, lambda a: a.reshape(C, H, -1).swapaxes(0, 1))
    key_up, value_up = cut(by_head, D)  # [H, C, D] and [H, C, V]

    bar = None
    if case.cotangents:
        cotangent = exact(case.cotangents["output"])
        bar = split_heads(store(layers.input_gradient(given["output.weight"], cotangent, p)), H)
    if absorbed:
        inner = store(project_heads(part, key_up.transposed, p))
        latents = split_heads(latent, 1)
        queries, keys = join(inner, turned), join(latents, key)
        sums_bar = None if bar is None else store(project_back(bar, value_up, p))
        sums, bars = attend(queries, keys, latents, sums_bar)
        heads = store(project_heads(sums, value_up, p))
    else:
        expanded = split_heads(store(layers.linear(latent, up, None, p)), H)
        key_part, values = cut(expanded, D)
        heads, bars = attend(join(part, turned), join(key_part, key), values, bar)
    joined = concatenate_heads(heads)
    results = {"output": layers.linear(joined, given["output.weight"], given.get("output.bias"), p)}
    if bar is None:
        return results

    found = {}
    found["output.weight"], found["output.bias"] = layers.parameter_gradients(joined, cotangent, p)
    if absorbed:
        inner_bar, turned_bar = cut(bars["query"], C)
        part_bar = store(project_back(inner_bar, key_up.transposed, p))
        latents_bar, key_bar = cut(bars["key"], C)
        latent_bar = concatenate_heads(store(add(latents_bar, bars["value"], p)))
        up_bar = join(store(weight_gradient(inner_bar, part, p)), store(weight_gradient(sums, bar, p)))
        found["key_value_up.weight"] = map_approx(up_bar, lambda a: a.swapaxes(0, 1).reshape(up.value.shape))
    else:
        part_bar, turned_bar = cut(bars["query"], D)
        key_part_bar, shared_bars = cut(bars["key"], D)
        key_bar = store(total_of(shared_bars, 1, p, keepdims=True))
        expanded_bar = concatenate_heads(join(key_part_bar, bars["value"]))
        latent_bar = store(layers.input_gradient(up, expanded_bar, p))
        found["key_value_up.weight"], _ = layers.parameter_gradients(latent, expanded_bar, p)
    query_bar = concatenate_heads(join(part_bar, store(turn(turned_bar, -1, p))))
    source_bar, found["query.weight"], found["query.bias"] = layers.linear_gradients(
        source, given["query.weight"], query_bar, p
    )
    of_query = store(source_bar)
    if squeezed is not None:
        squeezed_bar, found["query_norm.weight"] = rms_norm_gradients(
            squeezed, given["query_norm.weight"], of_query, eps, p
        )
        source_bar, found["query_down.weight"], found["query_down.bias"] = layers.linear_gradients(
            x, given["query_down.weight"], store(squeezed_bar), p
        )
        of_query = store(source_bar)
    raw_bar, found["key_value_norm.weight"] = rms_norm_gradients(
        raw, given["key_value_norm.weight"], latent_bar, eps, p
    )
    down_bar = join(store(raw_bar), concatenate_heads(store(turn(key_bar, -1, p))))
    of_keys, found["key_value_down.weight"], found["key_value_down.bias"] = layers.linear_gradients(
        x, given["key_value_down.weight"], down_bar, p
    )
    found["x"] = add(of_query, store(of_keys), p)
    return results | {gradient_name(name): found[name] for name in case.inputs if name in found}


def latent_attention(
    case: Case, p: Precision, angle_error: float | np.ndarray = 0.0, factor: np.ndarray | None = None
) -> dict[str, Approx]:
    """Of either form the larger bound.

    angle_error: of the angles, beside what is derived here. factor: of the weights, by which a block drops some.
    """
    expanded, absorbed = (one_form(case, p, absorbed, angle_error, factor) for absorbed in (False, True))
    return {name: Approx(one.value, np.maximum(one.error, absorbed[name].error)) for name, one in expanded.items()}
