"""Models of one ONNX node, and the two that run them: ONNX Runtime, and ONNX's reference evaluator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[dict[str, Any]], list[Any]]
CONTRIBUTED = "com.microsoft"
IR_VERSIONS = {17: 8, 23: 11, 24: 11, 25: 12}
"""By opset: the version of the model format that came with it."""


def runtime(serialized: bytes) -> Run:
    """ONNX Runtime on the CPU, in one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def reference(serialized: bytes) -> Run:
    """`onnx.reference.ReferenceEvaluator`."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(serialized)
    return lambda feeds: list(evaluator.run(None, feeds))


RUNNERS = {"runtime": runtime, "reference": reference}


def run(
    runner: str, operator: str, opset: int, inputs: dict[str, Any], domain: str = "", **attributes: int | float | None
) -> Any:
    """The node's first output. Inputs in the node's order, None for one that is left out; attributes None likewise."""
    kinds = tuple((name, array_kind(array)) for name, array in inputs.items())
    given = tuple((name, value) for name, value in attributes.items() if value is not None)
    call = prepare_run(runner, operator, opset, domain, kinds, given)
    return call({name: array for name, array in inputs.items() if array is not None})[0]


def array_kind(array: np.ndarray | None) -> tuple[str, int] | None:
    return None if array is None else (str(array.dtype), array.ndim)


@functools.cache
def prepare_run(
    runner: str,
    operator: str,
    opset: int,
    domain: str,
    kinds: tuple[tuple[str, Any], ...],
    attributes: tuple[tuple[str, Any], ...],
) -> Run:
    return RUNNERS[runner](model(operator, opset, domain, kinds, attributes))


def model(
    operator: str, opset: int, domain: str, kinds: tuple[tuple[str, Any], ...], attributes: tuple[tuple[str, Any], ...]
) -> bytes:
    """One node with inputs of these names, dtypes and ranks, of any size."""
    from onnx import helper

    names = [name if kind else "" for name, kind in kinds]
    while not names[-1]:
        names.pop()
    node = helper.make_node(operator, names, ["Y"], domain=domain, **dict(attributes))
    values = [value(name, *kind) for name, kind in kinds if kind]
    dtype, rank = kinds[0][1]
    graph = helper.make_graph([node], operator, values, [value("Y", dtype, rank)])
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    built = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSIONS[opset])
    return bytes(built.SerializeToString())


def value(name: str, dtype: str, rank: int) -> Any:
    from onnx import TensorProto, helper

    kinds = {"float64": "DOUBLE", "float32": "FLOAT"}
    return helper.make_tensor_value_info(name, getattr(TensorProto, kinds.get(dtype, dtype.upper())), [None] * rank)
