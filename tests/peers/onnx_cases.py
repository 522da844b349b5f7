"""ONNX's test cases of single nodes, and what they are here: cases of operations, whose results are a node's outputs.

Attention. A floating `attn_mask` is a bias (ATT-3), a boolean one a dense mask of the same polarity (MASK-1). Either is
broadcast from the right, and forbids the keys that it is too short for. Query i stands at position i + offset, where
offset counts the keys of the past; with `nonpad_kv_seqlen` the last query is aligned with the last key that counts.
`softmax_precision` asks for nothing, because the softmax is in float32 or wider (ATT-9). `qk_matmul_output` is the
scores before the softcap, after it, and after mask and bias as well (modes 0 to 2), or the weights (mode 3).

Optimizers. ONNX adds Adam's epsilon to the root of the uncorrected square, and corrects nothing at step 0. V, H, alpha
and beta are the mean, square, beta_1 and beta_2 of Adam; V and alpha are the velocity and momentum of Momentum.

LogSoftmax, and `log_prob` beside a cross-entropy, are minus the losses with every class as the target. `Mean` and
`InvStdDev` beside a layer norm are no results here: they are read off the normalized row, which is a straight line.
"""

from __future__ import annotations

import functools
import importlib
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reference_numpy import materialize
from reference_numpy.multi_head_attention import concatenate_heads, split_heads
from specification import Causal, Dense, KeyLengths, SlidingWindow
from specification.dtypes import dtype_name
from tests.support.helpers import Case

Arrays = dict[str, np.ndarray]
MODULES = {
    "Attention": "attention",
    "LayerNormalization": "layernormalization",
    "RMSNormalization": "rmsnormalization",
    "SoftmaxCrossEntropyLoss": "softmax_cross_entropy_loss",
    "NegativeLogLikelihoodLoss": "negativeloglikelihoodloss",
    "RotaryEmbedding": "rotaryembedding",
    "Adam": "adam",
    "Momentum": "momentum",
    "Gelu": "gelu",
    "Swish": "swish",
    "LogSoftmax": "logsoftmax",
}
"""By operator: the module of `onnx.backend.test.case.node` that has its cases."""
UNTRANSLATED = ("weights", "weight", "cos_cache")
"""Inputs that no operation here has: weights of classes, and cosines that belong to no angle."""


class Node(NamedTuple):
    """One node, its inputs, and the outputs that ONNX expects, by the operator's names. case: ONNX's own `TestCase`."""

    name: str
    operator: str
    inputs: Arrays
    attributes: dict[str, Any]
    outputs: Arrays
    case: Any


class Output(NamedTuple):
    """What `read` makes of one result of each of these cases.

    is_moved: it stacks and moves elements, or changes their sign, and computes nothing.
    """

    cases: list[Case]
    read: Callable[..., np.ndarray] = np.asarray
    result: str = "output"
    is_moved: bool = True


# --- ONNX's side ------------------------------------------------------------------------------------------------------


@functools.cache
def all_nodes() -> tuple[Node, ...]:
    """Every case of the operators, without its expansions into other nodes: these have the same arrays."""
    state = np.random.get_state()  # to import a module is to make its cases, and seeds NumPy's global generator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in MODULES.values():
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
    np.random.set_state(state)
    cases = importlib.import_module("onnx.backend.test.case.node")._NodeTestCases
    alone = [case for case in cases if len(case.model.graph.node) == 1]
    return tuple(make_node(case) for case in alone if case.model.graph.node[0].op_type in MODULES)


def make_node(case: Any) -> Node:
    (node,), ((inputs, outputs),) = case.model.graph.node, case.data_sets
    version = case.model.opset_import[0].version
    schema = importlib.import_module("onnx.defs").get_schema(node.op_type, version, node.domain)
    value = importlib.import_module("onnx.helper").get_attribute_value
    return Node(
        case.name.removeprefix("test_"),
        node.op_type,
        name_arrays(schema.inputs, node.input, inputs),
        {attribute.name: value(attribute) for attribute in node.attribute},
        name_arrays(schema.outputs, node.output, outputs),
        case,
    )


def name_arrays(parameters: Any, present: Any, arrays: Any) -> Arrays:
    """By the operator's names, or by the node's where an operator takes any number of arrays.

    An empty name in the node stands for a parameter that is left out.
    """
    if any(parameter.option.name == "Variadic" for parameter in parameters):
        return dict(zip(present, arrays, strict=True))
    names = [parameter.name for parameter, given in zip(parameters, present, strict=False) if given]
    return dict(zip(names, arrays, strict=True))


# --- our side ---------------------------------------------------------------------------------------------------------

Translation = dict[str, Output | np.ndarray]
"""By the names of a node's outputs; an array where inputs are copied, as into a cache."""


