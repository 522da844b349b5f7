"""How ONNX's Adam and Momentum (ai.onnx.preview.training, opset 1) map to the definition.

ONNX                         here
X, G                         parameters and gradients; X1, X2, ... are steps of their own
V, H of Adam                 mean and square; alpha and beta are beta_1 and beta_2
V of Momentum                velocity; alpha is momentum, and mode "nesterov" is nesterov
R, T                         learning_rate and the number of the step, from 1; of Adam's step 0 nothing is corrected
epsilon                      eps, divided by sqrt(1 - beta_2^T): ONNX adds it to the root of the uncorrected square
norm_coefficient             weight_decay that is coupled
norm_coefficient_post, beta  0 and 1: there is no decay after the step, and no dampening, but in Momentum's step 0

Attributes are float32 numbers, of which the expected outputs know the decimals; so do these.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.onnx.cases import NodeCase
from conformance.onnx.translation import Translated, Translation
from specification.dtypes import dtype_name

SO_LATE = 2**30 - 1
"""The step before one at which no beta below 1 - 1e-7 leaves anything to correct."""


def adam(node: NodeCase) -> Translation:
    """Every output of the node."""
    number = int(node.inputs["T"])
    beta_2 = decimal(node, "beta", 0.999)
    correction = -math.expm1(number * math.log(beta_2)) if number > 0 else 1.0
    options = {
        "learning_rate": float(node.inputs["R"]),
        "step": number - 1 if number > 0 else SO_LATE,
        "beta_1": decimal(node, "alpha", 0.9),
        "beta_2": beta_2,
        "eps": decimal(node, "epsilon", 1e-6) / math.sqrt(correction),
        "weight_decay": decimal(node, "norm_coefficient", 0.0),
        "decoupled": False,
    }
    return steps(node, "adam_step", ("parameters", "gradients", "mean", "square"), options)


def momentum(node: NodeCase) -> Translation:
    """Every output of the node; ValueError for what the definition has none of."""
    if int(node.inputs["T"]) > 0 and decimal(node, "beta", 1.0) != 1:
        raise ValueError("the definition has no dampening")
    options = {
        "learning_rate": float(node.inputs["R"]),
        "momentum": decimal(node, "alpha", 0.0),
        "nesterov": node.attributes["mode"] == b"nesterov",
        "weight_decay": decimal(node, "norm_coefficient", 0.0),
    }
    return steps(node, "sgd_step", ("parameters", "gradients", "velocity"), options)


def steps(node: NodeCase, operation: str, names: tuple[str, ...], options: dict[str, Any]) -> Translation:
    """One step for each X. Behind R and T come all of them, then all of each other kind of array, in one order."""
    arrays = list(node.inputs.values())[2:]
    count = len(arrays) // len(names)
    kinds = dict(zip(names, (arrays[start : start + count] for start in range(0, len(arrays), count)), strict=True))
    cases = [
        Case(operation, dtype_name(arrays[i]), {name: kind[i] for name, kind in kinds.items()}, options)
        for i in range(count)
    ]
    results = [name for name in names if name != "gradients" for _ in range(count)]
    parts = (Translated(cases[place % count], result=name) for place, name in enumerate(results))
    return dict(zip(node.outputs, parts, strict=True))


def decimal(node: NodeCase, name: str, default: float) -> float:
    """An attribute as the shortest decimal that is the same float32."""
    return float(str(np.float32(node.attributes.get(name, default))))
