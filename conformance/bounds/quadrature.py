"""For whole cases of attention and multi-head attention: every result's error in quadrature (`noise.py`)."""

from __future__ import annotations

import numpy as np

from conformance.bounds import sampling
from conformance.bounds.arithmetic import Approx, Precision, exact
from conformance.bounds.noise import Noise, Samples
from conformance.bounds.reading import allowed_of, dropout_factor, pairs, separated
from conformance.cases import Case
from conformance.spreading import gradient_name, heads_of, joined

Errors = dict[str, np.ndarray]
"""By the names of results and gradients; empty where errors are too large to be taken in quadrature."""


def tightened(results: dict[str, Approx], errors: Errors) -> dict[str, Approx]:
    """The smaller bound of each number."""
    return {
        name: Approx(worst.value, np.fmin(worst.error, errors[name])) if name in errors else worst
        for name, worst in results.items()
    }


def problem_of(case: Case, shape: tuple[int, int, int, int], groups: int, width: int) -> sampling.Problem:
    allowed, scale, bias = allowed_of(case, shape), case.options.get("scale"), pairs(case.inputs.get("bias"))
    empty = ~np.any(allowed, axis=-1, keepdims=True)
    return sampling.Problem(
        allowed,
        dropout_factor(case, shape),
        empty & (case.options.get("empty_rows", "zero") == "mean"),
        groups,
        1 / np.sqrt(width) if scale is None else float(scale),
        case.options.get("softcap"),
        None if bias is None else exact(np.where(np.isfinite(bias.value), bias.value, 0)),
        exact(case.inputs["sinks"]) if "sinks" in case.inputs else None,
    )


def bias_gradient(case: Case, scores_bar: Samples, noise: Noise) -> Samples:
    """Summed over what the bias was broadcast to."""
    shape = case.inputs["bias"].shape
    full = shape if len(shape) == 4 else (1, 1, *shape)
    axes = tuple(1 + axis for axis in (0, 1) if full[axis] == 1)
    n = int(np.prod([scores_bar.shape[axis] for axis in axes]))
    total = scores_bar.sum(axis=axes, keepdims=True)
    if n > 1:
        total = noise.add(total, noise.p.gamma(n) * np.abs(scores_bar[:1]).sum(axis=axes, keepdims=True)[0])
    return total.reshape(-1, *shape)


def attention(case: Case, p: Precision) -> Errors:
    """Of the output and of all gradients."""
    noise = Noise(p)
    query, key, value = (exact(case.inputs[name]).value[None] for name in ("query", "key", "value"))
    shape = (*query.shape[1:4], key.shape[3])
    problem = problem_of(case, shape, key.shape[2], query.shape[-1])
    forward = sampling.forward(problem, query, key, value, noise)
    if not sampling.nearly_linear(forward):
        return {}
    errors = {"output": noise.bound(forward.output)}
    if case.cotangents:
        bar = exact(case.cotangents["output"]).value[None]
        gradients = sampling.backward(problem, forward, bar, noise)
        if "bias" in case.inputs:
            gradients["bias"] = bias_gradient(case, gradients["bias"], noise)
        errors |= {gradient_name(n): noise.bound(g) for n, g in gradients.items() if n in case.inputs}
    return errors


def split(x: Samples, heads: int) -> Samples:
    return x.reshape(*x.shape[:3], heads, -1).swapaxes(2, 3)


def concatenated(x: Samples) -> Samples:
    return x.swapaxes(2, 3).reshape(x.shape[0], x.shape[1], x.shape[3], -1)


def multi_head_attention(case: Case, p: Precision) -> Errors:
    """Projections, attention and the last projection, each result rounded to the inputs' dtype in between."""
    noise, counts = Noise(p), heads_of(case)
    inputs = {name: exact(array).value for name, array in joined(case.inputs).items()}
    heads = {
        name: split(
            noise.stored(noise.linear(inputs[name][None], inputs[f"{name}.weight"], inputs.get(f"{name}.bias"))), n
        )
        for name, n in counts.items()
    }
    shape = (*heads["query"].shape[1:4], heads["key"].shape[3])
    problem = problem_of(case, shape, counts["key"], heads["query"].shape[-1])
    forward = sampling.forward(problem, heads["query"], heads["key"], heads["value"], noise)
    if not sampling.nearly_linear(forward):
        return {}
    attended = concatenated(noise.stored(forward.output))
    output = noise.linear(attended, inputs["output.weight"], inputs.get("output.bias"))
    errors = {"output": noise.bound(output)}
    if case.cotangents:
        gradients = multi_head_gradients(case, problem, forward, attended, inputs, noise)
        named = separated({n: Approx(g[0], noise.bound(g)) for n, g in gradients.items()}, case)
        errors |= {gradient_name(n): g.error for n, g in named.items() if n in case.inputs}
    return errors


def multi_head_gradients(
    case: Case,
    problem: sampling.Problem,
    forward: sampling.Forward,
    attended: Samples,
    inputs: dict[str, np.ndarray],
    noise: Noise,
) -> dict[str, Samples]:
    bar, counts = exact(case.cotangents["output"]).value[None], heads_of(case)
    gradients: dict[str, Samples] = {}
    attended_bar, gradients["output.weight"], gradients["output.bias"] = noise.linear_gradients(
        attended, inputs["output.weight"], bar
    )
    inner = sampling.backward(problem, forward, split(noise.stored(attended_bar), counts["query"]), noise)
    if "sinks" in inner:
        gradients["sinks"] = inner["sinks"]
    if "bias" in case.inputs:
        gradients["bias"] = bias_gradient(case, inner["bias"], noise)
    for name in counts:
        projected_bar = concatenated(noise.stored(inner[name]))
        gradients[name], gradients[f"{name}.weight"], gradients[f"{name}.bias"] = noise.linear_gradients(
            inputs[name][None], inputs[f"{name}.weight"], projected_bar
        )
    return gradients


OPERATIONS = {"attention": attention, "multi_head_attention": multi_head_attention}
