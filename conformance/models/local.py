"""The bound of one step of a model: how far from exact an honest implementation may be on exactly these arguments.

Steps that are operations of their own have their operation's bound. A sum, a dropped array and a mean are bounded
here: one rounding for each, and gamma_n for a sum of n. log_softmax(x) = (x - m) - log(sum exp(x - m)), with m the
largest: the difference is off by u |x - m|; the sum by n u, and by what each exponential's argument and the exponential
itself are off, weighted by its share of the sum; the logarithm and the last difference round once each.

The bound of a step and that of its gradients, `<step>_vjp`, are one function where the gradients take the step's
arguments and a cotangent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import LOG, TANH, Approx, Precision, exact, round_output
from conformance.bounds.attention import EXP
from conformance.bounds.latent_attention import latent_attention
from conformance.bounds.layers import linear_gradients
from conformance.bounds.operations import bound_results, keep_factor
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.models.attention_bounds import attend as block_attention
from conformance.models.attention_bounds import linear as linear_approx
from specification.blocks import attention_options, windowed
from specification.checkpoints import flatten
from specification.configuration import AttentionLayer
from specification.dtypes import FLOATING
from specification.parameters import (
    FeedForward,
    GatedFeedForward,
    LatentAttention,
    Linear,
    MixtureOfExperts,
    MultiHeadAttention,
    Norm,
    mapped,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from specification.configuration import Configuration
    from specification.dropout import Dropout
    from specification.masks import Mask
    from specification.rotary import Rotation

Step = Callable[..., Any]


def cast(array: ArrayLike, dtype: str) -> Any:
    """In that dtype, where it is floating."""
    array = np.asarray(array)
    return array.astype(dtype) if str(array.dtype) in FLOATING else array


def case_of(
    dtype: str, operation: str, inputs: dict[str, Any], cotangent: np.ndarray | None = None, **options: Any
) -> Case:
    cast_inputs = {name: cast(array, dtype) for name, array in inputs.items() if array is not None}
    cotangents = {} if cotangent is None else {"output": cast(cotangent, dtype)}
    return Case(operation, dtype, cast_inputs, {k: v for k, v in options.items() if v is not None}, cotangents)


def projection_arrays(parameters: tuple[Any, ...], names: tuple[str, ...]) -> dict[str, Any]:
    """The arrays of projections, as cases name them."""
    found: dict[str, Any] = {}
    for name in names:
        projection = getattr(parameters, name)
        single = isinstance(projection, Linear)
        for head, part in enumerate([projection] if single else projection):
            place = name if single else f"{name}[{head}]"
            found |= {f"{place}.{field}": array for field, array in part._asdict().items() if array is not None}
    return found


# --- each kind of step ------------------------------------------------------------------------------------------------


def multi_head_attention(
    dtype: str, p: MultiHeadAttention, query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any
) -> Any:
    inputs = {"query": query, "key": key, "value": value}
    inputs |= projection_arrays(p, ("query", "key", "value", "output"))
    if options.get("dropout_keep") is None:
        options.pop("dropout_rate", None)
    return bound(case_of(dtype, "multi_head_attention", inputs, **options))["output"]


def gradient_bounds(p: Any, bounds: dict[str, Any]) -> Any:
    """The bounds of the gradients of a structure of parameters; 0 where a case has none, as of what only chooses."""
    names = iter(flatten(p))
    return mapped(lambda array: bounds.get(gradient_name(next(names)), np.zeros(array.shape)), p)


def mixture_of_experts(
    dtype: str, p: MixtureOfExperts, x: np.ndarray, configuration: Configuration, cotangent: np.ndarray | None
) -> Any:
    assert configuration.experts is not None  # a block has checked it
    options = asdict(configuration.experts) | {"activation": configuration.activation}
    bounds = bound(case_of(dtype, "mixture_of_experts", {"x": x} | flatten(p), cotangent, **options))
    return bounds["output"] if cotangent is None else (gradient_bounds(p, bounds), bounds[gradient_name("x")])


def transform(
    dtype: str,
    p: FeedForward | GatedFeedForward | MixtureOfExperts,
    x: np.ndarray,
    dropout: Dropout | None,
    configuration: Configuration,
    cotangent: np.ndarray | None = None,
) -> Any:
    if isinstance(p, MixtureOfExperts):
        return mixture_of_experts(dtype, p, x, configuration, cotangent)
    operation = "gated_feed_forward" if isinstance(p, GatedFeedForward) else "feed_forward"
    options = {} if dropout is None else {"dropout_keep": dropout.keep, "dropout_rate": dropout.rate}
    options["activation"] = configuration.activation
    bounds = bound(case_of(dtype, operation, {"x": x} | projection_arrays(p, p._fields), cotangent, **options))
    if cotangent is None:
        return bounds["output"]
    gradients = [
        Linear(*(bounds.get(gradient_name(f"{name}.{field}")) for field in Linear._fields)) for name in p._fields
    ]
    return type(p)(*gradients), bounds[gradient_name("x")]


def attend(
    dtype: str,
    p: MultiHeadAttention | LatentAttention,
    x: np.ndarray,
    memory: np.ndarray,
    mask: Mask | np.ndarray | None,
    dropout: Dropout | None,
    configuration: Configuration,
    layer: AttentionLayer = AttentionLayer(),
    bias: np.ndarray | None = None,
    rotation: Rotation | None = None,
    *,
    cotangent: np.ndarray | None = None,
) -> Any:
    """Of a latent attention, x and memory each have a part of the gradient; a part is off by no more than the sum."""
    if isinstance(p, MultiHeadAttention):
        return block_attention(
            dtype, p, x, memory, mask, dropout, configuration, layer, bias, rotation, cotangent=cotangent
        )
    assert layer.rotary is not None  # a block has checked it
    rotary = asdict(layer.rotary) | {"scaling": layer.rotary.scaling}
    inside = attention_options(x.shape[-1], windowed(mask, layer), dropout, configuration)
    options = {"rotary_width": rotary.pop("width"), "num_heads": configuration.num_heads, **rotary}
    options |= {"eps": configuration.latent_eps, "length": x.shape[1], "mask": inside["mask"], "scale": inside["scale"]}
    case, precision = (
        case_of(dtype, "latent_attention", {"x": x} | flatten(p), cotangent, **options),
        Precision.make(dtype),
    )
    keep = inside["dropout_keep"]
    factor = None if keep is None else keep_factor(keep, inside["dropout_rate"])
    bounds = bound_results(latent_attention(case, precision, factor=factor), case, precision)
    if cotangent is None:
        return bounds["output"]
    part = bounds[gradient_name("x")]
    return gradient_bounds(p, bounds), part, part, None


def normalize(
    dtype: str, p: Norm, x: np.ndarray, configuration: Configuration, cotangent: np.ndarray | None = None
) -> Any:
    inputs, options = {"x": x, "weight": p.weight, "bias": p.bias}, {"eps": configuration.norm_eps}
    operation = configuration.norm
    if operation == "rms_norm_plus_one":
        operation, options = "rms_norm", options | {"plus_one": True}
    bounds = bound(case_of(dtype, operation, inputs, cotangent, **options))
    if cotangent is None:
        return bounds["output"]
    return Norm(bounds[gradient_name("weight")], bounds.get(gradient_name("bias"))), bounds[gradient_name("x")]


def add(dtype: str, x: np.ndarray, y: np.ndarray) -> Any:
    p, total = Precision.make(dtype), np.asarray(x, float) + np.asarray(y, float)
    return round_output(Approx(total, p.inner * np.abs(total) + p.inner_tiny), p).error


def add_vjp(dtype: str, x: np.ndarray, y: np.ndarray, cotangent: np.ndarray) -> Any:
    return np.zeros(x.shape), np.zeros(y.shape) if y.ndim == x.ndim else batch_sum(dtype, cotangent)


def batch_sum(dtype: str, x: np.ndarray) -> Any:
    p = Precision.make(dtype)
    return round_output(Approx(np.sum(x, axis=0), p.gamma(x.shape[0]) * np.sum(np.abs(x), axis=0)), p).error


def drop(dtype: str, x: np.ndarray, dropout: Dropout | None) -> Any:
    if dropout is None:
        return np.zeros(np.shape(x))
    p = Precision.make(dtype)
    kept = np.where(dropout.keep, np.asarray(x, float) / (1 - dropout.rate), 0)
    return round_output(Approx(kept, 3 * p.inner * np.abs(kept)), p).error


def operation_step(operation: str, *inputs: str) -> Step:
    """Return the bound of a step that is an operation; of its first input's gradient, where there is a cotangent."""

    def error(dtype: str, *arguments: Any, **options: Any) -> Any:
        given = dict(zip((*inputs, "cotangent"), arguments, strict=False)) | options
        arrays = {name: given.pop(name) for name in inputs}
        bounds = bound(case_of(dtype, operation, arrays, **given))
        return bounds[gradient_name(inputs[0]) if "cotangent" in given else "output"]

    return error