def make_case(operation: str, inputs: dict[str, np.ndarray | None], **options: Any) -> Case:
    """A case in the dtype of its first input, without what is None."""
    present = {name: array for name, array in inputs.items() if array is not None}
    options = {name: option for name, option in options.items() if option is not None}
    return Case(operation, dtype_name(next(iter(present.values()))), present, options)


def translate_attention(node: Node) -> Translation:
    query, key, value = (join_past(node, *names) for names in (("Q", ""), ("K", "past_key"), ("V", "past_value")))
    attn_mask = expand_mask(node.inputs.get("attn_mask"), (*query.shape[:3], key.shape[2]))
    is_boolean = attn_mask is not None and attn_mask.dtype == bool
    bias = None if is_boolean else attn_mask
    options = {
        "mask": combine_masks(node, query.shape[2], Dense(attn_mask) if is_boolean else None),
        "scale": node.attributes.get("scale"),
        "softcap": node.attributes.get("softcap") or None,
    }
    case = make_case("attention", {"query": query, "key": key, "value": value, "bias": bias}, **options)
    mode = node.attributes.get("qk_matmul_output_mode", 0)
    if mode == 3:
        matrix = Output([make_case("attention_weights", {"query": query, "key": key, "bias": bias}, **options)])
    else:
        options["softcap"] = None if mode == 0 else options["softcap"]
        bias, options["mask"] = (bias, options["mask"]) if mode == 2 else (None, None)
        matrix = translate_scores(query, key, bias, options)
    return {
        "Y": Output([case], concatenate_heads if node.inputs["Q"].ndim == 3 else np.asarray),
        "present_key": key,
        "present_value": value,
        "qk_matmul_output": matrix,
    }


def join_past(node: Node, name: str, past: str) -> np.ndarray:
    """[B, H, T, W], also of [B, T, H * W], behind the past's if there are any."""
    array = node.inputs[name]
    if array.ndim == 3:
        array = split_heads(array, node.attributes["q_num_heads" if name == "Q" else "kv_num_heads"])
    return np.concatenate([node.inputs[past], array], axis=2) if past in node.inputs else array


