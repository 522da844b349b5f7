"""All subjects of the suite: those of `conformance.timing`, and jax.nn's standardize, Flax, Keras and ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.peers import onnx_nodes
from conformance.peers.transformers_experts import MIXTRAL_ROUNDS
from conformance.subjects.frameworks import FRAMEWORKS
from conformance.timing.subjects import jax_subjects, numpy_subjects, registry, torch_subjects
from conformance.timing.subjects.function_subject import PREPARED
from conformance.timing.subjects.timed_subject import (
    BHTD,
    BTHD,
    NO_ARENAS,
    ROWS,
    TOKENS,
    Layout,
    Prepared,
    Subject,
    without,
)
from conformance.timing.timed_case import Arrays, Case, dense_mask, inputs, mask, mixture_weights


def flax_attention(case: Case, device: str) -> Prepared:
    from conformance.peers.flax_layers import linen_attention

    return masked_attention(case, device, "jax", linen_attention, {})


def masked_attention(case: Case, device: str, backend: str, function: Any, options: dict[str, Any]) -> Prepared:
    """function(query, key, value, mask=array, **options); options: those that say the mask, where there are some."""
    array = FRAMEWORKS[backend](device).array
    dense = case.kind != "dense" and not options

    def apply(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return function(query, key, value, mask=mask, **options)

    given = (lambda mask: array(dense_mask(case, mask))) if dense else None
    ready = PREPARED[backend](case, device, apply, given, layout=BTHD)
    return replace(ready, form="boolean array" if dense else ", ".join(options))


def keras_attention(case: Case, device: str, backend: str) -> Prepared:
    """`keras.ops.dot_product_attention` as it is called, which then chooses by itself; under jax.jit on JAX."""
    import keras

    options = {"is_causal": True} if case.kind == "causal" else {}
    return masked_attention(case, device, backend, keras.ops.dot_product_attention, options)


def keras_layer_norm(case: Case, device: str, backend: str) -> Prepared:
    """`keras.layers.LayerNormalization`: called by itself on torch, statelessly under jax.jit on JAX."""
    if backend == "jax":
        from conformance.peers.keras_layers import layer_norm

        return jax_subjects.prepared(case, device, lambda x, weight, bias: layer_norm(x, weight, bias, eps=1e-5))
    import keras

    def weights(x: Any, weight: Any, bias: Any) -> tuple[Any, list[Any]]:
        layer = keras.layers.LayerNormalization(epsilon=1e-5, dtype=case.dtype)
        layer.build(tuple(x.shape))
        layer.set_weights([weight.detach(), bias.detach()])
        return (lambda x, *_: layer(x)), [x, layer.gamma.value, layer.beta.value]

    return torch_subjects.prepared(case, device, None, weights=weights)


def transformers_mixture(case: Case, device: str, implementation: str) -> Prepared:
    """`MixtralSparseMoeBlock` of transformers, with the weights as they are stored."""
    import torch
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    array = FRAMEWORKS["torch"](device).array
    router, gate, inner, outer = (array(weight.swapaxes(-1, -2)) for weight in mixture_weights(case).values())
    config: Any = MixtralConfig(
        hidden_size=case.D, intermediate_size=case.F, num_local_experts=case.X, num_experts_per_tok=case.chosen
    )
    config._experts_implementation = implementation
    with torch.device("meta"):
        block: Any = MixtralSparseMoeBlock(config).eval().requires_grad_(False)
    joined = torch.cat([gate, inner], dim=1)
    entries = {"gate.weight": router, "experts.gate_up_proj": joined, "experts.down_proj": outer}
    block.load_state_dict(entries, assign=True)
    return torch_subjects.prepared(case, device, block)


# --- ONNX Runtime -----------------------------------------------------------------------------------------------------


def session(operator: str, opset: int, feeds: dict[str, np.ndarray | None], domain: str = "", **attributes: Any) -> Any:
    """A model of one node, in as many threads as the others have."""
    import onnxruntime

    kinds = tuple((name, onnx_nodes.array_kind(array)) for name, array in feeds.items())
    serialized = onnx_nodes.model(operator, opset, domain, kinds, tuple(attributes.items()))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    options.enable_cpu_mem_arena = NO_ARENAS not in os.environ
    made = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    return lambda given: made.run(None, given)[0]


def prepared(
    case: Case, operator: str, opset: int, feeds: Any, layout: Layout, domain: str = "", **attributes: Any
) -> Prepared:
    """feeds(arrays, mask): the node's inputs in its order, None for one that is left out."""
    like = feeds({name: layout.lay(array) for name, array in inputs(case, 0).items()}, mask(case, 0))
    run = session(operator, opset, like, domain, **attributes)

    def load(arrays: Arrays, mask: Any) -> Any:
        given = feeds({name: layout.lay(array) for name, array in arrays.items()}, mask)
        return (), None, ({name: array for name, array in given.items() if array is not None},)

    return replace(numpy_subjects.prepared(case, "cpu", run, layout=layout), load=load)


