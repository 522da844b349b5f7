"""Planted faults: small wrong edits of the definition, each with the rule whose probes must catch it.

A fault is a piece of source text and what stands in its place. `planted` writes a copy of `reference_numpy` under
another name with that one edit, so the definition that serves as oracle stays as it is.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import reference_numpy


class Fault(NamedTuple):
    """In `file`, `old` (which must occur exactly once) becomes `new`; `rule` must notice."""

    rule: str
    name: str
    file: str
    old: str
    new: str


FAULTS = (
    Fault("MASK-1", "dense masks inverted", "masks.py", "return dense[:, :, rows, :]", "return ~dense[:, :, rows, :]"),
    Fault("MASK-2", "segments by order, not equality", "masks.py", "rows, None] == mask.key_ids", "rows, None] >= mask.key_ids"),
    Fault("MASK-3", "causal off by one", "masks.py", "keys <= queries + per_batch(mask.offset)", "keys < queries + per_batch(mask.offset)"),
    Fault("MASK-3", "offset ignored", "masks.py", "keys <= queries + per_batch(mask.offset)", "keys <= queries"),
    Fault("MASK-4", "left bound exclusive", "masks.py", "distance >= -per_batch(mask.left)", "distance > -per_batch(mask.left)"),
    Fault("MASK-4", "window not moved by the offset", "masks.py", "keys - (queries + per_batch(mask.offset))", "keys - queries"),
    Fault("MASK-5", "masks not checked", "masks.py", "    checks.mask(mask, query_length, key_length, batch, heads)\n", ""),
    Fault("MASK-5", "lengths not checked", "masks.py", "    checks.mask_values(mask, key_length, np.asarray)\n", ""),
    Fault("MASK-6", "and taken for or", "masks.py", "return left & right if", "return left | right if"),
    Fault("MASK-7", "zero weights times hidden NaN", "attention_steps.py", "weights @ np.where(finite, values, 0)", "weights @ values"),
    Fault("MASK-7", "hidden NaN in a gradient", "attention_steps_vjp.py", "allowed_sum(cotangent, key, allowed)", "(cotangent @ key)"),
    Fault("ATT-1", "scale by D + 1", "attention_steps.py", "1 / math.sqrt(width) if", "1 / math.sqrt(width + 1) if"),
    Fault("ATT-1", "negative scale taken as positive", "attention_steps.py", "else float(scale)", "else abs(float(scale))"),
    Fault("ATT-2", "softcap without its division", "attention_steps.py", "np.tanh(scores / float(softcap))", "np.tanh(scores)"),
    Fault("ATT-2", "no slope of the softcap", "attention_steps_vjp.py", "cotangent * slope, 0)", "cotangent, 0)"),
    Fault("ATT-3", "bias of head 0 for every head", "attention_steps.py", "np.where(allowed, bias, 0)", "np.where(allowed, bias[:, :1], 0)"),
    Fault("ATT-3", "bias inside the softcap", "attention_steps.py",
          "    scores = pair_products(query, key, allowed) * resolve_scale(scale, query.shape[-1])\n",
          "    scores = pair_products(query, key, allowed) * resolve_scale(scale, query.shape[-1])\n"
          "    scores, bias = (scores if bias is None else scores + np.where(allowed, bias, 0)), None\n"),
    Fault("ATT-4", "forbidden scores filled with -1e9", "attention_steps.py",
          "    allowed = np.broadcast_to(allowed, scores.shape)\n    maximum",
          "    scores = np.where(allowed, scores, -1e9).astype(scores.dtype)\n"
          "    allowed = np.ones(scores.shape, bool)\n    maximum"),
    Fault("ATT-5", "sink left out of the denominator", "attention_steps.py",
          "total = total + np.exp(sinks[:, None, None] - maximum)", "total = total + 0"),
    Fault("ATT-5", "exp off by 2e-5", "attention_steps.py", "np.exp(np.where(allowed, scores - maximum, -np.inf))",
          "np.exp(np.where(allowed, (scores - maximum) * np.float32(1.00002), -np.inf)).astype(scores.dtype)"),
    Fault("ATT-6", "empty rows as the mean", "attention_steps.py", 'if empty_rows == "zero":', 'if empty_rows == "never":'),
    Fault("ATT-6", "log-sum-exp of an empty row 0", "attention_steps.py", "np.log(total))[..., 0]",
          "np.log(np.where(total == 0, 1, total)))[..., 0]"),
    Fault("ATT-7", "heads tiled, not repeated", "attention_steps.py",
          "np.repeat(array, num_heads // max(array.shape[1], 1), axis=1)",
          "np.tile(array, (1, num_heads // max(array.shape[1], 1), 1, 1))"),
    Fault("ATT-7", "gradients of one head of a group", "attention_steps_vjp.py", "K, W).sum(axis=2)", "K, W)[:, :, 0]"),
    Fault("ATT-8", "no keys", "attention_steps.py", "max(batch * heads * keys, 1)", "(batch * heads * keys)"),
    Fault("ATT-8", "the last rows of a long block", "attention_steps.py", "range(0, queries, size)", "range(0, queries - 1, size)"),
    Fault("ATT-9", "computed in the inputs' dtype", "dtypes.py", "array.astype(compute_dtype_name(dtype_name(array)))",
          "array.copy()"),
    Fault("ATT-9", "result wider than the inputs", "attention.py", "return output.astype(query.dtype)", "return output"),
    Fault("ATT-10", "NaN swallowed", "attention_steps.py", "    if not finite.all():", "    if False:"),
    Fault("ATT-10", "no maximum subtracted", "attention_steps.py", "np.where(maximum == -np.inf, 0, maximum)", "0 * maximum"),
    Fault("ATT-11", "not divided by 1 - rate", "attention_steps.py", "np.where(keep, 1 / (1 - float(rate)), 0.0)", "np.where(keep, 1.0, 0.0)"),
    Fault("ATT-12", "no mean in the softmax's gradient", "attention_steps_vjp.py", "(weights_cotangent - mean + logsumexp",
          "(weights_cotangent + logsumexp"),
    Fault("ATT-12", "sinks' gradient with the wrong sign", "attention_steps_vjp.py", "(cotangent - mean), axis=(0, 2)", "(cotangent + mean), axis=(0, 2)"),
    Fault("ATT-12", "bias gradient through the softcap's slope", "attention_steps_vjp.py", "    turned = np.swapaxes(allowed, -1, -2)\n",
          "    turned = np.swapaxes(allowed, -1, -2)\n    bias_gradient = cotangent\n"),
    Fault("ATT-13", "one buffer for all results", "attention.py", "    return output.astype(query.dtype)\n",
          "    buffer = attention.__dict__.setdefault((output.shape, query.dtype.name), output.astype(query.dtype))\n"
          "    buffer[...] = output\n    return buffer\n"),
    Fault("ATT-13", "query changed in place", "attention.py", "    output, _ = reference_attention(\n",
          "    query *= query.dtype.type(2)\n    output, _ = reference_attention(\n"),
    Fault("ATT-14", "log-sum-exp without the maximum", "attention_steps.py", "(maximum + np.log(total))", "np.log(total)"),
    Fault("ATT-14", "merge by plain averages", "attention.py", "softmax(np.where(seen, scores, 0), seen)", "softmax(0 * np.where(seen, scores, 0), seen)"),
    Fault("MHA-1", "heads interleaved", "multi_head_attention.py", "x.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)",
          "x.reshape(B, T, width // num_heads, num_heads).transpose(0, 3, 1, 2)"),
    Fault("MHA-1", "output bias forgotten", "multi_head_attention_vjp.py", "rows.sum(axis=0).astype", "(0 * rows.sum(axis=0)).astype"),
    Fault("MHA-2", "heads joined in reverse", "multi_head_attention.py", "[head.weight for head in projections]", "[head.weight for head in projections[::-1]]"),
    Fault("MLA-1", "rotated key of the latent's columns", "latent_attention.py", "take_columns(down, weight.shape[0], down.shape[-1])",
          "take_columns(down, 0, down.shape[-1] - weight.shape[0])"),
    Fault("MLA-1", "the first columns of a query rotated", "latent_attention.py", "rotate(take_columns(queries, width, queries.shape[-1])",
          "rotate(take_columns(queries, 0, queries.shape[-1] - width)"),
    Fault("MLA-2", "scale of the latents' width", "latent_attention.py", "sums = attention(queries, append_columns(latents, keys), latents, scale=scale, **options)",
          "sums = attention(queries, append_columns(latents, keys), latents, **options)"),
    Fault("MLA-2", "the gradient of the keys' weights lost", "latent_attention_vjp.py", "gradient[..., :width] = cotangent", "gradient[..., :width] = 0 * cotangent"),
    Fault("NORM-1", "unbiased variance", "layer_norm_steps.py", "variance = np.mean(deviation**2, axis=axes, keepdims=True)",
          "variance = np.sum(deviation**2, axis=axes, keepdims=True) / max(weight.size - 1, 1)"),
    Fault("NORM-1", "eps outside the root", "layer_norm_steps.py", "np.sqrt(variance + float(eps))", "(np.sqrt(variance) + float(eps))"),
    Fault("NORM-1", "another default eps", "layer_norm.py", "eps: float = 1e-5", "eps: float = 1e-6"),
    Fault("NORM-2", "rounded before the affine step", "layer_norm_steps.py", "    output = normalized * widen(weight)\n",
          "    output = widen(normalized.astype(weight.dtype)) * widen(weight)\n"),
    Fault("NORM-3", "deviations from a rounded mean", "layer_norm_steps.py",
          "return deviation - np.mean(deviation, axis=axes, keepdims=True)",
          "return x - np.mean(x, axis=axes, keepdims=True)"),
    Fault("NORM-4", "mean of squares less square of mean", "layer_norm_steps.py", "variance = np.mean(deviation**2, axis=axes, keepdims=True)",
          "variance = np.mean(widen(x) ** 2, axis=axes, keepdims=True) - np.mean(widen(x), axis=axes, keepdims=True) ** 2"),
    Fault("NORM-5", "NaN swallowed", "layer_norm_steps.py", "    variance = np.mean(deviation**2, axis=axes, keepdims=True)\n",
          "    deviation = np.nan_to_num(deviation)\n    variance = np.mean(deviation**2, axis=axes, keepdims=True)\n"),
    Fault("NORM-6", "no gradient through the variance", "layer_norm_vjp.py",
          "(centered - normalized * np.mean(centered * normalized, axis=axes, keepdims=True))", "centered"),
    Fault("NORM-7", "eps inside the root", "layer_norm.py", "(np.sqrt(variance) + float(eps))", "np.sqrt(variance + float(eps))"),
    Fault("NORM-7", "mean square by n - 1", "layer_norm.py", "square = np.mean(wide**2, axis=axes, keepdims=True)",
          "square = np.sum(wide**2, axis=axes, keepdims=True) / max(weight.size - 1, 1)"),
    Fault("POS-1", "sine and cosine swapped", "positions.py", "np.where(even, np.sin(angle), np.cos(angle))", "np.where(even, np.cos(angle), np.sin(angle))"),
    Fault("POS-1", "positions in float16", "positions.py", "np.arange(length) + offset\n", "np.float16(np.arange(length) + offset)\n"),
    Fault("POS-2", "off by one", "positions.py", "return table[offset : offset + length].copy()", "return np.roll(table, -1, 0)[offset : offset + length].copy()"),
    Fault("POS-3", "turned the other way", "rotary.py", "first * cosine - second * sine, second * cosine + first * sine",
          "first * cosine + second * sine, second * cosine - first * sine"),
    Fault("POS-3", "carries lost", "rotary.py", "carry, below = column >> DIGIT_BITS, digit", "carry, below = 0, digit"),
    Fault("POS-3", "gradient turned forwards", "rotary_vjp.py", "rotate(cotangent, -sine,", "rotate(cotangent, sine,"),
    Fault("POS-4", "scalings ignored", "rotary.py", "exact_frequencies(width, float(base), scaling, length)",
          "exact_frequencies(width, float(base), None, length)"),
    Fault("POS-4", "no attention factor", "rotary.py", "* sine.dtype.type(attention_factor)", "* sine.dtype.type(1)"),
    Fault("NORM-8", "1 left out", "layer_norm_steps.py", "return 1 + widen(weight) if plus_one", "return widen(weight) if plus_one"),
    Fault("NORM-8", "1 left out in the gradient", "layer_norm_vjp.py", "multiplier(weight, plus_one)", "widen(weight)"),
    Fault("POS-5", "the offset ignored", "positions.py", "    slopes = alibi_slopes(num_heads)\n", "    slopes, offset = alibi_slopes(num_heads), 0\n"),
    Fault("POS-6", "the halves of the table swapped", "positions.py", "size * (relative > 0)", "size * (relative <= 0)"),
    Fault("POS-6", "pairs counted once", "positions_vjp.py", "    np.add.at(gradient, bucket, np.moveaxis(widen(cotangent)[0], 0, -1))\n",
          "    gradient[bucket] = np.moveaxis(widen(cotangent)[0], 0, -1)\n"),
    Fault("EMB-1", "negative ids from the end", "embedding.py", "    check_rows(table, ids)\n", ""),
    Fault("EMB-1", "multiplied by E", "embedding.py", "widen(rows) * math.sqrt(table.shape[1])", "widen(rows) * table.shape[1]"),
    Fault("EMB-1", "repeated ids counted once", "embedding_vjp.py", "    np.add.at(gradient, ids.reshape(-1), widen(cotangent).reshape(ids.size, table.shape[1]))\n",
          "    gradient[ids.reshape(-1)] = widen(cotangent).reshape(ids.size, table.shape[1])\n"),
    Fault("FFN-1", "one GELU for the other", "feed_forward.py", '"gelu": gelu,', '"gelu": gelu_tanh,'),
    Fault("FFN-1", "slope of the ReLU at every place", "feed_forward_vjp.py", "return (x > 0).astype(x.dtype)", "return np.ones_like(x)"),
    Fault("FFN-2", "the gate not activated", "feed_forward.py", "gate = ACTIVATIONS[activation](widen(linear(parameters.gate, x)))",
          "gate = widen(linear(parameters.gate, x))"),
    Fault("FFN-2", "no gradient of x through the gate", "feed_forward_vjp.py", "(widen(through_gate) + widen(through_inner))", "widen(through_inner)"),
    Fault("ACT-1", "sigmoid of 1.702 x", "feed_forward.py", "root = np.exp(-0.5 * size)", "root = np.exp(-0.851 * size)"),
    Fault("ACT-1", "slope of SiLU without x", "feed_forward_vjp.py", "root * (1 - size / total) * root / total", "root * root / total"),
    Fault("LOSS-1", "mean over all rows", "losses.py", "total / max(np.sum(counted), 1)", "total / max(counted.size, 1)"),
    Fault("LOSS-1", "gradient not divided by the count", "losses_vjp.py",
          "share = widen(cotangent) / max(np.sum(counted), 1) if reduction == \"mean\" else widen(cotangent)",
          "share = widen(cotangent)"),
    Fault("LOSS-1", "gradient of rows that do not count", "losses_vjp.py", "np.where(counted[..., None], differences * received, 0)",
          "(differences * received)"),
    Fault("LOSS-2", "sign not turned", "losses.py", "losses = -widen(", "losses = widen("),
    Fault("MOE-1", "sigmoid for softmax", "experts.py", 'if scoring == "softmax":', 'if scoring == "soft":'),
    Fault("MOE-1", "logits rounded to the inputs' dtype", "experts.py", "logits = widen(x) @ widen(router.weight)",
          "logits = widen((widen(x) @ widen(router.weight)).astype(x.dtype))"),
    Fault("MOE-2", "the last of equal ones", "experts.py", 'order = np.argsort(-numbers, axis=-1, kind="stable")',
          "order = numbers.shape[-1] - 1 - np.argsort(-numbers[..., ::-1], axis=-1, kind=\"stable\")"),
    Fault("MOE-2", "groups by the largest alone", "experts.py", '-2 if group_score == "two_largest" else -1', "-1"),
    Fault("MOE-3", "no scale", "experts.py", "weighting) * float(scale)", "weighting)"),
    Fault("MOE-4", "weights left out", "experts.py", "weights[rows, expert, None] * widen(result)", "widen(result)"),
    Fault("MOE-4", "gates without a limit", "experts.py", "np.where(gate > 7, 7, gate)", "gate"),
    Fault("MOE-4", "no gradient through the weights", "experts_vjp.py", "tokens_gradient + through_router", "tokens_gradient"),
    Fault("MOE-5", "padding takes places", "experts.py", "axis=1) & real[:, None]", "axis=1)"),
    Fault("MOE-6", "without the number of experts", "losses.py", "logits.shape[-1] * np.sum(shares", "np.sum(shares"),
    Fault("MOE-6", "gradient of the z-loss halved", "losses_vjp.py", "received = 2 * row", "received = row"),
    Fault("OPT-1", "eps inside the root", "optimizers.py", "(np.sqrt(v / correction_2) + eps)", "np.sqrt(v / correction_2 + eps)"),
    Fault("OPT-1", "bias correction of the step before", "optimizers.py", "-math.expm1(step * math.log(beta))", "-math.expm1(max(step - 1, 1) * math.log(beta))"),
    Fault("OPT-1", "decay without the learning rate", "optimizers.py", "1 - learning_rate * weight_decay if decoupled", "1 - weight_decay if decoupled"),
    Fault("OPT-1", "decay decoupled and coupled", "optimizers.py", "0.0 if decoupled else weight_decay)", "weight_decay)"),
    Fault("OPT-2", "dampening", "optimizers.py", "lambda v, g: momentum * v + g,", "lambda v, g: momentum * v + (1 - momentum) * g,"),
    Fault("OPT-2", "nesterov from the velocity alone", "optimizers.py", "lambda v, g: g + momentum * v,", "lambda v, g: momentum * v,"),
    Fault("OPT-3", "squares that overflow", "optimizers.py", "np.where(finite & (largest > 0), largest, 1)", "np.where(finite & (largest > 0), 1, 1)"),
    Fault("OPT-3", "scaled by a non-finite norm", "optimizers.py", "clipped = finite & (norm > limit)", "clipped = ~(norm <= limit)"),
)  # fmt: skip


def planted(fault: Fault, folder: Path) -> ModuleType:
    """A copy of reference_numpy with the fault in it, importable while `folder` is on the path."""
    name = f"faulty_{FAULTS.index(fault)}"
    original = Path(reference_numpy.__file__).parent
    (folder / name).mkdir()
    for source in original.glob("*.py"):
        text = source.read_text()
        if source.name == fault.file:
            assert text.count(fault.old) == 1, f"{fault.name}: {text.count(fault.old)} places for {fault.old!r}"
            text = text.replace(fault.old, fault.new)
        (folder / name / source.name).write_text(text.replace("reference_numpy", name))
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
