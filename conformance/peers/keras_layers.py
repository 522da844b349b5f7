"""Keras 3: `keras.ops.dot_product_attention` and layers, on its JAX and its torch backend.

The backend is chosen by KERAS_BACKEND before Keras is imported, so each of these peers has a process of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import Options, adapt_attention, adapt_layer_norm, adapt_rms_norm, read_causal
from conformance.peers.heads import join_heads, one_mask_for_all_heads, resize_case
from conformance.peers.peer import BROADCAST, Peer, keras_peer, top_left

if TYPE_CHECKING:
    from specification.arrays import Array
    from specification.parameters import MultiHeadAttention


def attend(query: Array, key: Array, value: Array, **keywords: object) -> Any:
    import keras

    return keras.ops.dot_product_attention(query, key, value, **keywords)


CAUSAL_FEATURES = {"structured", "causal", "scale", "cross", "gqa", "gradients"}
LACKS = ("no-value_width", "no-empty")
PATHS: dict[str, Options] = {
    "mask": {"mask": "mask", "scale": "scale"},
    "bias": {"bias": "bias", "scale": "scale"},
    "causal": {"mask": read_causal("is_causal"), "scale": "scale"},
}


def attend_by(path: str, supports: Collection[str], fused: bool = False, **declared: Any) -> Callable[..., Any]:
    call = partial(attend, flash_attention=fused)
    return adapt_attention(call, PATHS[path], supports, layout="BTHD", **declared)


jax_mask, jax_bias = (attend_by(path, LACKS) for path in ("mask", "bias"))
torch_mask, torch_bias = (attend_by(path, LACKS[:1]) for path in ("mask", "bias"))
fused_mask = attend_by("mask", LACKS, True)
unfused_causal, fused_causal = (
    attend_by("causal", CAUSAL_FEATURES, fused, conventions={"causal": "top_left"}) for fused in (False, True)
)


@functools.cache
def heads_layer(
    heads: int,
    key_width: int,
    value_width: int,
    output: int,
    biased: bool,
    dtype: str,
    shapes: tuple[tuple[int, ...], ...],
) -> Any:
    import keras

    made = keras.layers.MultiHeadAttention(
        heads, key_width, value_dim=value_width, output_shape=output, use_bias=biased, dtype=dtype
    )
    made.build(*shapes)
    return made


def multi_head(weighing: bool, *lacks: str) -> Callable[..., Any]:
    @declare(["no-gqa", "no-empty", *(f"no-{feature}" for feature in lacks)])
    def attention(
        parameters: MultiHeadAttention,
        query: Array,
        key: Array,
        value: Array,
        *,
        num_heads: int,
        mask: Array | None = None,
    ) -> Any:
        """`keras.layers.MultiHeadAttention`; `weighing`: with `return_attention_scores`."""
        import keras

        parts = [join_heads(part, keras.ops.concatenate) for part in parameters[:3]]
        widths = [part.weight.shape[1] // num_heads for part in parts]
        weight, bias = parameters.output
        shapes = tuple(tuple(array.shape) for array in (query, value, key))
        dtype = keras.backend.standardize_dtype(query.dtype)
        layer = heads_layer(num_heads, widths[0], widths[2], weight.shape[1], bias is not None, dtype, shapes)
        values: list[Any] = []
        for part in parts:
            values.append(part.weight.reshape(part.weight.shape[0], num_heads, -1))
            values += [] if part.bias is None else [part.bias.reshape(num_heads, -1)]
        values += [weight.reshape(num_heads, -1, weight.shape[1]), *([] if bias is None else [bias])]
        others = [variable.value for variable in layer.non_trainable_variables]
        if mask is not None and mask.ndim > 2 and mask.shape[1] != 1:
            raise NotImplementedError("attention_mask has no axis of heads")
        if mask is not None:  # [B or 1, Q, K], as the layer documents its masks
            mask = mask[None] if mask.ndim == 2 else mask[:, 0]
        given = {"attention_mask": mask, "return_attention_scores": weighing}
        returned = layer.stateless_call(values, others, query, value, key, **given)[0]
        return returned[0] if weighing else returned

    return attention


jax_heads, torch_heads, weighing_heads = multi_head(False, "value_width"), multi_head(False), multi_head(True)


@functools.cache
def norm_layer(kind: str, axes: tuple[int, ...], policy: str, shape: tuple[int, ...], **options: object) -> Any:
    import keras

    made = getattr(keras.layers, kind)(axis=axes, dtype=policy, **options)
    made.build(shape)
    return made


def norm(kind: str, x: Array, weight: Array, bias: Array | None, **options: object) -> Any:
    """Parameters wider than x are those of a mixed dtype policy."""
    import keras

    inputs, parameters = (keras.backend.standardize_dtype(array.dtype) for array in (x, weight))
    policy = inputs if inputs == parameters else f"mixed_{inputs}"
    axes: Any = tuple(range(-weight.ndim, 0)) if weight.ndim > 1 else -1
    options |= {"center": bias is not None} if kind == "LayerNormalization" else {}
    layer = norm_layer(kind, axes, policy, tuple(x.shape), **options)
    others = [variable.value for variable in layer.non_trainable_variables]
    return layer.stateless_call([weight] if bias is None else [weight, bias], others, x)[0]


layer_norm = adapt_layer_norm(partial(norm, "LayerNormalization"), "epsilon")
rms_norm = adapt_rms_norm(partial(norm, "RMSNormalization"), "epsilon")


def peers(backend: str) -> list[Peer]:
    def peer(name: str, subject: str, operation: str = "attention", **fields: Any) -> Peer:
        return keras_peer(backend, name, f"{__name__}:{subject}", operation, **fields)

    attention, heads = "ops.dot_product_attention, flash_attention", "layers.MultiHeadAttention"
    given: dict[str, Any] = {"documented": BROADCAST}
    many: dict[str, Any] = {"operation": "multi_head_attention", "fitted": resize_case, "takes": one_mask_for_all_heads}
    fused: dict[str, Any] = {"device": "cuda", "given": {"dtypes": ("bfloat16", "float16"), "width_multiple": 8}}
    return [
        peer(f"{attention}=False, mask", f"{backend}_mask", **given),
        peer(f"{attention}=False, bias", f"{backend}_bias", **given),
        peer(f"{attention}=False, is_causal", "unfused_causal", takes=top_left, **given),
        peer(f"{attention}=True, mask", "fused_mask", **given, **fused),
        peer(f"{attention}=True, is_causal", "fused_causal", takes=top_left, **given, **fused),
        peer(heads, f"{backend}_heads", **many),
        peer(f"{heads}, return_attention_scores", "weighing_heads", **many),
        peer("layers.LayerNormalization", "layer_norm", "layer_norm"),
        peer(
            "layers.RMSNormalization",
            "rms_norm",
            "rms_norm",
            takes=lambda case: "weight" not in case.inputs or case.inputs["weight"].ndim == 1,
        ),
    ]


PEERS = (*peers("jax"), *peers("torch"))
