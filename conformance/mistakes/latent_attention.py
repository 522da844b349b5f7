"""Latent attention gone wrong (MLA-1, MLA-2): its norms, its rotated columns, its scale, the order of its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds.latent_attention import rotary_call
from conformance.bounds.rotary import call_of
from conformance.cases.arguments import arguments, gradient_name, named_gradients
from conformance.cases.case import Case
from conformance.cases.signatures import default
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import answer_with, change_options, rearrange_inputs
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Change, Topic, name_entries
from reference_numpy import LatentAttentionGradients
from reference_numpy.attention import attention
from reference_numpy.latent_attention import (
    append_columns,
    key_weights,
    project_heads,
    take_columns,
    value_weights,
)
from reference_numpy.layer_norm import layer_norm, rms_norm
from reference_numpy.multi_head_attention import concatenate_heads, linear, split_heads
from reference_numpy.rotary import rotary_table, rotate
from reference_numpy.tape import gradient_of, operation, vjp
from specification.parameters import mapped
from specification.rotary import LongRopeScaling, YarnScaling

Array = np.ndarray
OPERATION = "latent_attention"
TOPIC = Topic("latent_attention", "MLA-1", (OPERATION,))
entry = TOPIC.entry


# --- the computation, whose steps may be taken otherwise --------------------------------------------------------------


@operation
def multiply_columns(x: Array, weight: Array) -> Array:
    return np.asarray(x * weight)


@gradient_of("x", "weight")
def multiply_columns_vjp(x: Array, weight: Array, cotangent: Array) -> tuple[Array, Array]:
    return cotangent * weight, np.sum(cotangent * x, axis=tuple(range(x.ndim - 1)))


@operation
def give_to_heads(shared: Array, heads: int, kept: int, counted: int) -> Array:
    """The key in the first `kept` heads, 0 in the others; its gradient comes from the first `counted` ones."""
    B, _, T, R = shared.shape
    return np.where(np.arange(heads)[:, None, None] < kept, np.broadcast_to(shared, (B, heads, T, R)), 0)


@gradient_of("shared")
def give_to_heads_vjp(shared: Array, heads: int, kept: int, counted: int, cotangent: Array) -> Array:
    return np.asarray(cotangent[:, : min(kept, counted)].sum(axis=1, keepdims=True))


def normalize(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm(x, weight, eps=eps)


Norm = Callable[[Array, Array, float], Array]
Rotation = Callable[[Array], Array]


class Steps(NamedTuple):
    """What latent attention is made of. `key_latent` and `value_latent` make of the raw and the normalised latent the
    one of which keys and values are made."""

    case: Case
    query_norm: Norm
    latent_norm: Norm
    turn_query: Rotation
    turn_key: Rotation
    scale: float
    eps: float
    mask: Any
    prepare_key: Rotation = lambda key: key
    share: Callable[[Array, int], Array] = lambda key, heads: key
    key_latent: Callable[[Array, Array], Array] = lambda raw, latent: latent
    value_latent: Callable[[Array, Array], Array] = lambda raw, latent: latent
    turn_first: bool = False

    @classmethod
    def read_case(cls, case: Case) -> Steps:
        options, width = case.options, case.inputs["query.weight"].shape[1] // case.options["num_heads"]
        scale = width**-0.5 if options.get("scale") is None else float(options["scale"])
        turn = turn_by(case)
        eps = float(options.get("eps", default(OPERATION, "eps")))
        return cls(case, normalize, normalize, turn, turn, scale, eps, options.get("mask"))

    def output(self, parameters: Any, x: Array) -> Array:
        """The definition's formula, in operations that a tape notes."""
        p, H, R, source = parameters, self.case.options["num_heads"], self.case.options["rotary_width"], x
        if p.query_down is not None:
            source = self.query_norm(linear(p.query_down, x), p.query_norm.weight, self.eps)
        queries = split_heads(linear(p.query, source), H)
        columns, C = queries.shape[-1], p.key_value_norm.weight.shape[0]
        D = columns - R
        if self.turn_first:
            turned = self.turn_query(take_columns(queries, 0, R))
            queries = append_columns(turned, take_columns(queries, R, columns))
        else:
            turned = self.turn_query(take_columns(queries, D, columns))
            queries = append_columns(take_columns(queries, 0, D), turned)
        down = linear(p.key_value_down, x)
        raw, key = take_columns(down, 0, C), split_heads(take_columns(down, C, C + R), 1)
        latent = self.latent_norm(raw, p.key_value_norm.weight, self.eps)
        key = self.share(self.turn_key(self.prepare_key(key)), H)
        of_keys, of_values = (
            split_heads(linear(p.key_value_up, one(raw, latent)), H) for one in (self.key_latent, self.value_latent)
        )
        keys = append_columns(take_columns(of_keys, 0, D), key)
        values = take_columns(of_values, D, of_values.shape[-1])
        heads = attention(queries, keys, values, mask=self.mask, scale=self.scale)
        return linear(p.output, concatenate_heads(heads))

    def results(self, output: Callable[[Any, Array], Array] | None = None) -> Results:
        """Results and gradients, of another formula if one is given."""
        case, output = self.case, output or self.output
        (parameters, x), _ = arguments(OPERATION, case.inputs, {})
        parameters, x = mapped(lambda array: array.astype(float), parameters), x.astype(float)
        found = {"output": output(parameters, x)}
        if case.cotangents:
            given = {"parameters": parameters, "x": x}
            bars = LatentAttentionGradients(**vjp(output, given, case.cotangents["output"].astype(float)))
            found |= {gradient_name(name): bar for name, bar in named_gradients(case, bars).items()}
        return found


