"""Mistakes of a block's attention: scale, masks, windows, rotation, and how its projections are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance.bounds.rotary import pair_columns
from conformance.cases.case import numpy_dtype
from conformance.mistakes.rotary import kept_share
from conformance.ports.computation import Step, copy_functions
from conformance.ports.mistakes.mistake import (
    TRANSPOSED,
    StepChange,
    StepMistake,
    Topic,
    change_fields,
    read_transposed,
    replace_function,
)
from reference_numpy import blocks, materialize
from reference_numpy.attention_steps import attention_scores, repeat_heads, resolve_scale, softmax
from reference_numpy.multi_head_attention import join_heads
from specification.configuration import AttentionLayer
from specification.frequencies import attention_factor, exact_frequencies
from specification.parameters import Linear
from specification.rotary import LongRopeScaling, Rotary, Rotation, YarnScaling

PARAMETERS, QUERY, MEMORY, MASK, DROPOUT, CONFIGURATION, LAYER, BIAS, ROTATION = range(9)
"""Positions of the arguments of `attend`."""
DEFAULTS = (None, None, None, None, None, None, AttentionLayer(), None, None)
BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 160000.0)
"""Of rotary embeddings: those of Llama 1 and 3, Qwen, Code Llama's neighbours, and ModernBERT."""
INVERTED = "YaRN's ramp is inverted: it keeps slow pairs, not fast ones"
TOPIC = Topic("attention", "MHA-1", ("attend",))
Projections = Callable[[Any, int], Any]
"""From the parameters of an attention with every projection in one, and the number of heads, to others."""
Order = Callable[[int, int, int], np.ndarray]
"""From the number of columns, of the heads in them and of the heads of queries, to the order of columns."""


def complete(step: Step) -> Step:
    """Return the step with all arguments by position."""
    return step._replace(arguments=(*step.arguments, *DEFAULTS[len(step.arguments) :]))


def set_argument(index: int, value: object) -> StepChange:
    return lambda step: complete(step).argument(index, value)


def head_width(step: Step) -> int:
    heads: int = step.arguments[CONFIGURATION].num_heads
    return int(join_heads(step.arguments[PARAMETERS].query).weight.shape[1]) // heads


# --- scores -----------------------------------------------------------------------------------------------------------


def change_scale(power: float) -> StepChange:
    """The scale is the head's width to that power."""
    return lambda step: change_fields(CONFIGURATION, scale=float(head_width(step)) ** power)(step)


def find_scale(step: Step) -> float:
    """Return the factor of scores that is due."""
    scale = step.arguments[CONFIGURATION].scale
    if not isinstance(scale, str):
        return float(scale)
    width = head_width(step) if scale == "head_width" else join_heads(step.arguments[PARAMETERS].query).weight.shape[0]
    return float(width) ** -0.5


def scale_by_heads(step: Step) -> Step:
    heads: int = step.arguments[CONFIGURATION].num_heads
    return change_fields(CONFIGURATION, scale=heads**-0.5)(step)


def multiply_scale(factor: float) -> StepChange:
    return lambda step: change_fields(CONFIGURATION, scale=find_scale(step) * factor)(step)


def scale_twice(step: Step) -> Step:
    return multiply_scale(find_scale(step))(step)


def divide_by_layer(step: Step) -> Step:
    """The scale of block i is divided by i + 1, as an option of GPT-2 says."""
    words = step.name.split(".")
    return multiply_scale(1 / (1 + int(words[words.index("blocks") + 1])))(step)


# --- attention in other steps -----------------------------------------------------------------------------------------


def attend_with(**functions: Any) -> StepChange:
    """Change functions inside a block's attention."""
    return replace_function(copy_functions(functions, blocks)["attend"])


