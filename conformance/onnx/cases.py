"""ONNX's own test cases for the operators that are also operations here, collected from the `onnx` package.

ONNX states each case as a model of one node, with inputs and the outputs that it expects, and writes it out a second
time, or a third, as the operator's expansion into smaller ones ("..._expanded"). An expansion has the very same inputs
and expected outputs, so it asks nothing new of an implementation, and is not counted as a case.

What the cases (of onnx 1.23.2) do not reach: no number in a query, key or value is negative, and no query's plain
weights differ by more than a factor of 3, so scores hardly matter; there are at most 18 keys, no NaN, no float64; and
in two of the cases with a boolean mask, "attn_mask_bool" and "attn_mask_bool_4d", it allows every pair.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from specification.dtypes import dtype_name

OPERATORS = {
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
"""ONNX's operators, and the modules under `onnx.backend.test.case.node` that hold their cases."""

SKIPPED = {
    "weights": "weights of classes",
    "weight": "weights of classes",
    "cos_cache": "sines and cosines that are given, and belong to no angle",
}
"""Inputs of which the operations here have none, and what they are. Cases that have one are skipped."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, repr=False)
class NodeCase:
    """One node, its inputs and what ONNX expects of it.

    inputs, outputs: by the names in the operator's definition, without those that the case leaves out. `outputs` is in
    the node's order. relative, absolute: ONNX's tolerances for the case. model: ONNX's own, which holds the node.
    """

    name: str
    operator: str
    inputs: Arrays
    attributes: dict[str, Any]
    outputs: Arrays
    relative: float
    absolute: float
    model: Any

    @property
    def dtype(self) -> str:
        """That of the first input."""
        return dtype_name(next(iter(self.inputs.values())))

    def __repr__(self) -> str:
        return f"NodeCase({self.name})"


def node_cases() -> list[NodeCase]:
    """Every case of the operators, once, but for those that are skipped."""
    return [node for node in all_nodes() if not skip_reason(node)]


def skipped_cases() -> dict[str, str]:
    """The reason for every case that is skipped, by its name."""
    return {node.name: skip_reason(node) for node in all_nodes() if skip_reason(node)}


def all_nodes() -> list[NodeCase]:
    return [node_case(case) for case in collect_cases() if is_node(case)]


def skip_reason(node: NodeCase) -> str:
    if node.operator == "Swish" and node.attributes.get("alpha", 1.0) != 1.0:
        return "another alpha than 1"
    return next((reason for name, reason in SKIPPED.items() if name in node.inputs), "")


def expansions() -> list[tuple[Any, Any]]:
    """Every expansion, beside the case that it expands; both as ONNX has them."""
    by_name = {case.name: case for case in collect_cases()}
    return [(case, by_name[expanded_name(case)]) for case in by_name.values() if not is_node(case)]


def collect_cases() -> list[Any]:
    """ONNX's `TestCase`s of the operators, expansions included."""
    state = np.random.get_state()  # the modules seed NumPy's global generator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in OPERATORS.values():  # to import a module is to collect its cases
            import_module(f"onnx.backend.test.case.node.{module}")
    np.random.set_state(state)
    cases = import_module("onnx.backend.test.case.node")._NodeTestCases
    nodes = {case.name for case in cases if is_node(case)}
    return [case for case in cases if expanded_name(case) in nodes]


def is_node(case: Any) -> bool:
    """One node of one of the operators; an expansion has other nodes."""
    nodes = case.model.graph.node
    return len(nodes) == 1 and nodes[0].op_type in OPERATORS


def expanded_name(case: Any) -> str:
    """The name of the case that this one expands; its own if it is no expansion."""
    return case.name.partition("_expanded")[0]


def node_case(case: Any) -> NodeCase:
    """ONNX's `TestCase` with everything by name."""
    node, (dataset,) = case.model.graph.node[0], case.data_sets
    schema = import_module("onnx.defs").get_schema(node.op_type, case.model.opset_import[0].version, node.domain)
    value = import_module("onnx.helper").get_attribute_value
    return NodeCase(
        case.name.removeprefix("test_"),
        node.op_type,
        name_arrays(schema.inputs, node.input, dataset[0]),
        {attribute.name: value(attribute) for attribute in node.attribute},
        name_arrays(schema.outputs, node.output, dataset[1]),
        case.rtol,
        case.atol,
        case.model,
    )


def name_arrays(parameters: Any, present: Any, arrays: Any) -> Arrays:
    """The arrays under the operator's own names; an empty name in the node stands for a parameter that is left out.

    Where the operator takes any number of arrays, they have the node's names.
    """
    if any(parameter.option.name == "Variadic" for parameter in parameters):
        return dict(zip(present, arrays, strict=True))
    names = [parameter.name for parameter, given in zip(parameters, present, strict=False) if given]
    return dict(zip(names, arrays, strict=True))
