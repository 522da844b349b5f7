"""How ONNX's LayerNormalization (opset 17) and RMSNormalization (opset 23) map to the definition.

    ONNX                    here
    X                       x
    Scale, B                weight and bias, in the shape of the axes that are normalised
    axis                    the rank of the weight: all axes from `axis` on; negative ones count from the back
    epsilon                 eps, inside the root
    stash_type              nothing: statistics are in float32 or wider (NORM-2)
    Mean, InvStdDev         read off the normalised row

Mean and InvStdDev. With weight 1 and no bias, a row's result is the straight line y = (x - mean) / deviation. Its slope
between the row's smallest and largest element is InvStdDev; the mean is where it is 0, read from the element nearest
to it. No operation here returns the statistics by themselves. A constant row has no slope; no case has one.

Differs. ONNX rounds the normalised row to the dtype of X before Scale and B; here the result is rounded once, at the
end. In the cases, which are all float32, the two are the same.
"""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Case
from conformance.onnx.cases import NodeCase
from conformance.onnx.translation import Translated, Translation, present_arguments
from specification.dtypes import dtype_name

EPSILON = 1e-5
"""ONNX's default."""


def layer_normalization(node: NodeCase) -> Translation:
    """Every output of the node."""
    x, shape = node.inputs["X"], normalized_shape(node)
    options = {"eps": node.attributes.get("epsilon", EPSILON)}
    affine = {name: parameter(node, onnx) for name, onnx in (("weight", "Scale"), ("bias", "B"))}
    plain = Case("layer_norm", dtype_name(x), {"x": x, "weight": np.ones(shape, x.dtype)}, options)
    line = StraightLine(x, len(shape))
    outputs: Translation = {
        "Y": Translated(Case("layer_norm", dtype_name(x), present_arguments({"x": x} | affine), options)),
        "Mean": Translated(plain, line.mean, line.mean_bound, "float32"),
        "InvStdDev": Translated(plain, line.slope, line.slope_bound, "float32"),
    }
    return {name: outputs[name] for name in node.outputs}


def rms_normalization(node: NodeCase) -> Translation:
    """The node's only output."""
    x = node.inputs["X"]
    options = {"eps": node.attributes.get("epsilon", EPSILON)}
    inputs = present_arguments({"x": x, "weight": parameter(node, "scale")})
    return {"Y": Translated(Case("rms_norm", dtype_name(x), inputs, options))}


def normalized_shape(node: NodeCase) -> tuple[int, ...]:
    shape = node.inputs["X"].shape
    axis = node.attributes.get("axis", -1)
    return shape[axis % len(shape) :]


def parameter(node: NodeCase, name: str) -> np.ndarray | None:
    """In the full shape of the normalised axes, to which ONNX lets it be broadcast."""
    array = node.inputs.get(name)
    return None if array is None else np.array(np.broadcast_to(array, normalized_shape(node)))


class StraightLine:
    """y = slope * (x - mean) in every row, of which y is known.

    Everything is read in float64, so only the errors of y count.
    """

    def __init__(self, x: np.ndarray, axes: int) -> None:
        """axes: how many trailing ones make up a row."""
        self.shape = (*x.shape[: x.ndim - axes], *(1,) * axes)
        self.x = x.reshape(int(np.prod(self.shape)), -1).astype(np.float64)
        self.low, self.high = np.argmin(self.x, axis=1), np.argmax(self.x, axis=1)
        self.near = np.argmin(np.abs(self.x - self.x.mean(axis=1, keepdims=True)), axis=1)
        self.rise = self.take_elements(self.x, self.high) - self.take_elements(self.x, self.low)

    def take_elements(self, array: np.ndarray, index: np.ndarray) -> np.ndarray:
        rows = array.reshape(self.x.shape).astype(np.float64)
        return np.take_along_axis(rows, index[:, None], axis=1).reshape(self.shape)

    def slope(self, y: np.ndarray) -> np.ndarray:
        return (self.take_elements(y, self.high) - self.take_elements(y, self.low)) / self.rise

    def slope_bound(self, y: np.ndarray, bound: np.ndarray) -> np.ndarray:
        return (self.take_elements(bound, self.high) + self.take_elements(bound, self.low)) / self.rise

    def mean(self, y: np.ndarray) -> np.ndarray:
        return self.take_elements(self.x, self.near) - self.take_elements(y, self.near) / self.slope(y)

    def mean_bound(self, y: np.ndarray, bound: np.ndarray) -> np.ndarray:
        """The error of the quotient y / slope."""
        slope, error = self.slope(y), self.slope_bound(y, bound)
        quotient = np.abs(self.take_elements(y, self.near) / slope)
        return (self.take_elements(bound, self.near) + quotient * error) / (slope - error)
