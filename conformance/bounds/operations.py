"""`bound(case)`: the derived bounds of every result and gradient of a case, by operation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import numpy as np

from conformance.bounds import attention as att
from conformance.bounds import layer_norm as norm
from conformance.bounds import layers
from conformance.bounds.arithmetic import Approx, Precision, add, exact, map_approx, round_output
from conformance.cases.arguments import alibi, expected_dtype, gradient_name, replace_kernel_arguments
from conformance.cases.case import Case, heads_and_keys, heads_of, join_projections, logsumexp_alone, output_alone
from conformance.cases.expectations import allowed_pairs
from conformance.cases.facts import operation_facts
from conformance.cases.features import has_masks
from conformance.cases.signatures import default
from specification.dtypes import FLOATING, HALF

Bounds = dict[str, np.ndarray]


def bound(case: Case) -> Bounds:
    """The largest admissible |got - exact| for every element of every result, and of every gradient asked for."""
    p = Precision.make(case.dtype, case.rounding)
    case = replace(case, cotangents=replace_kernel_arguments(case).cotangents)
    with np.errstate(all="ignore"):
        return bound_results(approximate(case, p), case, p)


def approximate(case: Case, p: Precision) -> dict[str, Approx]:
    """The value and the error bound of every result and every gradient that a case asks for, before results are rounded
    to the dtype of the case, which `bound` adds."""
    approximations: dict[str, Approx] = resolve_name(f"conformance.bounds.{BOUNDS[case.operation]}")(case, p)
    return approximations


def bound_results(approximations: Mapping[str, Approx], case: Case, p: Precision) -> Bounds:
    return {name: result_bound(name, approx, case, p) for name, approx in approximations.items()}


def result_bound(name: str, approx: Approx, case: Case, p: Precision) -> np.ndarray:
    """Rounded to the dtype of the result, which for log-sum-exps is the wider one and for gradients the argument's."""
    record = operation_facts(case.operation)
    if record.copies and not np.any(approx.error):
        return approx.error  # copied, not computed
    dtype = expected_dtype(name, case)
    if dtype not in FLOATING:
        return approx.error  # a whole number
    here = Precision(p.inner, p.inner_tiny, *(getattr(Precision.make(dtype), f) for f in ("output", "output_tiny")))
    error = round_output(approx, here).error
    # The oracle is itself rounded to float64 when the definition serves as oracle.
    error = error + 2.0**-46 * np.abs(approx.value) if case.dtype != "float64" else error
    error = np.where(np.isnan(error), np.inf, error)
    return error if record.copied is None else np.where(record.copied(case, name), 0, error)


# --- attention --------------------------------------------------------------------------------------------------------


def grows_with_scores(case: Case, name: str) -> bool:
    """Whether the error of this result grows with the scores by what the subject declares: of a gradient from a saved
    log-sum-exp, of all results from those of several parts that are merged, and from rounded scores."""
    if not has_masks(case.operation):
        return False
    p, (_, _, _, keys) = Precision.make(case.dtype, case.rounding), heads_and_keys(case)
    saved = "saved" in p.declared and name in map(gradient_name, case.inputs)
    return saved or p.scores is not None or att.merges_of(keys, "sinks" in case.inputs, p) > 0


KINDS = {"attention_weights": "weights", "attention_logsumexp": "logsumexp"}


def attend(
    case: Case, query: Approx, key: Approx, value: Approx | None, cotangent: Approx | None, p: Precision
) -> tuple[Approx, dict[str, Approx]]:
    """The result, and with a cotangent the gradients."""
    shape = (*query.value.shape[:3], key.value.shape[2])
    return att.attention(
        KINDS.get(case.operation, "output"),
        query,
        key,
        value,
        allowed_pairs(case, shape),
        cotangent,
        bias=bias_of(case, shape, p),
        scale=case.options.get("scale"),
        softcap=case.options.get("softcap"),
        sinks=exact(case.inputs["sinks"]) if "sinks" in case.inputs else None,
        factor=dropout_factor(case),
        empty_rows=case.options.get("empty_rows", "zero"),
        p=p,
    )


def name_gradients(case: Case, gradients: dict[str, Approx]) -> dict[str, Approx]:
    """Gradients of what the case holds, the bias's in its own shape."""
    if "bias" in gradients and "bias" in case.inputs:
        gradients["bias"] = gradients["bias"].reshape(*case.inputs["bias"].shape)
    return {gradient_name(name): g for name, g in gradients.items() if name in case.inputs}