def expand_mask(attn_mask: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """[B, H, Q, K]; keys that it is too short for are forbidden."""
    if attn_mask is None:
        return None
    widths = [(0, 0)] * (attn_mask.ndim - 1) + [(0, shape[-1] - attn_mask.shape[-1])]
    forbidden = False if attn_mask.dtype == bool else -np.inf
    return np.broadcast_to(np.pad(attn_mask, widths, constant_values=forbidden), shape)


def combine_masks(node: Node, queries: int, *masks: Any) -> Any:
    """What these masks, the window, the lengths and the flag `is_causal` allow; None if there are none of them."""
    counts = node.inputs.get("nonpad_kv_seqlen")
    offset: Any = 0 if counts is None else counts - queries
    if "past_key" in node.inputs:
        offset = node.inputs["past_key"].shape[2]
    left, right = (node.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    sides = (None if left == -1 else left), (None if right == -1 else right)
    present = [
        *masks,
        SlidingWindow(*sides, offset) if sides != (None, None) else None,
        None if counts is None else KeyLengths(counts),
        Causal(offset) if node.attributes.get("is_causal") else None,
    ]
    present = [mask for mask in present if mask is not None]
    return functools.reduce(operator.and_, present) if present else None


def translate_scores(query: np.ndarray, key: np.ndarray, bias: np.ndarray | None, options: dict[str, Any]) -> Output:
    """Key by key: the log-sum-exp over a single key is its score, and -inf where the mask forbids it."""
    (B, H, Q, _), K = query.shape, key.shape[2]
    allowed = materialize(options["mask"], Q, K, batch=B, heads=H)
    cases = [
        make_case(
            "attention_logsumexp",
            {"query": query, "key": key[:, :, [k]], "bias": None if bias is None else bias[..., [k]]},
            **options | {"mask": Dense(allowed[..., [k]])},
        )
        for k in range(K)
    ]
    return Output(cases, lambda *scores: np.stack(scores, -1))


def translate_layer_norm(node: Node) -> Translation:
    x, weight, bias = (node.inputs.get(name) for name in ("X", "Scale", "B"))
    axes, eps = tuple(range(-weight.ndim, 0)), node.attributes.get("epsilon", 1e-5)
    low, high = (extreme(x.astype(np.float64), axes, keepdims=True) for extreme in (np.min, np.max))

    def read_slope(y: np.ndarray) -> np.ndarray:
        y = y.astype(np.float64)
        return (y.max(axes, keepdims=True) - y.min(axes, keepdims=True)) / (high - low)

    def read_mean(y: np.ndarray) -> np.ndarray:
        return high - y.max(axes, keepdims=True) / read_slope(y)

    plain = make_case("layer_norm", {"x": x, "weight": np.ones_like(weight)}, eps=eps)
    return {
        "Y": Output([make_case("layer_norm", {"x": x, "weight": weight, "bias": bias}, eps=eps)]),
        "Mean": Output([plain], lambda y: read_mean(y).astype(x.dtype), is_moved=False),
        "InvStdDev": Output([plain], lambda y: read_slope(y).astype(x.dtype), is_moved=False),
    }


def translate_rms_norm(node: Node) -> Translation:
    inputs = {"x": node.inputs["X"], "weight": node.inputs["scale"]}
    return {"Y": Output([make_case("rms_norm", inputs, eps=node.attributes.get("epsilon", 1e-5))])}


def translate_loss(node: Node) -> Translation:
    """Of either kind. The classes are on axis 1 of ONNX's arrays, and on the last one here."""
    scores, targets = node.inputs.values()
    rows = np.ascontiguousarray(np.moveaxis(scores, 1, -1))
    options = {"ignore": node.attributes.get("ignore_index"), "reduction": node.attributes["reduction"].decode()}
    if node.operator == "NegativeLogLikelihoodLoss":
        return {"loss": Output([make_case("nll_loss", {"log_probabilities": rows, "targets": targets}, **options)])}
    loss = make_case("cross_entropy", {"logits": rows, "targets": targets}, **options)
    return {"output": Output([loss]), "log_prob": translate_log_softmax(scores, 1)}


def translate_log_softmax(scores: np.ndarray, axis: int) -> Output:
    rows = np.ascontiguousarray(np.moveaxis(scores, axis, -1))
    classes = (np.full(rows.shape[:-1], number) for number in range(rows.shape[-1]))
    cases = [make_case("cross_entropy", {"logits": rows, "targets": one}, reduction="none") for one in classes]
    return Output(cases, lambda *losses: -np.stack(losses, axis))


def translate_step(node: Node) -> Translation:
    """Of Adam or Momentum, step 0: one step for each X."""
    rate, number, *arrays = node.inputs.values()
    assert number == 0, "of later steps there were no cases"

    def read_decimal(name: str) -> float:
        """The expected outputs know the decimals of which the attributes are the nearest float32."""
        return float(str(np.float32(node.attributes[name])))

    options = {"learning_rate": float(rate), "weight_decay": read_decimal("norm_coefficient")}
    if node.operator == "Adam":
        operation, states = "adam_step", ("mean", "square")
        options |= {"beta_1": read_decimal("alpha"), "beta_2": read_decimal("beta"), "eps": read_decimal("epsilon")}
        options |= {"step": UNCORRECTED, "decoupled": False}
    else:
        operation, states = "sgd_step", ("velocity",)
        options |= {"momentum": read_decimal("alpha"), "nesterov": node.attributes["mode"] == b"nesterov"}
    names = ("parameters", "gradients", *states)
    count = len(arrays) // len(names)
    cases = [make_case(operation, dict(zip(names, arrays[i::count], strict=True)), **options) for i in range(count)]
    results = [Output([case], result=name) for name in ("parameters", *states) for case in cases]
    return dict(zip(node.outputs, results, strict=True))


UNCORRECTED = 2**30 - 1
"""The step before one at which no beta below 1 - 1e-7 leaves anything to correct."""


def translate_gelu(node: Node) -> Translation:
    """The activation of a network with one column, whose weights are 1."""
    x = node.inputs["X"]
    inputs = {"x": x.reshape(-1, 1)} | dict.fromkeys(("inner.weight", "outer.weight"), np.ones((1, 1), x.dtype))
    activation = {b"none": "gelu", b"tanh": "gelu_tanh"}[node.attributes.get("approximate", b"none")]
    return {"Y": Output([make_case("feed_forward", inputs, activation=activation)], lambda y: y.reshape(x.shape))}


TRANSLATIONS: dict[str, Callable[[Node], Translation]] = {
    "Attention": translate_attention,
    "LayerNormalization": translate_layer_norm,
    "RMSNormalization": translate_rms_norm,
    "SoftmaxCrossEntropyLoss": translate_loss,
    "NegativeLogLikelihoodLoss": translate_loss,
    "Adam": translate_step,
    "Momentum": translate_step,
    "Gelu": translate_gelu,
    "Swish": lambda node: {"Y": Output([make_case("silu", {"x": node.inputs["X"]})])},
    "LogSoftmax": lambda node: {"output": translate_log_softmax(node.inputs["input"], node.attributes.get("axis", -1))},
}


def is_translated(node: Node) -> bool:
    is_silu = node.operator != "Swish" or node.attributes.get("alpha", 1) == 1
    return is_silu and node.operator in TRANSLATIONS and not node.inputs.keys() & UNTRANSLATED


def translate(node: Node) -> Translation:
    """Every output of the node, in its order."""
    outputs = TRANSLATIONS[node.operator](node)
    return {name: outputs[name] for name in node.outputs}
