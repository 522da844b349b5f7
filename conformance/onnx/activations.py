"""How ONNX's Gelu (opset 20), Swish (opset 24) and LogSoftmax (opset 13) map to the definition.

ONNX                    here
Gelu                    feed_forward of rows with one number each, both of whose weights are 1
approximate             activation: "none" is gelu, "tanh" gelu_tanh
Swish                   silu
alpha                   nothing but 1, the default: other cases are skipped
LogSoftmax              minus the cross-entropy of every class as the target
axis                    the axis of the classes, which are the last one here
"""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Case
from conformance.onnx.cases import NodeCase
from conformance.onnx.losses import every_class
from conformance.onnx.translation import Translated, Translation
from specification.dtypes import dtype_name

ACTIVATIONS = {"none": "gelu", "tanh": "gelu_tanh"}
"""By ONNX's `approximate`."""


def gelu(node: NodeCase) -> Translation:
    """The node's only output."""
    x = node.inputs["X"]
    inputs = {"x": x.reshape(-1, 1)} | dict.fromkeys(("inner.weight", "outer.weight"), np.ones((1, 1), x.dtype))
    options = {"activation": ACTIVATIONS[node.attributes.get("approximate", b"none").decode()]}
    return {"Y": Translated(Case("feed_forward", dtype_name(x), inputs, options), lambda y: y.reshape(x.shape))}


def swish(node: NodeCase) -> Translation:
    """The node's only output."""
    x = node.inputs["X"]
    return {"Y": Translated(Case("silu", dtype_name(x), {"x": x}))}


def log_softmax(node: NodeCase) -> Translation:
    """The node's only output."""
    axis = node.attributes.get("axis", -1)
    case = every_class(np.ascontiguousarray(np.moveaxis(node.inputs["input"], axis, -1)))

    def read(losses: np.ndarray) -> np.ndarray:
        return -np.moveaxis(losses, -1, axis)

    return {"output": Translated(case, read, lambda exact, bound: -read(bound))}