def attention(case: Case, p: Precision) -> dict[str, Approx]:
    if case.with_logsumexp:
        return bound_both_results(case, p)
    query, key = exact(case.inputs["query"]), exact(case.inputs["key"])
    value = exact(case.inputs["value"]) if "value" in case.inputs else None
    cotangent = exact(case.cotangents["output"]) if case.cotangents else None
    result, gradients = attend(case, query, key, value, cotangent, p)
    return {"output": result} | name_gradients(case, gradients)


def bound_both_results(case: Case, p: Precision) -> dict[str, Approx]:
    """Output and log-sum-exp of one call, and their gradients.

    The gradients are those of either result, added: S_bar = P (P_bar - mean) + P L_bar, and everything after it is
    linear in S_bar. So every rounding error is at most the sum of those of the two terms, in whichever order they are
    added. The sum is rounded to the inputs' dtype once.
    """
    output, logsumexp = attention(output_alone(case), p), attention(logsumexp_alone(case), p)
    sums = {name: add(output[name], x, p) for name, x in logsumexp.items() if name != "output"}
    return output | sums | {"logsumexp": logsumexp["output"]}


def merge_attention(case: Case, p: Precision) -> dict[str, Approx]:
    count = sum(name.startswith("outputs[") for name in case.inputs)
    outputs = [exact(case.inputs[f"outputs[{i}]"]) for i in range(count)]
    logsumexps = [exact(case.inputs[f"logsumexps[{i}]"]) for i in range(count)]
    p = p.default_precision  # what is merged are no attention weights
    rows, values, results = merge(outputs, logsumexps, p)
    if not case.cotangents:
        return results
    shape = outputs[0].value.shape
    n = int(np.prod(shape[:3]))
    bar = exact(case.cotangents["output"].reshape(n, 1, 1, shape[-1]))
    logsumexp_bar = exact(case.cotangents["logsumexp"].reshape(n, 1, 1, 1))
    weights = att.weights_approx(rows, p)
    weights_bar = att.matmul(bar, att.transpose(values), p)
    scores_bar, _ = att.softmax_gradient(rows, weights, weights_bar, logsumexp_bar, None, p)
    for i in range(count):
        part = att.multiply(weights.select((..., slice(i, i + 1))), bar, p)
        results[gradient_name(f"outputs[{i}]")] = part.reshape(*shape)
        results[gradient_name(f"logsumexps[{i}]")] = scores_bar.select((..., i)).reshape(*shape[:3])
    return results


def merge(
    outputs: Sequence[Approx], logsumexps: Sequence[Approx], p: Precision
) -> tuple[att.Rows, Approx, dict[str, Approx]]:
    """Attention of one query over the parts: their log-sum-exps are its scores, their outputs its values."""
    shape, count = outputs[0].value.shape, len(outputs)
    rows = int(np.prod(shape[:3]))  # every (b, h, q) becomes a batch element of its own
    scores = stack_parts([x.reshape(rows, 1, 1) for x in logsumexps], axis=-1)
    values = stack_parts([x.reshape(rows, 1, shape[-1]) for x in outputs], axis=-2)
    allowed = scores.value != -np.inf
    value, error = np.where(allowed, scores.value, 0), np.where(allowed, scores.error, 0)
    # exp(part - whole) rounds both, and merging one part after the other does so every time.
    whole = np.max(np.abs(value) + error, axis=-1, keepdims=True) + np.log(count)
    rounded = 2 * p.inner * count * (np.abs(value) + error + whole)
    softmax = att.softmax_rows(Approx(value, error + rounded), None, allowed, None, p)
    output = att.weighted_mean(softmax, values, None, p)
    # Merged one after the other, the weights exp(part - running log-sum-exp) need not add up to 1: what the running
    # log-sum-exps are off by on their own account, and each step's exponential, is common to a row and does not cancel.
    alone = att.softmax_rows(Approx(value, rounded), None, allowed, None, p)
    common = att.logsumexp_approx(alone, p).error[..., 0] + (count - 1) * (att.EXP + 3) * p.inner
    output = Approx(output.value, output.error + att.product(common[..., None], np.abs(output.value)))
    results = {
        "output": output.reshape(*shape),
        "logsumexp": att.logsumexp_approx(softmax, p).reshape(*shape[:3]),
    }
    return softmax, values, results


def stack_parts(parts: Sequence[Approx], axis: int) -> Approx:
    return Approx(np.stack([x.value for x in parts], axis), np.stack([x.error for x in parts], axis))


def merged_bound(parts: Sequence[Case]) -> Bounds:
    """The bounds of attention over parts of the keys, then merged: the parts' own errors, carried through the merge."""
    p = Precision.make(parts[0].dtype, parts[0].rounding)
    like = replace(parts[0], operation="merge_attention")
    with np.errstate(all="ignore"):
        outputs = [round_output(attention(replace(part, operation="attention"), p)["output"], p) for part in parts]
        logsumexps = [attention(replace(part, operation="attention_logsumexp"), p)["output"] for part in parts]
        _, _, results = merge(outputs, logsumexps, p.default_precision)
        return bound_results(results, like, p)