def relative_position_bias_vjp(
    dtype: str, table: np.ndarray, query_length: int, key_length: int, cotangent: np.ndarray, **options: Any
) -> Any:
    options |= {"query_length": query_length, "key_length": key_length}
    return operation_step("relative_position_bias", "table")(dtype, table, cotangent, **options)


def shrink(dtype: str, x: np.ndarray) -> Any:
    """The root, its reciprocal and the product round."""
    p = Precision.make(dtype)
    value = np.abs(x) / math.sqrt(x.shape[-1])
    return round_output(Approx(value, 3 * p.inner * value + p.inner_tiny), p).error


def squeeze(dtype: str, x: np.ndarray, cap: float) -> Any:
    """Quotient and product round, each with a rounded cap; the slope is at most what the tangent's is nearby."""
    p = Precision.make(dtype)
    ratio = np.tanh(x / cap)
    off = 2 * p.inner * np.abs(x)
    value = cap * np.abs(ratio)
    slope = np.minimum(1, 1 - ratio**2 + 0.77 * off / cap)
    return round_output(Approx(value, slope * off + (TANH + 2) * p.inner * value + p.inner_tiny), p).error


def squeeze_vjp(dtype: str, x: np.ndarray, cap: float, cotangent: np.ndarray) -> Any:
    """The slope 1 - t^2 changes by at most 0.77 / cap for each unit of x."""
    p = Precision.make(dtype)
    slope, moved = 1 - np.tanh(x / cap) ** 2, 0.77 * 2 * p.inner * np.abs(x) / cap
    off = np.minimum(1, moved + (2 * TANH + 4) * p.inner)
    size = np.abs(cotangent) * (slope + off)
    return round_output(Approx(size, np.abs(cotangent) * off + 2 * p.inner * size + p.inner_tiny), p).error


