"""Keras 3: `keras.ops.dot_product_attention` and layers, on its JAX and its torch backend.

The backend is chosen by KERAS_BACKEND before Keras is imported, so each of these peers has a process of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.heads import join_heads, one_mask_for_all_heads, resize_case
from conformance.peers.peer import BROADCAST, Peer, causal_flag, keras_peer, top_left

CAUSAL = {"structured", "causal", "scale", "cross", "gqa", "gradients"}


def attend(query: Any, key: Any, value: Any, *, fused: bool, **keywords: Any) -> Any:
    import keras

    return keras.ops.dot_product_attention(query, key, value, flash_attention=fused, **keywords)


def make_masked_attention(fused: bool, *lacks: str) -> Callable[..., Any]:
    @declare([f"no-{feature}" for feature in lacks], layout="BTHD")
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        """With `mask`."""
        return attend(query, key, value, fused=fused, mask=mask, scale=scale)

    return attention


def make_biased_attention(fused: bool, *lacks: str) -> Callable[..., Any]:
    @declare([f"no-{feature}" for feature in lacks], layout="BTHD")
    def attention(query: Any, key: Any, value: Any, *, bias: Any = None, scale: float | None = None) -> Any:
        """With `bias`."""
        return attend(query, key, value, fused=fused, bias=bias, scale=scale)

    return attention


def causal(fused: bool) -> Callable[..., Any]:
    @declare(CAUSAL, layout="BTHD", conventions={"causal": "top_left"})
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None) -> Any:
        """With `is_causal`."""
        return attend(query, key, value, fused=fused, is_causal=causal_flag(mask, "is_causal"), scale=scale)

    return attention


jax_mask, jax_bias = (
    make_masked_attention(False, "value_width", "empty"),
    make_biased_attention(False, "value_width", "empty"),
)
torch_mask, torch_bias, unfused_causal = (
    make_masked_attention(False, "value_width"),
    make_biased_attention(False, "value_width"),
    causal(False),
)
fused_mask, fused_causal = make_masked_attention(True, "value_width", "empty"), causal(True)


@functools.cache
def heads_layer(
    heads: int, key_width: int, value_width: int, output: int, biased: bool, dtype: str, shapes: Any
) -> Any:
    import keras

    made = keras.layers.MultiHeadAttention(
        heads, key_width, value_dim=value_width, output_shape=output, use_bias=biased, dtype=dtype
    )
    made.build(*shapes)
    return made


def multi_head(weighing: bool, *lacks: str) -> Callable[..., Any]:
    @declare(["no-gqa", "no-empty", *(f"no-{feature}" for feature in lacks)])
    def attention(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int, mask: Any = None) -> Any:
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
        given = {"attention_mask": layer_mask(mask), "return_attention_scores": weighing}
        returned = layer.stateless_call(values, others, query, value, key, **given)[0]
        return returned[0] if weighing else returned

    return attention


def layer_mask(mask: Any) -> Any:
    """[B or 1, Q, K], as the layer documents its masks."""
    if mask is None or mask.ndim == 2:
        return None if mask is None else mask[None]
    if mask.shape[1] != 1:
        raise NotImplementedError("attention_mask has no axis of heads")
    return mask[:, 0]


jax_heads, torch_heads, weighing_heads = multi_head(False, "value_width"), multi_head(False), multi_head(True)


@functools.cache
def norm_layer(kind: str, axes: Any, eps: float | None, biased: bool, policy: str, shape: tuple[int, ...]) -> Any:
    import keras

    given: dict[str, Any] = {} if eps is None else {"epsilon": eps}
    given |= {"center": biased} if kind == "LayerNormalization" else {}
    made = getattr(keras.layers, kind)(axis=axes, dtype=policy, **given)
    made.build(shape)
    return made


def norm(kind: str, x: Any, weight: Any, bias: Any, eps: float | None) -> Any:
    import keras

    inputs, parameters = (keras.backend.standardize_dtype(array.dtype) for array in (x, weight))
    policy = inputs if inputs == parameters else f"mixed_{inputs}"
    axes: Any = tuple(range(-weight.ndim, 0)) if weight.ndim > 1 else -1
    layer = norm_layer(kind, axes, eps, bias is not None, policy, tuple(x.shape))
    others = [variable.value for variable in layer.non_trainable_variables]
    return layer.stateless_call([weight] if bias is None else [weight, bias], others, x)[0]


def layer_norm(x: Any, weight: Any, bias: Any = None, *, eps: float | None = None) -> Any:
    """`keras.layers.LayerNormalization`; parameters wider than x are those of a mixed dtype policy."""
    return norm("LayerNormalization", x, weight, bias, eps)


def rms_norm(x: Any, weight: Any, *, eps: float | None = None) -> Any:
    """`keras.layers.RMSNormalization`; parameters wider than x are those of a mixed dtype policy."""
    return norm("RMSNormalization", x, weight, None, eps)


def one_axis(case: Case) -> bool:
    return "weight" not in case.inputs or case.inputs["weight"].ndim == 1


def peer(backend: str, name: str, subject: str, operation: str, **fields: Any) -> Peer:
    return keras_peer(backend, name, f"{__name__}:{subject}", operation, **fields)


def peers(backend: str) -> list[Peer]:
    attention, heads = "ops.dot_product_attention", "layers.MultiHeadAttention"
    given: dict[str, Any] = {"operation": "attention", "documented": BROADCAST}
    many: dict[str, Any] = {"operation": "multi_head_attention", "fitted": resize_case, "takes": one_mask_for_all_heads}
    fused: dict[str, Any] = {"device": "cuda", "given": {"dtypes": ("bfloat16", "float16"), "width_multiple": 8}}
    return [
        peer(backend, f"{attention}, flash_attention=False, mask", f"{backend}_mask", **given),
        peer(backend, f"{attention}, flash_attention=False, bias", f"{backend}_bias", **given),
        peer(backend, f"{attention}, flash_attention=False, is_causal", "unfused_causal", takes=top_left, **given),
        peer(backend, f"{attention}, flash_attention=True, mask", "fused_mask", **given, **fused),
        peer(
            backend, f"{attention}, flash_attention=True, is_causal", "fused_causal", takes=top_left, **given, **fused
        ),
        peer(backend, heads, f"{backend}_heads", **many),
        peer(backend, f"{heads}, return_attention_scores", "weighing_heads", **many),
        peer(backend, "layers.LayerNormalization", "layer_norm", "layer_norm"),
        peer(backend, "layers.RMSNormalization", "rms_norm", "rms_norm", takes=one_axis),
    ]


PEERS = (*peers("jax"), *peers("torch"))