def multi_head_attention(case: Case, p: Precision) -> dict[str, Approx]:
    """Projections, attention and the last projection, each result rounded to the inputs' dtype in between."""
    inputs = {name: exact(array) for name, array in join_projections(case.inputs).items()}
    counts = heads_of(case)
    heads = {}
    for name, count in counts.items():
        projected = layers.linear(inputs[name], inputs[f"{name}.weight"], inputs.get(f"{name}.bias"), p)
        heads[name] = split_heads(round_output(projected, p), count)
    cotangent = exact(case.cotangents["output"]) if case.cotangents else None
    bar = None
    if cotangent is not None:
        output_bar = layers.input_gradient(inputs["output.weight"], cotangent, p)
        bar = split_heads(round_output(output_bar, p), counts["query"])
    forward, inner = attend(case, heads["query"], heads["key"], heads["value"], bar, p)
    output = concatenate_heads(round_output(forward, p))
    results = {"output": layers.linear(output, inputs["output.weight"], inputs.get("output.bias"), p)}
    if cotangent is None:
        return results
    gradients = {name: inner[name] for name in ("bias", "sinks") if name in inner}
    gradients["output.weight"], gradients["output.bias"] = layers.parameter_gradients(output, cotangent, p)
    for name in counts:
        projected_bar = concatenate_heads(round_output(inner[name], p))
        gradients[name], gradients[f"{name}.weight"], gradients[f"{name}.bias"] = layers.linear_gradients(
            inputs[name], inputs[f"{name}.weight"], projected_bar, p
        )
    return results | name_gradients(case, separate_heads(gradients, case))


# --- the layers around it ---------------------------------------------------------------------------------------------


def layer_norm(case: Case, p: Precision) -> dict[str, Approx]:
    x, weight = np.asarray(case.inputs["x"], float), np.asarray(case.inputs["weight"], float)
    bias = np.asarray(case.inputs["bias"], float).reshape(-1) if "bias" in case.inputs else None
    eps = case.options.get("eps", 1e-5)
    flat = x.reshape(-1, weight.size)
    weight_of = norm.multiplier(weight.reshape(-1), case.options.get("plus_one", False), p)
    output = norm.forward(case.operation, flat, weight_of, bias, eps, p)
    results = {"output": output.reshape(*x.shape)}
    if not case.cotangents:
        return results
    cotangent = np.asarray(case.cotangents["output"], float).reshape(flat.shape)
    gradients = norm.gradients(case.operation, flat, weight_of, cotangent, eps, p)
    shapes = {"x": x.shape, "weight": weight.shape, "bias": weight.shape}
    for name, gradient in gradients.items():
        if name in case.inputs:
            results[gradient_name(name)] = gradient.reshape(*shapes[name])
    return results


def feed_forward(case: Case, p: Precision, **steps: Callable[[Approx], Approx]) -> dict[str, Approx]:
    """Of both networks. steps: the rounding between them, of the gated one."""
    keep = case.options.get("dropout_keep")
    factor = 1.0 if keep is None else keep_factor(keep, case.options["dropout_rate"])
    name = case.options.get("activation", default(case.operation, "activation"))
    cotangent = case.cotangents.get("output")
    inputs = {key: np.asarray(array, float) for key, array in case.inputs.items()}
    network: Any = layers.gated_feed_forward if "gate.weight" in inputs else layers.feed_forward
    results = network(inputs, cotangent, name, factor, p, lambda x: round_output(x, p), **steps)
    return {
        (key if key == "output" else gradient_name(key)): approx
        for key, approx in results.items()
        if key == "output" or key in case.inputs
    }


BOUNDS = {
    "attention": "operations:attention",
    "attention_weights": "operations:attention",
    "attention_logsumexp": "operations:attention",
    "merge_attention": "operations:merge_attention",
    "multi_head_attention": "operations:multi_head_attention",
    "latent_attention": "latent_attention:latent_attention",
    "layer_norm": "operations:layer_norm",
    "rms_norm": "operations:layer_norm",
    "standard_deviation_norm": "operations:layer_norm",
    "feed_forward": "operations:feed_forward",
    "gated_feed_forward": "operations:feed_forward",
    "mixture_of_experts": "experts:mixture_of_experts",
    "route": "experts:route",
    "load_balancing_loss": "experts:load_balancing_loss",
    "router_z_loss": "experts:router_z_loss",
    "embedding": "positions:lookup",
    "learned_positions": "positions:lookup",
    "sinusoidal_positions": "positions:sinusoidal_positions",
    "alibi_bias": "positions:alibi_bias",
    "relative_position_bias": "positions:relative_position_bias",
    "adam_step": "optimizers:adam_step",
    "clip_by_global_norm": "optimizers:clip_by_global_norm",
    "cross_entropy": "losses:cross_entropy",
    "nll_loss": "losses:nll_loss",
    "rotary_embedding": "rotary:rotary_embedding",
    "rotary_frequencies": "rotary:rotary_frequencies",
    "sgd_step": "optimizers:sgd_step",
    "silu": "layers:silu",
}
"""Where the function of each operation stands in this folder; a file is loaded with the first case that needs it."""