def sinusoidal_positions(judged: str, length: int, width: int, **options: Any) -> Any:
    options |= {"length": length, "width": width, "dtype": judged}
    return bound(Case("sinusoidal_positions", judged, {}, options))["output"]


def linear(dtype: str, parameters: Linear, x: np.ndarray) -> Any:
    return linear_approx(parameters, exact(x), Precision.make(dtype)).error


def linear_vjp(dtype: str, parameters: Linear, x: np.ndarray, cotangent: np.ndarray) -> Any:
    p = Precision.make(dtype)
    found = linear_gradients(exact(x), exact(parameters.weight), exact(cotangent), p)
    x_bar, weight_bar, bias_bar = (round_output(approx, p).error for approx in found)
    return Linear(weight_bar, None if parameters.bias is None else bias_bar), x_bar


def pool(dtype: str, x: np.ndarray, pooling: str, keep: np.ndarray | None = None) -> Any:
    if pooling == "max":
        return np.zeros((x.shape[0], x.shape[2]))
    p = Precision.make(dtype)
    kept = np.ones(x.shape[:2], bool) if keep is None else np.asarray(keep)
    size = np.sum(np.where(kept[..., None], np.abs(x), 0), axis=1) / np.maximum(kept.sum(axis=1), 1)[:, None]
    return round_output(Approx(size, (p.gamma(x.shape[1]) + 2 * p.inner) * size), p).error