def attend_otherwise(
    weigh: Callable[[np.ndarray, np.ndarray], np.ndarray], score: Callable[..., np.ndarray] = attention_scores
) -> StepChange:
    """Make weights another way.

    weigh: from scores and allowed pairs to weights, where a sink is one more key, which is never masked. score: from
    queries, keys and pairs to the scores of these.
    """

    def attention(
        query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: Any = None, bias: Any = None, scale: Any = None,
        softcap: Any = None, sinks: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        B, H, Q, _ = query.shape
        key, value = repeat_heads(key, H), repeat_heads(value, H)
        allowed = np.broadcast_to(materialize(mask, Q, key.shape[2], batch=B, heads=H), (B, H, Q, key.shape[2]))
        pairs = np.ones_like(allowed) if score is attention_scores else allowed
        scores = score(query, key, pairs, bias=bias, scale=scale, softcap=softcap)
        if sinks is not None:
            column = np.broadcast_to(sinks[:, None, None], (B, H, Q, 1))
            scores = np.concatenate([scores, column], axis=-1)
            allowed = np.concatenate([allowed, np.ones_like(column, bool)], axis=-1)
        return weigh(scores, allowed)[..., : key.shape[2]] @ value

    return attend_with(attention=attention)


def weigh_over_queries(scores: np.ndarray, allowed: np.ndarray) -> Any:
    weights, _ = softmax(np.swapaxes(scores, -1, -2), np.swapaxes(allowed, -1, -2))
    return np.swapaxes(weights, -1, -2)


def mask_weights(scores: np.ndarray, allowed: np.ndarray) -> Any:
    weights, _ = softmax(scores, np.ones_like(allowed))
    return np.where(allowed, weights, 0)


def multiply_mask(scores: np.ndarray, allowed: np.ndarray) -> Any:
    weights, _ = softmax(np.where(allowed, scores, 0), np.ones_like(allowed))
    return weights


def weigh_by_scores(scores: np.ndarray, allowed: np.ndarray) -> Any:
    """The softmax of scores that are -inf for forbidden pairs: NaN in a row of them."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def fill_scores(query: np.ndarray, key: np.ndarray, allowed: np.ndarray, **options: Any) -> Any:
    return np.where(allowed, attention_scores(query, key, np.ones_like(allowed), **options), -np.inf)


def lower_scores(number: float) -> StepChange:
    """Forbidden scores are lowered by a finite number."""

    def lower(query: np.ndarray, key: np.ndarray, allowed: np.ndarray, **options: Any) -> Any:
        return attention_scores(query, key, np.ones_like(allowed), **options) - number * ~allowed

    return attend_otherwise(weigh_by_scores, lower)


def cap_masked(
    query: np.ndarray, key: np.ndarray, allowed: np.ndarray, *, softcap: float | None, **options: Any
) -> Any:
    """Scores are capped after forbidden ones are -inf."""
    scores = fill_scores(query, key, allowed, softcap=None, **options)
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def cap_before_scale(
    query: np.ndarray, key: np.ndarray, allowed: np.ndarray, *, bias: Any, scale: Any, softcap: float | None
) -> Any:
    factor = resolve_scale(scale, query.shape[-1])
    scores = factor * attention_scores(query, key, np.ones_like(allowed), bias=None, scale=1.0, softcap=softcap)
    # Finite, so that a row without keys is no NaN.
    return np.where(allowed, scores if bias is None else scores + bias, -1e300)


def cut_rows(x: np.ndarray, heads: int) -> Any:
    """Read [B, T, H D] as [B, H, T, D]."""
    return x.reshape(x.shape[0], heads, x.shape[1], -1)


def cut_rows_in(name: str) -> dict[str, Any]:
    """Return a function of a block's attention that reads heads so."""
    return {name: copy_functions({"split_heads": cut_rows}, blocks)[name]}


def join_unturned(heads: np.ndarray) -> Any:
    """Read [B, H, T, D] as [B, T, H D], without changing the places of H and T."""
    return heads.reshape(len(heads), heads.shape[2], -1)


def turn_with_wrong_sign(x: np.ndarray, sine: np.ndarray, cosine: np.ndarray, pairing: str) -> Any:
    """The second of a pair has the first's sign before the sine."""
    width = 2 * sine.shape[-1]
    right = blocks.rotate(x, sine, cosine, pairing)
    other = blocks.rotate(x, -sine, cosine, pairing)
    columns = np.arange(x.shape[-1])
    second = (columns % 2 == 1) if pairing == "interleaved" else (columns >= width // 2)
    return np.where(second & (columns < width), other, right)


def mix_pairings(columns: bool) -> Callable[..., Any]:
    """Either columns are turned in the other pairing, or sines stand as for it."""

    def rotate(x: np.ndarray, sine: np.ndarray, cosine: np.ndarray, pairing: str) -> Any:
        width, other = 2 * sine.shape[-1], "interleaved" if pairing == "halves" else "halves"
        first, second = pair_columns(width, other if columns else pairing)
        turned = np.zeros_like(x[..., :width])
        turned[..., first], turned[..., second] = -x[..., second], x[..., first]
        in_halves = (pairing if columns else other) == "halves"
        sines, cosines = (
            np.concatenate([table, table], axis=-1) if in_halves else np.repeat(table, 2, axis=-1)
            for table in (sine, cosine)
        )
        return np.concatenate([x[..., :width] * cosines + turned * sines, x[..., width:]], axis=-1)

    return rotate


def turn_last_columns(x: np.ndarray, sine: np.ndarray, cosine: np.ndarray, pairing: str) -> Any:
    """The last columns of a head turn, where the first should."""
    kept = x.shape[-1] - 2 * sine.shape[-1]
    return np.concatenate([x[..., :kept], blocks.rotate(x[..., kept:], sine, cosine, pairing)], axis=-1)


def leave_keys(p: Any, memory: Any, configuration: Any, layer: Any = AttentionLayer(), rotation: Any = None) -> Any:
    """Keys are not rotated."""
    return blocks.project_keys(p, memory, configuration, replace(layer, rotary=None), None)


def take_keys(p: Any, memory: Any, configuration: Any, layer: Any = AttentionLayer(), rotation: Any = None) -> Any:
    """Values are the keys, as they are after rotation."""
    keys, _ = blocks.project_keys(p, memory, configuration, layer, rotation)
    return keys, keys


def leave_queries(p: Any, x: Any, configuration: Any, layer: Any = AttentionLayer(), rotation: Any = None) -> Any:
    """Queries are not rotated."""
    return blocks.project_queries(p, x, configuration, replace(layer, rotary=None), None)


def rotate_values(p: Any, memory: Any, configuration: Any, layer: Any = AttentionLayer(), rotation: Any = None) -> Any:
    """Values are rotated too."""
    keys, values = blocks.project_keys(p, memory, configuration, layer, rotation)
    return keys, blocks.rotated(values, layer, rotation)


def round_rotation(dtype: str) -> StepChange:
    """Sine and cosine are rounded to 16 bits."""

    def change(step: Step) -> Step:
        rotation = complete(step).arguments[ROTATION]
        if rotation is None:
            return step
        narrow = [array.astype(numpy_dtype(dtype)).astype(array.dtype) for array in rotation]
        return complete(step).argument(ROTATION, type(rotation)(*narrow))

    return change


def scale_by_share(step: Step) -> Step:
    """Scores are divided by sqrt(E / H), where heads have another width."""
    p, configuration = step.arguments[PARAMETERS], step.arguments[CONFIGURATION]
    share = join_heads(p.query).weight.shape[0] / configuration.num_heads
    return change_fields(CONFIGURATION, scale=float(share) ** -0.5)(step)


# --- windows and rotation ---------------------------------------------------------------------------------------------


def change_layer(change: Callable[[AttentionLayer], AttentionLayer]) -> StepChange:
    """Change window or rotation; sine and cosine are made anew."""

    def changed(step: Step) -> Step:
        step = complete(step)
        return step.argument(LAYER, change(step.arguments[LAYER])).argument(ROTATION, None)

    return changed


def multiply_window(factor: float) -> StepChange:
    def change(layer: AttentionLayer) -> AttentionLayer:
        window: Any = layer.window and tuple(int(side * factor) for side in layer.window)
        return replace(layer, window=window)

    return change_layer(change)


def widen_window(left: int, right: int) -> StepChange:
    def change(layer: AttentionLayer) -> AttentionLayer:
        if layer.window is None:
            return layer
        return replace(layer, window=(max(layer.window[0] + left, 0), max(layer.window[1] + right, 0)))

    return change_layer(change)


def change_rotary(**fields: Any) -> StepChange:
    def change(layer: AttentionLayer) -> AttentionLayer:
        return layer if layer.rotary is None else replace(layer, rotary=replace(layer.rotary, **fields))

    return change_layer(change)


def take_frequencies_of_model(step: Step) -> Step:
    """Frequencies are base ** (-2i / E), in place of -2i / D: those of another base."""
    layer = complete(step).arguments[LAYER]
    if layer.rotary is None:
        return step
    model_width = join_heads(step.arguments[PARAMETERS].query).weight.shape[0]
    base = layer.rotary.base ** ((layer.rotary.width or head_width(step)) / model_width)
    return change_rotary(base=float(base))(step)


def take_frequencies_of_head(step: Step) -> Step:
    """Where a share of a head's columns turns, frequencies are base ** (-2i / D) for the whole head's width D."""
    rotary = complete(step).arguments[LAYER].rotary
    if rotary is None or rotary.width is None:
        return step
    return change_rotary(base=float(rotary.base ** (rotary.width / head_width(step))))(step)


def multiply_exponents(factor: float) -> StepChange:
    """Frequencies are base ** (-2i factor / D): those of a power of the base."""

    def change(step: Step) -> Step:
        rotary = complete(step).arguments[LAYER].rotary
        return step if rotary is None else change_rotary(base=float(rotary.base) ** factor)(step)

    return change


def rotate_share(share: float) -> StepChange:
    """That share of a head's columns turns."""

    def changed(step: Step) -> Step:
        width = None if share == 1 else max(int(head_width(step) * share) // 2 * 2, 2)
        return change_rotary(width=width)(step)

    return changed


def set_frequencies(frequencies: Callable[[Rotary, int, np.ndarray], np.ndarray | None]) -> StepChange:
    """Pairs turn by other frequencies.

    Args:
        frequencies: of a rotation, its width W, and base ** (-2i / W); None where all stays as it is.
    """

    def changed(step: Step) -> Step:
        width = head_width(step)

        def change(layer: AttentionLayer) -> AttentionLayer:
            rotary = layer.rotary
            if rotary is None:
                return layer
            turned = rotary.width or width
            plain = rotary.base ** (-np.arange(0, turned, 2) / turned)
            taken = frequencies(rotary, turned, plain)
            if taken is None:
                return layer
            divisors = tuple((plain / taken).tolist())
            scaling = LongRopeScaling(
                short_factors=divisors,
                long_factors=divisors,
                original_length=2,
                attention_factor=attention_factor(rotary.scaling),
            )
            return replace(layer, rotary=replace(rotary, scaling=scaling))

        return change_layer(change)(step)

    return changed


def invert_ramp(at_last_pair: bool) -> StepChange:
    """YaRN divides the share of each frequency that it should keep, and keeps the other one.

    Args:
        at_last_pair: the ramp ends at the last pair at the latest.
    """

    def invert(rotary: Rotary, width: int, plain: np.ndarray) -> np.ndarray | None:
        if not isinstance(rotary.scaling, YarnScaling):
            return None
        call: Any = SimpleNamespace(width=width, base=rotary.base, scaling=rotary.scaling)
        share = 1 - kept_share(call, plain, width // 2 - 1 if at_last_pair else None)
        return np.asarray(plain * (share + (1 - share) / rotary.scaling.factor))

    return set_frequencies(invert)


def round_angles(dtype: str, is_product: bool = True) -> StepChange:
    """Frequencies are rounded to 16 bits, as in a module that was made one of 16 bits.

    is_product: whether their products with positions are, too.
    """

    def change(step: Step) -> Step:
        step = complete(step)
        rotary, rotation = step.arguments[LAYER].rotary, step.arguments[ROTATION]
        if rotation is None:
            return step
        length, narrow = rotation.sine.shape[-2], numpy_dtype(dtype)
        exactly = exact_frequencies(rotary.width or head_width(step), rotary.base, rotary.scaling, length)
        frequencies = np.array(exactly, float).astype(narrow).astype(float)
        angles = np.arange(length)[:, None] * frequencies
        if is_product:
            positions = np.arange(length).astype(narrow).astype(float)[:, None]
            angles = (positions * frequencies).astype(narrow).astype(float)
        factor = attention_factor(rotary.scaling)
        return step.argument(ROTATION, Rotation(factor * np.sin(angles)[None], factor * np.cos(angles)[None]))

    return change


def turn_back(step: Step) -> Step:
    """Sine has the other sign."""
    rotation = complete(step).arguments[ROTATION]
    return step if rotation is None else complete(step).argument(ROTATION, rotation._replace(sine=-rotation.sine))


def drop_attention_factor(step: Step) -> Step:
    """Sine and cosine are not multiplied by the scaling's factor."""
    rotation = complete(step).arguments[ROTATION]
    if rotation is None:
        return step
    size = np.sqrt(rotation.sine**2 + rotation.cosine**2)
    return complete(step).argument(
        ROTATION, rotation._replace(sine=rotation.sine / size, cosine=rotation.cosine / size)
    )


# --- how projections are read -----------------------------------------------------------------------------------------


def change_projections(change: Projections) -> StepChange:
    """Change the parameters; widths that do not allow it stay as they are."""

    def changed(step: Step) -> Step:
        p = step.arguments[PARAMETERS]
        joined = p._replace(query=join_heads(p.query), key=join_heads(p.key), value=join_heads(p.value))
        try:
            return step.argument(PARAMETERS, change(joined, step.arguments[CONFIGURATION].num_heads))
        except ValueError:
            return step

    return changed


def permute_projections(query: str, key: str, value: str) -> Projections:
    """The three are read as others."""
    return lambda p, heads: p._replace(query=getattr(p, query), key=getattr(p, key), value=getattr(p, value))


def drop_biases(*names: str) -> Projections:
    return lambda p, heads: p._replace(**{name: getattr(p, name)._replace(bias=None) for name in names})


def transpose_weights(*names: str) -> Projections:
    def transpose(linear: Linear) -> Linear:
        return linear._replace(weight=read_transposed(linear.weight))

    return lambda p, heads: p._replace(**{name: transpose(getattr(p, name)) for name in names})


def drop_norms(*names: str) -> Projections:
    return lambda p, heads: p._replace(**dict.fromkeys(names))


def take_columns(linear: Linear, order: np.ndarray) -> Linear:
    return Linear(linear.weight[:, order], None if linear.bias is None else linear.bias[order])


def interleave(width: int, heads: int) -> Any:
    """For each column as [H, D], the one that stands there when columns are taken as [D, H]."""
    return np.arange(width).reshape(-1, heads).T.ravel()


def count_key_heads(p: Any, heads: int) -> int:
    return int(p.key.weight.shape[1]) // (p.query.weight.shape[1] // heads)


def interleave_heads(p: Any, heads: int) -> Any:
    """All heads' columns are read as [D, H]."""
    shared = count_key_heads(p, heads)
    found = {"query": heads, "key": shared, "value": shared}
    changed = {n: take_columns(getattr(p, n), interleave(getattr(p, n).weight.shape[1], h)) for n, h in found.items()}
    return p._replace(**changed)


def fuse_otherwise(by_head: bool) -> Projections:
    """The columns of a fused matrix are taken as [H, 3, D] where they stand as [3, H, D], or the other way round."""

    def change(p: Any, heads: int) -> Any:
        parts = [p.query, p.key, p.value]
        if len({part.weight.shape for part in parts}) > 1:
            raise ValueError("no such matrix has parts of several widths")
        width = p.query.weight.shape[1]
        shape = (heads, 3, -1) if by_head else (3, heads, -1)
        order = np.arange(3 * width).reshape(shape).transpose(1, 0, 2).reshape(3, width)
        bias = None if p.query.bias is None else np.concatenate([part.bias for part in parts])
        whole = Linear(np.concatenate([part.weight for part in parts], axis=1), bias)
        return p._replace(**{name: take_columns(whole, order[i]) for i, name in enumerate(("query", "key", "value"))})

    return change


def tile_heads(p: Any, heads: int) -> Any:
    """Query head h reads key head h % G: heads are put into the order in which shared ones are repeated, and back."""
    shared = count_key_heads(p, heads)
    head = np.arange(heads).reshape(heads // shared, shared).T.ravel()
    columns = np.arange(p.query.weight.shape[1]).reshape(heads, -1)[head].ravel()
    rows = np.arange(p.output.weight.shape[0]).reshape(heads, -1)[head].ravel()
    output = p.output._replace(weight=p.output.weight[rows])
    return p._replace(query=take_columns(p.query, columns), output=output)


def tile_queries(p: Any, heads: int) -> Any:
    """The heads of queries alone are put into the order of tiled key heads; results keep the other order."""
    return p._replace(query=tile_heads(p, heads).query)


def merge_otherwise(p: Any, heads: int) -> Any:
    """What the heads give is laid side by side as [D, H]."""
    order = interleave(p.output.weight.shape[0], heads)
    return p._replace(output=p.output._replace(weight=p.output.weight[order]))


def interleave_throughout(p: Any, heads: int) -> Any:
    """Heads are taken, and joined, as [D, H]."""
    return merge_otherwise(interleave_heads(p, heads), heads)


def order_pairs(columns: int, heads: int) -> np.ndarray:
    """The order that puts the columns of heads from halves into pairs, as Meta's Llama has them."""
    return np.arange(columns).reshape(heads, 2, -1).transpose(0, 2, 1).ravel()


def order_halves(columns: int, heads: int) -> np.ndarray:
    """The order that puts the columns of heads from pairs into halves, as checkpoints of Hugging Face have them."""
    return np.arange(columns).reshape(heads, -1, 2).transpose(0, 2, 1).ravel()


def permute_columns(query: Order | None, key: Order | None) -> Projections:
    """The columns of queries and keys have another order.

    Each order is a function from the number of columns, the heads in them and the heads of queries. A port whose
    rotation pairs neighbours computes what one computes that pairs halves, with columns that are put from pairs into
    halves. So every mistake is written here for the definition's own rotation.
    """

    def change(p: Any, heads: int) -> Any:
        orders = {"query": (query, heads), "key": (key, count_key_heads(p, heads))}
        changed = {}
        for name, (order, own) in orders.items():
            linear = getattr(p, name)
            if order is not None:
                changed[name] = take_columns(linear, order(linear.weight.shape[1], own, heads))
        return p._replace(**changed)

    return change


def pair_columns_once(columns: int, own: int, _: int) -> np.ndarray:
    return order_pairs(columns, own)


def halve_columns_once(columns: int, own: int, _: int) -> np.ndarray:
    return order_halves(columns, own)


def halve_columns_twice(columns: int, own: int, _: int) -> np.ndarray:
    return order_halves(columns, own)[order_halves(columns, own)]


def pair_as_one_head(columns: int, own: int, _: int) -> np.ndarray:
    return order_pairs(columns, 1)[order_halves(columns, own)]


def pair_by_query_heads(columns: int, own: int, heads: int) -> np.ndarray:
    return order_pairs(columns, heads)[order_halves(columns, own)]


def attend_to_itself(step: Step) -> Step:
    if step.arguments[MEMORY] is step.arguments[QUERY]:
        return step
    return step.argument(MEMORY, step.arguments[QUERY]).argument(MASK, None)


def give_zeros(p: Any, x: np.ndarray, *_: Any, **__: Any) -> Any:
    return np.zeros_like(x)


def project(name: str, says: str, change: Projections, rule: str = "") -> StepMistake:
    return TOPIC.entry(name, says, change_projections(change), rule)


CAPS = (50.0, 30.0)
"""Those of Gemma 2 and Grok."""
entry = TOPIC.entry
EMPTY_ROWS = entry(
    "empty-rows-spread",
    "a row whose keys are all masked is NaN, and as a key makes others NaN: mask by a large finite number, or clear it",
    attend_otherwise(weigh_by_scores, fill_scores),
    "ATT-6",
)
"""What a softmax over -inf alone comes to."""
ALL = ("query", "key", "value", "output")
MISTAKES = (
    entry("scale-none", "scores are not scaled", change_scale(0.0), "ATT-1"),
    entry("scale-model-width", "scores are scaled by 1 / sqrt(E)", change_fields(5, scale="model_width"), "ATT-1"),
    entry("scale-head-width", "scores are scaled by 1 / sqrt(D)", change_fields(5, scale="head_width"), "ATT-1"),
    entry("scale-width", "scores are divided by D", change_scale(-1.0), "ATT-1"),
    entry("scale-share", "scores are divided by sqrt(E / H), where heads have another width", scale_by_share, "ATT-1"),
    entry("scale-heads", "scores are divided by sqrt(H)", scale_by_heads, "ATT-1"),
    entry("scale-twice", "the scale of scores is applied twice", scale_twice, "ATT-1"),
    entry("scale-by-layer", "the scale of block i is divided by i + 1", divide_by_layer, "ATT-1"),
    entry("no-softcap", "the softcap of scores is left out", change_fields(5, softcap=None), "ATT-2"),
    entry(
        "softcap-of-masked", "the softcap comes after the mask", attend_otherwise(weigh_by_scores, cap_masked), "ATT-2"
    ),
    entry(
        "softcap-unscaled",
        "the softcap comes before the scale",
        attend_otherwise(weigh_by_scores, cap_before_scale),
        "ATT-2",
    ),
    *(
        entry(f"softcap-{cap:g}", f"scores are capped at {cap:g}", change_fields(5, softcap=cap), "ATT-2")
        for cap in CAPS
    ),
    EMPTY_ROWS,
    entry("mask-after-softmax", "the mask is applied after the softmax", attend_otherwise(mask_weights), "ATT-5"),
    entry("mask-multiplied", "forbidden scores are 0", attend_otherwise(multiply_mask), "ATT-4"),
    entry("softmax-over-queries", "the softmax is over queries", attend_otherwise(weigh_over_queries), "ATT-5"),
    entry("no-window", "the window is ignored", change_layer(lambda layer: replace(layer, window=None)), "MASK-4"),
    *(
        entry(f"window-{name}", f"the window is {says} as wide", multiply_window(factor), "MASK-4")
        for name, says, factor in (("doubled", "twice", 2), ("halved", "half", 0.5))
    ),
    *(
        entry(f"window{left:+d}{right:+d}", f"the window has {says}", widen_window(left, right), "MASK-4")
        for left, right, says in (
            (1, 0, "one key more"),
            (-1, 0, "one key less"),
            (1, 1, "one key more at either side"),
            (-1, -1, "one key less at either side"),
        )
    ),
    *(
        entry(f"rotary-base-{base:g}", f"the rotary base is {base:g}", change_rotary(base=base), "POS-3")
        for base in BASES
    ),
    entry("rotary-model-width", "rotary frequencies are those of width E", take_frequencies_of_model, "POS-3"),
    entry("rotary-head-width", "rotary frequencies are those of a whole head", take_frequencies_of_head, "POS-3"),
    entry(
        "rotary-last-columns",
        "the last columns of a head turn, in place of the first",
        attend_with(rotate=turn_last_columns),
        "POS-3",
    ),
    *(
        entry(name, f"rotary exponents are {says} / D, in place of 2i / D", multiply_exponents(factor), "POS-3")
        for name, says, factor in (("rotary-exponent", "i", 0.5), ("rotary-exponent-twice", "4i", 2.0))
    ),
    entry("rotary-halves", "rotation pairs the two halves of a head", change_rotary(pairing="halves"), "POS-3"),
    entry("rotary-interleaved", "rotation pairs neighbours", change_rotary(pairing="interleaved"), "POS-3"),
    entry("rotary-not-scaled", "the scaling of rotary frequencies is ignored", change_rotary(scaling=None), "POS-4"),
    entry("rotary-no-factor", "the factor of sine and cosine is left out", drop_attention_factor, "POS-4"),
    entry("yarn-inverted", INVERTED, invert_ramp(False), "POS-4"),
    entry("yarn-inverted-early", f"{INVERTED}, and ends at the last pair at the latest", invert_ramp(True), "POS-4"),
    entry(
        "no-rotary",
        "queries and keys are not rotated",
        change_layer(lambda layer: replace(layer, rotary=None)),
        "POS-3",
    ),
    entry("rotary-whole", "all columns of a head turn", rotate_share(1), "POS-3"),
    *(
        entry(f"rotary-share-{share}", f"{share} of a head's columns turn", rotate_share(share), "POS-3")
        for share in (0.5, 0.25)
    ),
    entry(
        "rotary-sign",
        "the second of a pair turns with the wrong sign",
        attend_with(rotate=turn_with_wrong_sign),
        "POS-3",
    ),
    entry("rotary-mixed", "sines stand as for the other pairing", attend_with(rotate=mix_pairings(False)), "POS-3"),
    entry("rotary-columns", "columns turn in the other pairing", attend_with(rotate=mix_pairings(True)), "POS-3"),
    entry("rotary-of-queries", "keys are not rotated", attend_with(project_keys=leave_keys), "POS-3"),
    entry("rotary-of-keys", "queries are not rotated", attend_with(project_queries=leave_queries), "POS-3"),
    entry("values-are-rotated-keys", "values are the keys", attend_with(project_keys=take_keys)),
    entry("rotary-of-values", "values are rotated too", attend_with(project_keys=rotate_values), "POS-3"),
    *(
        entry(f"rotary-{name}-{dtype}", f"{says} are rounded to {dtype}", change(dtype), "POS-3")
        for name, says, change in (
            ("in", "sine and cosine", round_rotation),
            ("frequencies-in", "rotary frequencies", partial(round_angles, is_product=False)),
            ("angles-in", "rotary frequencies and angles", round_angles),
        )
        for dtype in ("float16", "bfloat16")
    ),
    entry("rotary-backwards", "rotation goes the other way", turn_back, "POS-3"),
    project("query-key-swapped", "query and key have changed places", permute_projections("key", "query", "value")),
    project("query-value-swapped", "query and value have changed places", permute_projections("value", "key", "query")),
    project("key-value-swapped", "key and value have changed places", permute_projections("query", "value", "key")),
    project("read-as-kvq", "query, key, value are read as key, value, query", permute_projections(*ALL[1:3], "query")),
    project("read-as-vqk", "query, key, value are read as value, query, key", permute_projections("value", *ALL[:2])),
    project("heads-interleaved", "the columns of heads are read as [D, H]", interleave_heads),
    project("fused-by-head", "the fused matrix is read as [H, 3, D], where it is [3, H, D]", fuse_otherwise(True)),
    project("fused-by-part", "the fused matrix is read as [3, H, D], where it is [H, 3, D]", fuse_otherwise(False)),
    project("heads-interleaved-throughout", "heads are taken, and joined, as [D, H]", interleave_throughout),
    project("values-are-keys", "values are the keys", permute_projections("query", "key", "key")),
    project("keys-are-queries", "keys are the queries", permute_projections("query", "query", "value")),
    project("heads-tiled", "query head h reads key head h % G", tile_heads, "ATT-7"),
    project(
        "queries-tiled",
        "query heads are grouped as [H / G, G], and what they give as [G, H / G]",
        tile_queries,
        "ATT-7",
    ),
    *(
        entry(
            "heads-not-turned",
            "the results of heads are joined before heads and positions change places",
            attend_with(concatenate_heads=join_unturned),
            filling=filling,
        )
        for filling in ("", "mean")  # what rows without keys give reaches others
    ),
    *(
        entry(name, f"{says} reshaped to [B, H, T, D] without a transpose", attend_with(**functions), filling=filling)
        for name, says, functions in (
            ("heads-cut-from-rows", "queries, keys and values are", {"split_heads": cut_rows}),
            ("queries-cut-from-rows", "queries are", cut_rows_in("project_queries")),
            ("keys-cut-from-rows", "keys and values are", cut_rows_in("project_keys")),
        )
        for filling in ("", "mean")
    ),
    project("heads-merged", "the results of heads are joined as [D, H]", merge_otherwise),
    *(
        project(name, says, permute_columns(query, key), "POS-3")
        for name, says, query, key in (
            (
                "columns-paired",
                "the columns of queries and keys are put from halves into pairs, and rotation pairs halves",
                pair_columns_once,
                pair_columns_once,
            ),
            (
                "columns-halved",
                "the columns of queries and keys are put from pairs into halves, and are in halves already",
                halve_columns_once,
                halve_columns_once,
            ),
            (
                "columns-halved-for-pairs",
                "the columns of queries and keys are put from pairs into halves, where rotation pairs neighbours",
                halve_columns_twice,
                halve_columns_twice,
            ),
            ("query-in-halves", "rotation pairs neighbours, and queries alone are in halves", halve_columns_once, None),
            ("key-in-halves", "rotation pairs neighbours, and keys alone are in halves", None, halve_columns_once),
            ("query-in-pairs", "rotation pairs halves, and queries alone are put into pairs", pair_columns_once, None),
            ("key-in-pairs", "rotation pairs halves, and keys alone are put into pairs", None, pair_columns_once),
            (
                "key-paired-as-one",
                "the columns of keys are put into pairs as those of one head",
                None,
                pair_as_one_head,
            ),
            (
                "key-paired-by-query-heads",
                "the columns of keys are put into pairs as those of so many heads as queries have",
                None,
                pair_by_query_heads,
            ),
        )
    ),
    project("no-biases", "the biases of query, key and value are left out", drop_biases(*ALL[:3])),
    project("no-bias-at-all", "all biases of the attention are left out", drop_biases(*ALL)),
    *(project(f"no-{name}-bias", f"the bias of the {name} projection is left out", drop_biases(name)) for name in ALL),
    project("all-transposed", f"all four projections are {TRANSPOSED}", transpose_weights(*ALL)),
    project("inputs-transposed", f"query, key and value are {TRANSPOSED}", transpose_weights(*ALL[:3])),
    *(project(f"{name}-transposed", f"the {name} projection is {TRANSPOSED}", transpose_weights(name)) for name in ALL),
    project("no-norms", "queries and keys are not normalised", drop_norms("query_norm", "key_norm"), "NORM-8"),
    project("no-query-norm", "queries are not normalised", drop_norms("query_norm"), "NORM-8"),
    project("no-key-norm", "keys are not normalised", drop_norms("key_norm"), "NORM-8"),
    project("no-sinks", "the sinks are ignored", drop_norms("sinks"), "ATT-5"),
    entry("no-relative-bias", "the bias by relative positions is left out", set_argument(BIAS, None), "POS-6"),
    entry(
        "memory-ignored", "the decoder attends to itself, in place of the encoder's output", attend_to_itself, "BLK-1"
    ),
    entry("left-out", "the attention is left out", replace_function(give_zeros), "BLK-1"),
)