def turn_by(case: Case, shift: int = 0, sign: int = 1, factor: float | None = None) -> Rotation:
    """The rotation of the case by positions that are `shift` more, back with a sign of -1. factor: in place of the
    attention factor."""
    call = rotary_call(case)
    asked = call_of(call)
    positions = np.maximum(call.inputs["positions"] + shift, 0)
    sine, cosine = rotary_table(positions, asked.width, float(asked.base), asked.scaling, asked.length, "float64")
    if factor is not None:
        own = np.hypot(sine, cosine)
        sine, cosine = sine / own * factor, cosine / own * factor
    return lambda x: rotate(x, sign * sine, cosine, call.options["pairing"])


def change_steps(change: Callable[..., dict[str, Any] | None]) -> Change:
    """Take other steps, those that `change(steps, **values)` names; None where the mistake has no place."""

    def results(call: Call, **values: object) -> Results | None:
        steps = Steps.read_case(call.case)
        changed = change(steps, **values)
        return None if changed is None else steps._replace(**changed).results()

    return results


# --- norms ------------------------------------------------------------------------------------------------------------

NORMS = {"the latents": "latent_norm", "the queries": "query_norm"}
OF = tuple(NORMS)


def change_norm(norm: Norm) -> Change:
    """Take another norm of the latent or of compressed queries."""

    def change(steps: Steps, of: str) -> dict[str, Any] | None:
        compressed = "query_norm.weight" in steps.case.inputs
        return {NORMS[of]: norm} if compressed or of == OF[0] else None

    return change_steps(change)


def normalize_together(call: Call, key: str) -> Results:
    """The mean square is that of the latent and the rotated key; the key is divided by its root too, or stays."""
    steps, R = Steps.read_case(call.case), call.case.options["rotary_width"]

    def output(parameters: Any, x: Array) -> Array:
        down = linear(parameters.key_value_down, x)
        together = rms_norm(down, np.ones(down.shape[-1]), eps=steps.eps)
        C = down.shape[-1] - R
        latent = take_columns(together, 0, C)
        shared = split_heads(take_columns(together, C, C + R), 1)
        inside = steps._replace(latent_norm=lambda raw, weight, eps: multiply_columns(latent, weight))
        if key == "too":
            inside = inside._replace(prepare_key=lambda own: shared)
        return inside.output(parameters, x)

    return steps.results(output)


def normalize_key(steps: Steps, when: str) -> dict[str, Any]:
    ones = np.ones(steps.case.options["rotary_width"])

    def norm(key: Array) -> Array:
        return rms_norm(key, ones, eps=steps.eps)

    return {"prepare_key": norm} if when == "before" else {"share": lambda key, heads: norm(key)}