def log_softmax(dtype: str, x: np.ndarray) -> Any:
    p = Precision.make(dtype)
    shifted = x - np.max(x, axis=-1, keepdims=True)
    share = np.exp(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))
    of_sum = p.gamma(x.shape[-1]) + np.sum(share * (EXP + np.abs(shifted)), axis=-1, keepdims=True) * p.inner
    result = np.abs(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))
    error = p.inner * np.abs(shifted) + of_sum + p.inner * (result + LOG * math.log(max(x.shape[-1], 2)))
    return round_output(Approx(result, error), p).error


def log_softmax_vjp(dtype: str, x: np.ndarray, cotangent: np.ndarray) -> Any:
    """The share of a class is off by as much, relatively, as its logarithm is off; and the sum of the cotangents."""
    p = Precision.make(dtype)
    share = np.exp(x - np.max(x, axis=-1, keepdims=True))
    share = share / np.sum(share, axis=-1, keepdims=True)
    total = np.sum(np.abs(cotangent), axis=-1, keepdims=True)
    relative = log_softmax(dtype, x) + (EXP + 2) * p.inner + p.gamma(x.shape[-1])
    return round_output(
        Approx(cotangent, relative * share * total + 2 * p.inner * (np.abs(cotangent) + share * total)), p
    ).error


COPIED: dict[str, Callable[..., tuple[int, ...]]] = {
    "learned_positions": lambda table, length, **_: (length, table.shape[1]),
    "learned_positions_vjp": lambda table, length, cotangent, **_: table.shape,
    "relative_position_bias": lambda table, queries, keys, **_: (1, table.shape[1], queries, keys),
    "patches": lambda images, size: (
        images.shape[0], images.shape[2] // size * (images.shape[3] // size), images.shape[1] * size * size
    ),
    "patches_vjp": lambda images, size, cotangent: images.shape,
    "prepend": lambda row, x: (x.shape[0], x.shape[1] + 1, x.shape[2]),
}  # fmt: skip
"""Steps that copy numbers, so that their bound is 0: from their arguments to the shape of the result."""

LOCAL: dict[str, Step] = {
    step.__name__: step
    for step in (
        attend, multi_head_attention, transform, normalize, add, add_vjp, drop, sinusoidal_positions, linear,
        linear_vjp, pool, log_softmax, log_softmax_vjp, relative_position_bias_vjp, shrink, squeeze, squeeze_vjp,
    )
}  # fmt: skip
"""By the name of the step; called with the dtype and the step's own arguments."""
LOCAL |= {"attend_vjp": attend, "transform_vjp": transform, "normalize_vjp": normalize, "accumulate": add}
LOCAL |= {
    "drop_vjp": lambda dtype, x, dropout, cotangent: drop(dtype, cotangent, dropout),
    "pool_vjp": lambda dtype, x, pooling, keep, cotangent: np.broadcast_to(
        2 * Precision.make(dtype).inner * np.abs(cotangent)[:, None], x.shape
    ),
    "prepend_vjp": lambda dtype, row, x, cotangent: (batch_sum(dtype, cotangent[:, 0]), np.zeros(x.shape)),
    "shrink_vjp": lambda dtype, x, cotangent: shrink(dtype, cotangent),
    # Of what lies inside a step: see `inside.py`.
    "piece": lambda dtype, own, functions, settings, *arrays: own.bound(dtype, settings, *arrays),
}
LOCAL |= dict.fromkeys(("embedding", "embedding_vjp"), operation_step("embedding", "table", "ids"))
LOCAL |= dict.fromkeys(("cross_entropy", "cross_entropy_vjp"), operation_step("cross_entropy", "logits", "targets"))
LOCAL |= dict.fromkeys(("nll_loss", "nll_loss_vjp"), operation_step("nll_loss", "log_probabilities", "targets"))


def local_bound(step: str, dtype: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """In the structure of the step's result."""
    if step in COPIED:
        return np.zeros(COPIED[step](*arguments, **keywords))
    with np.errstate(all="ignore"):
        return LOCAL[step](dtype, *arguments, **keywords)
