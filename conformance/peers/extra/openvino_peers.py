"""OpenVINO's CPU plugin in float32: attention, and what its frontends make norms and activations of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.adapters import (
    Options,
    adapt_attention,
    adapt_layer_norm,
    adapt_rms_norm,
    make_peer,
    read_causal,
)
from conformance.peers.peer import BROADCAST, FLOAT_MASK, top_left

if TYPE_CHECKING:
    from specification.parameters import FeedForward

DTYPES = ("float32", "float16")
SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
"""Left to itself, the plugin may compute float32 in bfloat16."""

Build = Callable[..., Any]
"""Of the operations' module and nodes, the node of the result."""


@functools.cache
def compile_model(build: Build, kinds: tuple[tuple[str, int], ...], settings: tuple[Any, ...]) -> Any:
    """The model of one result, with inputs of these dtypes and ranks, of any size."""
    import openvino
    from openvino import opset13

    nodes = [opset13.parameter(openvino.PartialShape([-1] * rank), np.dtype(dtype)) for dtype, rank in kinds]
    model = openvino.Model([build(opset13, *nodes, *settings)], nodes)
    return openvino.Core().compile_model(model, "CPU", SETTINGS)


def run(build: Build, *arrays: np.ndarray | None, settings: tuple[Any, ...] = ()) -> Any:
    given = [np.array(array, order="C") for array in arrays if array is not None]
    if any(str(array.dtype) not in (*DTYPES, "bool") for array in given):
        raise NotImplementedError(f"arrays of {', '.join(DTYPES)} alone")
    model = compile_model(build, tuple((str(array.dtype), array.ndim) for array in given), settings)
    return model.infer_new_request(given)[0].copy()


def build_attention(operations: Any, query: Any, key: Any, value: Any, *others: Any, masked: bool, causal: bool) -> Any:
    """`ScaledDotProductAttention`, whose scale is its fifth input: without a mask one of 0 stands before it."""
    names = (*(["attention_mask"] if masked else []), "scale")
    given = dict(zip(names, others, strict=False))
    if "scale" in given and not masked:
        given["attention_mask"] = operations.convert_like(operations.constant(np.float32(0)), query)
    return operations.scaled_dot_product_attention(query, key, value, **given, causal=causal)


@functools.cache
def attention_builder(masked: bool, causal: bool) -> Build:
    return partial(build_attention, masked=masked, causal=causal)


def attend(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, scale: float | None, mask: np.ndarray | None = None,
    causal: bool = False,
) -> Any:  # fmt: skip
    factor = None if scale is None else np.array(scale, query.dtype)
    return run(attention_builder(mask is not None, causal), query, key, value, mask, factor)


LACKS = ("no-gqa", "no-gradients", "no-empty")
SCALE: Options = {"scale": "scale"}
mask = adapt_attention(attend, SCALE | {"mask": "mask"}, LACKS, dtypes=DTYPES)
bias = adapt_attention(attend, SCALE | {"bias": "mask"}, LACKS, dtypes=DTYPES)
causal = adapt_attention(
    attend, SCALE | {"mask": read_causal("causal")}, ("structured", "causal", "scale", "cross", "value_width"),
    dtypes=DTYPES, conventions={"causal": "top_left"},
)  # fmt: skip


def build_layer_norm(operations: Any, x: Any, weight: Any, *others: Any) -> Any:
    """`MVN`, a product and a sum, which the plugin may fuse."""
    *biases, eps = others
    normal = operations.mvn(x, operations.constant(np.array([-1], np.int64)), True, eps, "inside_sqrt")
    scaled = operations.multiply(normal, weight)
    return operations.add(scaled, biases[0]) if biases else scaled