# --- what bounds of attention read from a case ------------------------------------------------------------------------


SLOPE = 8
"""Roundings of ALiBi's bias: the slope times the distance; the slope over the scale, or times log2(e), and back."""


def bias_of(case: Case, shape: tuple[int, int, int, int], p: Precision) -> Approx | None:
    """A bias as [B or 1, H or 1, Q, K]. ALiBi's is computed from its slopes."""
    if "alibi_slopes" in case.inputs:
        value = alibi(case.inputs["alibi_slopes"], *shape[2:])
        return Approx(value, p.gamma(SLOPE) * np.abs(value))
    return pairs(case.inputs.get("bias"))


def pairs(array: np.ndarray | None) -> Approx | None:
    """A bias as [B or 1, H or 1, Q, K]."""
    return None if array is None else exact(array if array.ndim == 4 else array[None, None])


def keep_factor(keep: np.ndarray, rate: float) -> np.ndarray:
    """What dropout multiplies with."""
    return np.where(keep, 1 / (1 - rate), 0.0)


def dropout_factor(case: Case) -> np.ndarray | None:
    """What dropout multiplies each weight with, [B, H, Q, K]; None without dropout."""
    keep = case.options.get("dropout_keep")
    return None if keep is None else keep_factor(keep, case.options["dropout_rate"])


def separate_heads(gradients: dict[str, Approx], case: Case) -> dict[str, Approx]:
    """Gradients of fused projections cut up again into those of per-head ones, where the case has those."""
    result = dict(gradients)
    for name in ("query", "key", "value"):
        start, head = 0, 0
        while f"{name}[{head}].weight" in case.inputs:
            stop = start + case.inputs[f"{name}[{head}].weight"].shape[1]
            for part in ("weight", "bias"):
                columns = gradients[f"{name}.{part}"].select((..., slice(start, stop)))
                result[f"{name}[{head}].{part}"] = columns
            start, head = stop, head + 1
    return result


def split_heads(x: Approx, heads: int) -> Approx:
    """[B, T, heads * W] as [B, heads, T, W]."""
    return map_approx(x, lambda a: a.reshape(*a.shape[:2], heads, a.shape[2] // heads).swapaxes(1, 2))


def concatenate_heads(x: Approx) -> Approx:
    """[B, heads, T, W] as [B, T, heads * W]."""
    return map_approx(x, lambda a: a.swapaxes(1, 2).reshape(a.shape[0], a.shape[2], a.shape[1] * a.shape[3]))


# --- below `strict` ---------------------------------------------------------------------------------------------------

RELAXED = (
    *("gated_feed_forward", "mixture_of_experts", "latent_attention", "adam_step", "cross_entropy"),
    *("rotary_embedding", "silu"),
)
"""Operations that have bounds of their own there, in `relaxed.py`. Of others the weights of 16-bit inputs may be
rounded to the inputs' dtype before they are multiplied: the bound is that of a subject that declares weights=inputs."""


def weights_in_inputs(case: Case) -> Case | None:
    """The case of a subject that rounds the weights to the inputs' 16 bits; None where that allows nothing more."""
    if case.dtype not in HALF or not operation_facts(case.operation).masked or "weights" in case.rounding:
        return None
    return replace(case, rounding={**case.rounding, "weights": case.dtype})


def relaxed_bound(case: Case) -> Bounds | None:
    """The bounds below `strict`; None where they are those of `bound`."""
    if case.operation in RELAXED:
        relaxed: Bounds = getattr(importlib.import_module("conformance.bounds.relaxed"), case.operation)(case)
        return relaxed
    rounded = weights_in_inputs(case)
    return None if rounded is None else bound(rounded)


def relaxed_merged_bound(parts: list[Case]) -> Bounds | None:
    """As `relaxed_bound`, for attention over parts of the keys that are then merged."""
    rounded = [weights_in_inputs(part) for part in parts]
    return None if None in rounded else merged_bound([part for part in rounded if part is not None])