def weigh_by_one_more(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm(x, weight, eps=eps, plus_one=True)


NORM_MISTAKES = (
    entry("norm-left-out", "{of} are not normalised", change_norm(lambda x, weight, eps: x), of=OF),
    entry("norm-weight-ignored", "the weight of the norm of {of} is ignored",
          change_norm(lambda x, weight, eps: rms_norm(x, np.ones_like(weight), eps=eps)), of=OF),
    entry("norm-weight-plus-one", "1 is added to the weight of the norm of {of}",
          change_norm(weigh_by_one_more), of=OF),
    entry("norm-alone-weighted", "{of} are multiplied by the norm's weight, and not normalised",
          change_norm(lambda x, weight, eps: multiply_columns(x, weight)), of=OF),
    entry("layer-norm", "the norm of {of} subtracts the mean",
          change_norm(lambda x, weight, eps: layer_norm(x, weight, None, eps=eps)), of=OF),
    entry("norm-twice", "{of} are normalised twice",
          change_norm(lambda x, weight, eps: normalize(normalize(x, weight, eps), weight, eps)), of=OF),
    entry("norm-with-key", "one norm is over the latent and the rotated key, which it changes {key}",
          normalize_together, key=("too", "not")),
    entry("key-normalized", "the rotated key is normalised, {when} it is rotated", change_steps(normalize_key),
          when=("before", "after")),
    entry("eps", "eps is {eps}", answer_with(), eps=(1e-5, 1e-6, 1e-8, 1e-12, 1e-3)),
)  # fmt: skip


# --- rotation and the shared key --------------------------------------------------------------------------------------

SIDES = {"the key": ("turn_key",), "the queries": ("turn_query",), "key and queries": ("turn_key", "turn_query")}


def leave_unturned(steps: Steps, of: str) -> dict[str, Any]:
    return dict.fromkeys(SIDES[of], lambda x: x)


def turn_otherwise(steps: Steps, of: str, **how: Any) -> dict[str, Any]:
    return dict.fromkeys(SIDES[of], turn_by(steps.case, **how))


def ignore_factor(steps: Steps, of: str) -> dict[str, Any] | None:
    scaling = steps.case.options.get("scaling")
    return turn_otherwise(steps, of, factor=1.0) if isinstance(scaling, YarnScaling | LongRopeScaling) else None


def ignore_positions(call: Call, used: str) -> Case | None:
    case = call.case
    positions = case.inputs.get("positions")
    counted = used == "0, 1, 2, ..."
    if positions is None or (not counted and positions.ndim < 2):
        return None
    other = np.arange(positions.shape[-1]) if counted else np.broadcast_to(positions[:1], positions.shape)
    return replace(case, inputs=case.inputs | {"positions": other.astype(positions.dtype)})


def change_some(**options: object) -> Change:
    """Answer as if it had these options, where they are there to be ignored."""

    def change(call: Call) -> Case | None:
        given = any(call.case.options.get(name) is not None for name in options)
        return change_options(call.case, **options) if given else None

    return change


def keep_in_head_0(steps: Steps) -> dict[str, Any]:
    return {"share": lambda key, heads: give_to_heads(key, heads, 1, heads)}


def count_head_0(steps: Steps) -> dict[str, Any]:
    return {"share": lambda key, heads: give_to_heads(key, heads, heads, 1)}


ROTATIONS = (
    entry("not-rotated", "{of} are not rotated", change_steps(leave_unturned), of=tuple(SIDES)),
    entry("pairing", "the pairing is {pairing}", answer_with(), pairing=("halves", "interleaved")),
    entry("first-columns-rotated", "the first columns of a query are rotated, not the last",
          change_steps(lambda steps: {"turn_first": True})),
    entry("one-position-on", "{of} are rotated by positions that are {shift} more", change_steps(turn_otherwise),
          of=tuple(SIDES)[:2], shift=(1, 2)),
    entry("other-direction", "{of} turn the other way",
          change_steps(lambda steps, of: turn_otherwise(steps, of, sign=-1)), of=tuple(SIDES)[:2]),
    entry("positions-ignored", "positions are {used}", ignore_positions,
          used=("0, 1, 2, ...", "those of the first batch element")),
    entry("base-ignored", "the base is {base}", answer_with(), base=(10000.0, 500000.0, 1000000.0)),
    entry("scaling-ignored", "the scaling of the rotation is ignored", change_some(scaling=None)),
    entry("attention-factor-ignored", "the attention factor does not multiply {of}", change_steps(ignore_factor),
          of=("the queries", "key and queries", "the key")),
    entry("key-of-head-0", "only head 0 has the rotated key, the others have 0", change_steps(keep_in_head_0)),
    entry("key-gradient-of-head-0", "the gradient of the rotated key comes from head 0 only",
          change_steps(count_head_0), needs=("gradients",)),
)  # fmt: skip


# --- scale, latents, and the mask -------------------------------------------------------------------------------------


def scale_by_width(steps: Steps, width: str) -> dict[str, Any] | None:
    inputs, H, R = steps.case.inputs, steps.case.options["num_heads"], steps.case.options["rotary_width"]
    D, C = inputs["query.weight"].shape[1] // H - R, inputs["key_value_norm.weight"].size
    V, E = inputs["output.weight"].shape[0] // H, inputs["x"].shape[-1]
    sizes = {"D": D, "R": R, "C": C, "C + R": C + R, "V": V, "E": E, "E / H": E / H, "1": 1, "D + V": D + V}
    return {"scale": sizes[width] ** -0.5} if steps.case.options.get("scale") is None else None


def count_factor_once(steps: Steps) -> dict[str, Any] | None:
    """A scale is 1 / sqrt(D + R) times the square of a factor: here times the factor."""
    case = steps.case
    width, given = case.inputs["query.weight"].shape[1] // case.options["num_heads"], case.options.get("scale")
    return {"scale": (float(given) * width**-0.5) ** 0.5} if given is not None and given > 0 else None


LATENTS: dict[str, tuple[str, ...]] = {
    "values": ("value_latent",), "keys": ("key_latent",), "keys and values": ("key_latent", "value_latent"),
}  # fmt: skip


def take_raw_latent(steps: Steps, of: str) -> dict[str, Any]:
    return dict.fromkeys(LATENTS[of], lambda raw, latent: raw)


def lose_gradient(steps: Steps, of: str) -> dict[str, Any]:
    return dict.fromkeys(LATENTS[of], lambda raw, latent: latent.copy())


def absorb(call: Call, wrong: str) -> Results | None:
    """The absorbed form, with weights of the up-projection that are not transposed, or are head 0's in every head."""
    steps, case = Steps.read_case(call.case), call.case
    H, R = case.options["num_heads"], case.options["rotary_width"]
    D, C = case.inputs["query.weight"].shape[1] // H - R, case.inputs["key_value_norm.weight"].size
    if (wrong == "transposed" and D != C) or (wrong != "transposed" and H == 1):
        return None

    def output(parameters: Any, x: Array) -> Array:
        p, source = parameters, x
        if p.query_down is not None:
            source = normalize(linear(p.query_down, x), p.query_norm.weight, steps.eps)
        queries = split_heads(linear(p.query, source), H)
        turned = steps.turn_query(take_columns(queries, D, D + R))
        down = linear(p.key_value_down, x)
        latent = split_heads(normalize(take_columns(down, 0, C), p.key_value_norm.weight, steps.eps), 1)
        key = steps.turn_key(split_heads(take_columns(down, C, C + R), 1))
        of_keys, of_values = key_weights(p.key_value_up.weight, H, D), value_weights(p.key_value_up.weight, H, D)
        if wrong == "transposed":
            of_keys = exchange_axes(of_keys)
        elif wrong == "keys":
            of_keys = repeat_first(of_keys)
        else:
            of_values = repeat_first(of_values)
        inner = project_heads(of_keys, take_columns(queries, 0, D))
        attended = append_columns(latent, key)
        sums = attention(append_columns(inner, turned), attended, latent, mask=steps.mask, scale=steps.scale)
        return linear(p.output, concatenate_heads(project_heads(of_values, sums)))

    return steps.results(output)


@operation
def exchange_axes(weights: Array) -> Array:
    return weights.swapaxes(1, 2)


@gradient_of("weights")
def exchange_axes_vjp(weights: Array, cotangent: Array) -> Array:
    return cotangent.swapaxes(1, 2)


@operation
def repeat_first(weights: Array) -> Array:
    return np.repeat(weights[:1], len(weights), axis=0)


@gradient_of("weights")
def repeat_first_vjp(weights: Array, cotangent: Array) -> Array:
    return np.concatenate([cotangent.sum(axis=0, keepdims=True), np.zeros_like(weights[1:])])


SCALES = (
    entry("scale-of-width", "the scale is 1 / sqrt({width})", change_steps(scale_by_width),
          width=("D", "R", "C", "C + R", "V", "E", "E / H", "1", "D + V")),
    entry("scale-ignored", "the scale that is given is ignored", change_some(scale=None)),
    entry("scale-factor-once", "a factor of the scale counts once, not squared", change_steps(count_factor_once),
          needs=("scale",)),
    entry("raw-latent", "{of} are made of the latent before its norm", change_steps(take_raw_latent),
          of=("values", "keys")),
    entry("latent-gradient-lost", "the gradient of the latent by way of the {of} is lost", change_steps(lose_gradient),
          needs=("gradients",), of=("keys", "values")),
    entry("mask-ignored", "the mask is ignored", change_some(mask=None)),
    entry("absorbed-not-transposed", "queries are multiplied by weights that are not transposed",
          lambda call: absorb(call, "transposed"), rule="MLA-2", needs=("absorbed",)),
    entry("absorbed-by-head-0", "every head absorbs the {of} of head 0", lambda call, of: absorb(call, of),
          rule="MLA-2", needs=("absorbed",), of=("keys", "values")),
)  # fmt: skip


# --- the order of columns ---------------------------------------------------------------------------------------------


def reorder(order: Callable[..., tuple[str, Array] | None]) -> Change:
    """Read the columns of a projection in another order, or the rows of the last one: `order(case, **values)`."""

    @rearrange_inputs
    def move(case: Case, **values: object) -> Case | None:
        found = order(case, **values)
        if found is None:
            return None
        name, columns = found
        weight, bias = case.inputs[f"{name}.weight"], case.inputs.get(f"{name}.bias")
        if name == "output":
            return replace(case, inputs=case.inputs | {f"{name}.weight": weight[columns]})
        moved = {f"{name}.weight": weight[:, columns]} | ({} if bias is None else {f"{name}.bias": bias[columns]})
        return replace(case, inputs=case.inputs | moved)

    return move


def exchange_down(case: Case) -> tuple[str, Array]:
    R, columns = case.options["rotary_width"], case.inputs["key_value_down.weight"].shape[1]
    return "key_value_down", np.roll(np.arange(columns), -R)


def columns_by_head(case: Case, name: str) -> Array:
    """Columns [H, W] of a projection, or rows of the last one."""
    size = case.inputs[f"{name}.weight"].shape[0 if name == "output" else 1]
    return np.arange(size).reshape(case.options["num_heads"], -1)


def parts_of(case: Case, name: str) -> tuple[int, int]:
    """Of a head's columns, those of the first part and of the second."""
    R, width = case.options["rotary_width"], columns_by_head(case, name).shape[1]
    D = columns_by_head(case, "query").shape[1] - R
    return D, width - D


def exchange_parts(case: Case, name: str) -> tuple[str, Array]:
    """In each head the second part comes first."""
    return name, np.roll(columns_by_head(case, name), -parts_of(case, name)[1], axis=1).ravel()


def read_parts_first(case: Case, name: str) -> tuple[str, Array] | None:
    """The first parts of all heads, then the second parts of all heads."""
    (first, second), H = parts_of(case, name), case.options["num_heads"]
    firsts, seconds = np.arange(H * first).reshape(H, first), H * first + np.arange(H * second).reshape(H, second)
    return None if H == 1 else (name, np.concatenate([firsts, seconds], axis=1).ravel())


def interleave_heads(case: Case, name: str) -> tuple[str, Array] | None:
    """Column c belongs to head c % H."""
    H, width = columns_by_head(case, name).shape
    return None if 1 in (H, width) else (name, np.arange(H * width).reshape(width, H).T.ravel())


@rearrange_inputs
def lose_biases(case: Case, of: str) -> Case | None:
    """The bias is 0, and so is its gradient."""
    inputs = {name: array for name, array in case.inputs.items() if name != f"{of}.bias"}
    return None if len(inputs) == len(case.inputs) else replace(case, inputs=inputs)


ORDERS = (
    entry("latent-and-key-exchanged", "the rotated key is the first columns of key_value_down, the latent the others",
          reorder(exchange_down)),
    entry("parts-exchanged", "in each head of {name} the second part comes first", reorder(exchange_parts),
          name=("key_value_up", "query")),
    entry("parts-before-heads", "{name} has the first parts of all heads, then the second parts",
          reorder(read_parts_first), name=("key_value_up", "query")),
    entry("heads-interleaved", "column c of {name} belongs to head c % H", reorder(interleave_heads),
          name=("key_value_up", "query", "output")),
    entry("bias-ignored", "the bias of {of} is ignored", lose_biases,
          of=("key_value_down", "query", "output", "query_down")),
)  # fmt: skip

MISTAKES = (*NORM_MISTAKES, *ROTATIONS, *SCALES, *ORDERS)
OWN = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(OWN[name].choose(of="the queries") for name in ("norm-left-out", "norm-weight-ignored", "not-rotated")),
    OWN["not-rotated"].choose(of="key and queries"),
    OWN["pairing"].choose(pairing="interleaved"),
    *(OWN["scale-of-width"].choose(width=width) for width in ("R", "C", "C + R", "E / H")),
    replace(OWN["scale-of-width"], rule="MLA-2").choose(width="C + R").limit(Condition(features=("absorbed",))),
    OWN["raw-latent"].choose(of="keys"),
    *(OWN[name].choose(name="query") for name in ("parts-exchanged", "parts-before-heads", "heads-interleaved")),
)
