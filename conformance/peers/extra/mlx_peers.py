"""MLX on the CPU: attention, norms, rotary embeddings, positions, losses, optimizers and activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from conformance.peers.adapters import Options, adapt_attention, adapt_layer_norm, adapt_rms_norm, make_peer
from conformance.peers.extra.bridge import Arrays, adapt_arrays
from conformance.peers.heads import join_heads, one_mask_for_all_heads, resize_case
from conformance.peers.optimizers import decaying, decays
from conformance.peers.peer import BROADCAST, FLOAT_MASK, bottom_right, causal_flag
from specification.optimizers import AdamState, SgdState

if TYPE_CHECKING:
    import mlx.core as mx

    from specification.masks import Mask
    from specification.parameters import FeedForward, MultiHeadAttention

DTYPES = ("float32", "bfloat16", "float16")
"""MLX has float64 too, but its functions compute it in float32 (`mx.exp(100)` is infinite)."""


def read(array: np.ndarray) -> mx.array:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    if array.dtype == ml_dtypes.bfloat16:
        return mx.array(array.astype(np.float32)).astype(mx.bfloat16)
    return mx.array(array)


def write(array: Any) -> Any:
    import mlx.core as mx

    if not isinstance(array, mx.array):
        return array
    if array.dtype == mx.bfloat16:
        return np.array(array.astype(mx.float32)).astype(ml_dtypes.bfloat16)
    return np.array(array)


def pull(function: Callable[..., Any], arrays: list[Any], cotangent: Any) -> list[Any]:
    import mlx.core as mx

    return list(mx.vjp(lambda *traced: [function(*traced)], arrays, [cotangent])[1])


MLX = Arrays(read, write, pull)
adapt = partial(adapt_arrays, MLX, dtypes=DTYPES)


# --- attention --------------------------------------------------------------------------------------------------------


def attend(query: mx.array, key: mx.array, value: mx.array, *, scale: float | None, **keywords: Any) -> Any:
    import mlx.core as mx

    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, **keywords)


def read_causal(mask: Mask | None) -> dict[str, Any]:
    return {"mask": "causal" if causal_flag(mask, "mask") else None}


SINKS: Options = {"scale": "scale", "sinks": "sinks"}
mask = adapt(adapt_attention(attend, SINKS | {"mask": "mask"}), "no-empty")
bias = adapt(adapt_attention(attend, SINKS | {"bias": "mask"}), "no-empty")
causal = adapt(
    adapt_attention(attend, SINKS | {"mask": read_causal}), "structured", "causal", "scale", "sinks", "gqa", "cross",
    "value_width", "gradients", conventions={"causal": "bottom_right"},
)  # fmt: skip


def multi_head(
    parameters: MultiHeadAttention, query: mx.array, key: mx.array, value: mx.array, *, num_heads: int,
    mask: mx.array | None = None,
) -> Any:  # fmt: skip
    """`nn.MultiHeadAttention`, which has biases on all projections or on none."""
    import mlx.core as mx
    from mlx import nn

    parts = [*(join_heads(part, mx.concatenate) for part in parameters[:3]), parameters.output]
    widths = [part.weight.shape for part in parts]
    layer = nn.MultiHeadAttention(
        widths[0][1], num_heads, *(width[0] for width in widths[:3]), widths[2][1], widths[3][1],
        bias=parts[3].bias is not None,
    )  # fmt: skip
    for name, part in zip(("query_proj", "key_proj", "value_proj", "out_proj"), parts, strict=True):
        layer[name].weight = part.weight.T
        if part.bias is not None:
            layer[name].bias = part.bias
    return layer(query, key, value, mask)


heads = adapt(multi_head, "no-gqa", "no-empty")

# --- norms, positions -------------------------------------------------------------------------------------------------


def normalize(x: mx.array, weight: mx.array, bias: mx.array | None, eps: float = 1e-5) -> Any:
    import mlx.core as mx

    return mx.fast.layer_norm(x, weight, bias, eps)


def normalize_by_root(x: mx.array, weight: mx.array, bias: None, eps: float = 1e-5) -> Any:
    import mlx.core as mx

    return mx.fast.rms_norm(x, weight, eps)


layer_norm = adapt(adapt_layer_norm(normalize, "eps", "no-axes"), "no-axes", "no-wide_weights")
rms_norm = adapt(
    adapt_rms_norm(normalize_by_root, "eps", "no-axes"),
    "no-axes",
    "no-wide_weights",
    conventions={"normalized": "inputs"},
)


def rotate(
    x: mx.array, positions: mx.array, *, base: float = 10000.0, rotary_width: int | None = None,
    pairing: str = "halves",
) -> Any:  # fmt: skip
    """`mx.fast.rope` turns consecutive positions from an offset on: one call for each position."""
    import mlx.core as mx

    options = {"traditional": pairing == "interleaved", "base": base, "scale": 1.0}
    offsets = positions[None] if positions.ndim == 1 else positions
    parts = [
        mx.fast.rope(x[:, :, t : t + 1], rotary_width or x.shape[-1], **options, offset=offsets[:, t].astype(mx.int32))
        for t in range(x.shape[2])
    ]
    return mx.concatenate(parts, axis=2) if parts else x


rotary = adapt(rotate, "no-empty", conventions={"angles": "float32"})


def alibi(num_heads: int, query_length: int, key_length: int, *, offset: int = 0) -> Any:
    """`nn.ALiBi.create_alibi_matrix`, which takes the last position for the number of queries."""
    from mlx import nn

    return nn.ALiBi.create_alibi_matrix(query_length + offset, key_length, num_heads, offset)


alibi_bias = adapt(alibi, dtypes=("float32",), conventions={"distances": "absolute"})

# --- losses, optimizers, activations ----------------------------------------------------------------------------------


def take_loss(logits: mx.array, targets: mx.array, *, label_smoothing: float = 0.0, reduction: str = "mean") -> Any:
    from mlx import nn

    return nn.losses.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction=reduction)


def take_nll(log_probabilities: mx.array, targets: mx.array, *, reduction: str = "mean") -> Any:
    from mlx import nn

    return nn.losses.nll_loss(log_probabilities, targets, reduction=reduction)


cross_entropy, nll_loss = adapt(take_loss), adapt(take_nll)


def step_adam(
    parameters: mx.array, gradients: mx.array, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
) -> Any:  # fmt: skip
    """`optimizers.AdamW` with `bias_correction`, by `apply_gradients`."""
    import mlx.core as mx
    from mlx import optimizers

    options: dict[str, Any] = {"weight_decay": weight_decay, "bias_correction": True}
    optimizer = optimizers.AdamW(learning_rate, [beta_1, beta_2], eps, **options)
    optimizer.init({"w": parameters})
    optimizer.state |= {"step": mx.array(state.step, mx.uint64), "w": {"m": state.mean, "v": state.square}}
    moved = optimizer.apply_gradients({"w": gradients}, {"w": parameters})["w"]
    after = optimizer.state["w"]
    return moved, AdamState(int(optimizer.step.item()), after["m"], after["v"])


def step_sgd(
    parameters: mx.array, gradients: mx.array, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0,
) -> Any:  # fmt: skip
    """`optimizers.SGD`, by `apply_gradients`."""
    from mlx import optimizers

    optimizer = optimizers.SGD(learning_rate, momentum, weight_decay, 0.0, nesterov)
    optimizer.init({"w": parameters})
    optimizer.state["w"] = {"v": state.velocity}
    moved = optimizer.apply_gradients({"w": gradients}, {"w": parameters})["w"]
    return moved, SgdState(optimizer.state["w"]["v"])


def clip_gradients(gradients: list[mx.array], limit: float) -> Any:
    """`optimizers.clip_grad_norm`."""
    import mlx.core as mx
    from mlx import optimizers

    clipped, norm = optimizers.clip_grad_norm(gradients, limit)
    return clipped, norm.astype(mx.float32)


# MLX keeps the averages in the dtype of the parameters.
adam, clip = (adapt(function, dtypes=("float32",)) for function in (step_adam, clip_gradients))
sgd = adapt(step_sgd, dtypes=("float32",), conventions={"velocity": "momentum"})


def activate(x: mx.array) -> Any:
    from mlx import nn

    return nn.silu(x)


def apply_network(parameters: FeedForward, x: mx.array, *, activation: str = "relu") -> Any:
    """`nn.relu`, `nn.gelu`, `nn.gelu_approx` or `nn.silu` between products as `nn.Linear` takes them."""
    import mlx.core as mx
    from mlx import nn

    for (weight, added), name in ((parameters.inner, activation), (parameters.outer, None)):
        x = x @ weight if added is None else mx.addmm(added, x, weight)
        x = x if name is None else getattr(nn, {"gelu_tanh": "gelu_approx"}.get(name, name))(x)
    return x


silu, network = adapt(activate), adapt(apply_network)

peer = partial(make_peer, "MLX ", __name__, "numpy", ("mlx",), isolated=True)
ATTENTION = "fast.scaled_dot_product_attention"
PEERS = (
    peer(f"{ATTENTION}, mask of booleans", "mask", "attention", documented=(*FLOAT_MASK, *BROADCAST)),
    peer(f"{ATTENTION}, mask of numbers", "bias", "attention", documented=BROADCAST),
    peer(f'{ATTENTION}, mask="causal"', "causal", "attention", takes=bottom_right),
    peer("nn.MultiHeadAttention", "heads", "multi_head_attention", fitted=resize_case, takes=one_mask_for_all_heads),
    peer("fast.layer_norm", "layer_norm", "layer_norm"),
    peer("fast.rms_norm", "rms_norm", "rms_norm"),
    peer("nn.silu", "silu", "silu"),
    peer("nn.relu, nn.gelu, nn.gelu_approx or nn.silu", "network", "feed_forward"),
    peer("fast.rope", "rotary", "rotary_embedding"),
    peer("nn.ALiBi", "alibi_bias", "alibi_bias"),
    peer("nn.losses.cross_entropy", "cross_entropy", "cross_entropy"),
    peer("nn.losses.nll_loss", "nll_loss", "nll_loss"),
    peer("optimizers.AdamW, bias_correction", "adam", "adam_step", takes=partial(decays, decoupled=True),
         fitted=partial(decaying, decoupled=True)),
    peer("optimizers.SGD", "sgd", "sgd_step"),
    peer("optimizers.clip_grad_norm", "clip", "clip_by_global_norm"),
)  # fmt: skip