def onnx_attention(case: Case, device: str) -> Prepared:
    lengths = case.kind == "lengths"
    attributes: dict[str, Any] = {"is_causal": 1} if case.kind == "causal" else {}
    dense = case.kind in ("window", "segments")

    def feeds(arrays: Arrays, mask: Any) -> dict[str, np.ndarray | None]:
        found: dict[str, Any] = {"Q": arrays["query"], "K": arrays["key"], "V": arrays["value"]}
        found["attn_mask"] = dense_mask(case, mask) if dense else None
        if lengths:
            found |= {"past_key": None, "past_value": None, "nonpad_kv_seqlen": np.asarray(mask.lengths, np.int64)}
        return found

    form = "nonpad_kv_seqlen" if lengths else "is_causal" if attributes else "boolean array" if dense else ""
    return replace(prepared(case, "Attention", 24 if lengths else 23, feeds, BHTD, **attributes), form=form)


def onnx_contributed(case: Case, device: str) -> Prepared:
    """com.microsoft's MultiHeadAttention."""
    lengths = case.kind == "lengths"
    attributes = {"num_heads": case.H} | ({"unidirectional": 1} if case.kind == "causal" else {})

    def feeds(arrays: Arrays, mask: Any) -> dict[str, np.ndarray | None]:
        found: dict[str, Any] = {"Q": arrays["query"], "K": arrays["key"], "V": arrays["value"], "bias": None}
        found["key_padding_mask"] = dense_mask(case, mask)[:, 0, 0].astype(np.int32) if lengths else None
        return found

    domain = onnx_nodes.CONTRIBUTED
    form = "key_padding_mask" if lengths else "unidirectional" if case.kind == "causal" else ""
    return replace(prepared(case, "MultiHeadAttention", 17, feeds, TOKENS, domain, **attributes), form=form)


def onnx_layer_norm(case: Case, device: str) -> Prepared:
    def feeds(arrays: Arrays, mask: Any) -> dict[str, np.ndarray | None]:
        return {"X": arrays["x"], "Scale": arrays["weight"], "B": arrays["bias"]}

    return prepared(case, "LayerNormalization", 17, feeds, ROWS, axis=-1, epsilon=1e-5)


# --- the list ---------------------------------------------------------------------------------------------------------


def subject(
    name: str,
    arrays: str,
    packages: tuple[str, ...],
    make: Callable[..., Prepared],
    *arguments: Any,
    operation: str = "attention",
    **fields: Any,
) -> Subject:
    return Subject(name, operation, arrays, packages, make, arguments, **fields)


def jax_layer_norm(name: str, packages: tuple[str, ...], module: str, function: str, **fields: Any) -> Subject:
    make = jax_subjects.layer_norm
    return subject(name, "jax", packages, make, module, function, operation="layer_norm", **fields)


def keras(backend: str, scores: tuple[float, float]) -> list[Subject]:
    environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    common: dict[str, Any] = {"environment": environment, "slow": "it takes seconds to be imported, once a process"}
    packages = ("keras", backend)
    return [
        subject(
            f"Keras on {backend}", backend, packages, keras_attention, backend,
            scores=scores, conventions={"weights": "inputs"}, **common,
        ),
        subject(
            f"Keras on {backend}, layer norm", backend, packages, keras_layer_norm, backend,
            operation="layer_norm", **common,
        ),
    ]  # fmt: skip


ONNX: dict[str, Any] = {"device": "cpu"}
INFERENCE: dict[str, Any] = {"backward": False, "dtypes": ("float32",)}
FLAX: dict[str, Any] = {"arrays": "jax", "packages": ("flax", "jax")}
FLAX_LAYERS = (FLAX["packages"], "conformance.peers.flax_layers")
OTHERS = (
    jax_layer_norm(
        "jax.nn.standardize", ("jax",), "conformance.peers.jax_functions", "standardize_stable",
        takes=without(dtypes=("float32", "float64")),
    ),
    subject(
        "Flax linen", make=flax_attention, scores=(3, 7), takes=without(grouped=False),
        conventions={"weights": "inputs", "products": "inputs"}, **FLAX,
    ),
    *keras("jax", (3, 7)),
    *keras("torch", (1, 1)),
    subject(
        "ONNX Runtime, Attention", "numpy", ("onnxruntime", "onnx"), onnx_attention, scores=(2, 2),
        takes=without(**INFERENCE), **ONNX,
    ),
    subject(
        "ONNX Runtime, MultiHeadAttention", "numpy", ("onnxruntime", "onnx"), onnx_contributed,
        takes=without("window", "segments", grouped=False, **INFERENCE), scores=(1, 1), **ONNX,
    ),
    jax_layer_norm("Flax layer norm", *FLAX_LAYERS, "linen_layer_norm_fast"),
    jax_layer_norm("Flax layer norm, two passes", *FLAX_LAYERS, "linen_layer_norm_slow"),
    subject(
        "ONNX Runtime, layer norm", "numpy", ("onnxruntime", "onnx"), onnx_layer_norm,
        operation="layer_norm", takes=without(**INFERENCE), **ONNX,
    ),
    *(
        subject(
            f"transformers mixture, {implementation}", "torch", ("transformers", "torch"), transformers_mixture,
            implementation, operation="mixture_of_experts", takes=without(backward=False), conventions=MIXTRAL_ROUNDS,
        )
        for implementation in ("eager", "grouped_mm")
    ),
)  # fmt: skip


def subjects() -> dict[str, Subject]:
    """All there are, by name, in reading order; whether they are installed or not."""
    return registry.subjects() | {subject.name: subject for subject in OTHERS}