def build_rms_norm(operations: Any, x: Any, weight: Any, eps: float) -> Any:
    """`Power`, `ReduceMean`, `Sqrt`, `Divide`, which the plugin fuses into one operation, and a product."""
    axis, number = operations.constant(np.array([-1], np.int64)), partial(np.array, dtype=np.float32)
    two, added, one = (operations.convert_like(operations.constant(number(n)), x) for n in (2, eps, 1))
    mean = operations.reduce_mean(operations.power(x, two), axis, True)
    root = operations.divide(one, operations.sqrt(operations.add(mean, added)))
    return operations.multiply(operations.multiply(x, root), weight)


def normalize(build: Build, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float = 1e-5) -> Any:
    return run(build, x, weight, bias, settings=(float(eps),))


NORM_LACKS = ("no-axes", "no-gradients", "no-empty", "no-wide_weights")
layer_norm = adapt_layer_norm(partial(normalize, build_layer_norm), "eps", *NORM_LACKS, dtypes=DTYPES)
rms_norm = adapt_rms_norm(partial(normalize, build_rms_norm), "eps", *NORM_LACKS, dtypes=DTYPES)


def build_silu(operations: Any, x: Any) -> Any:
    return swish(operations, x)


def swish(operations: Any, x: Any) -> Any:
    """With its factor of 1 in the dtype of x: left out, it is float32, which float16 does not go with."""
    return operations.swish(x, operations.convert_like(operations.constant(np.float32(1)), x))


@declare(["no-gradients", "no-empty"], dtypes=DTYPES)
def silu(x: np.ndarray) -> Any:
    """`Swish`."""
    return run(build_silu, x)


def build_network(operations: Any, x: Any, *rest: Any) -> Any:
    *arrays, activation = rest
    step = len(arrays) // 2
    for number, (weight, *biases) in enumerate((arrays[:step], arrays[step:])):
        x = operations.matmul(x, weight, False, False)
        x = operations.add(x, biases[0]) if biases else x
        x = activate(operations, x, activation) if number == 0 else x
    return x


def activate(operations: Any, x: Any, name: str) -> Any:
    """`Relu`, `Swish`, or `Gelu` of either kind."""
    if name in ("relu", "silu"):
        return operations.relu(x) if name == "relu" else swish(operations, x)
    return operations.gelu(x, "TANH" if name == "gelu_tanh" else "ERF")


@declare(["no-gradients", "no-empty"], dtypes=DTYPES)
def network(parameters: FeedForward, x: np.ndarray, *, activation: str = "relu") -> Any:
    """`MatMul`, an activation, `MatMul`."""
    return run(build_network, x, *parameters.inner, *parameters.outer, settings=(activation,))


def has_one_dtype(case: Case) -> bool:
    """Calls whose scale is a number of the inputs' dtype, and whose bias is in it, as the operation takes them."""
    scale, dtype = case.options.get("scale"), np.dtype(case.dtype)
    exact = scale is None or float(dtype.type(scale)) == scale
    return exact and all(str(array.dtype) == case.dtype for array in case.inputs.values())


peer = partial(make_peer, "OpenVINO ", __name__, "numpy", ("openvino",), isolated=True)
ATTENTION = "ScaledDotProductAttention-13"
PEERS = (
    peer(f"{ATTENTION}, mask of booleans", "mask", "attention", takes=has_one_dtype,
         documented=(*FLOAT_MASK, *BROADCAST)),
    peer(f"{ATTENTION}, mask of numbers", "bias", "attention", takes=has_one_dtype, documented=BROADCAST),
    peer(f"{ATTENTION}, causal", "causal", "attention", takes=lambda case: has_one_dtype(case) and top_left(case)),
    peer("MVN-6, Multiply, Add", "layer_norm", "layer_norm"),
    peer("Power, ReduceMean, Sqrt, Divide, Multiply", "rms_norm", "rms_norm"),
    peer("Swish-4", "silu", "silu"),
    peer("MatMul and Relu, Gelu-7 or Swish-4", "network", "feed_forward",
         takes=lambda case: ("inner.bias" in case.inputs) == ("outer.bias" in case.inputs)),
)  # fmt: skip
