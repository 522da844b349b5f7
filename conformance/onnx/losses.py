"""How ONNX's SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss (opsets 13 and 22) map to the definition.

ONNX                    here
scores, input           logits and log_probabilities, with the classes on the last axis instead of axis 1
labels, target          targets
weights, weight         nothing: a class has no weight, and such cases are skipped
ignore_index            ignore; without it every target counts
reduction               reduction
log_prob                minus the cross-entropy of every class as the target, on axis 1
"""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Case
from conformance.onnx.cases import NodeCase
from conformance.onnx.translation import Translated, Translation, present_arguments
from specification.dtypes import dtype_name


def softmax_cross_entropy_loss(node: NodeCase) -> Translation:
    """Every output of the node."""
    logits = classes_last(node.inputs["scores"])
    inputs = {"logits": logits, "targets": node.inputs["labels"]}
    outputs: Translation = {
        "output": Translated(Case("cross_entropy", dtype_name(logits), inputs, options(node))),
        "log_prob": Translated(every_class(logits), log_probabilities, lambda exact, bound: -log_probabilities(bound)),
    }
    return {name: outputs[name] for name in node.outputs}


def negative_log_likelihood_loss(node: NodeCase) -> Translation:
    """The node's only output."""
    rows = classes_last(node.inputs["input"])
    inputs = {"log_probabilities": rows, "targets": node.inputs["target"]}
    return {"loss": Translated(Case("nll_loss", dtype_name(rows), inputs, options(node)))}


def classes_last(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def options(node: NodeCase) -> dict[str, object]:
    reduction = node.attributes.get("reduction", b"mean").decode()
    return present_arguments({"reduction": reduction, "ignore": node.attributes.get("ignore_index")})


def every_class(logits: np.ndarray) -> Case:
    """Each row once for every class, which is its target: the losses are minus the log-probabilities."""
    V = logits.shape[-1]
    rows = np.repeat(logits[..., None, :], V, axis=-2)
    targets = np.array(np.broadcast_to(np.arange(V), rows.shape[:-1]))
    return Case("cross_entropy", dtype_name(logits), {"logits": rows, "targets": targets}, {"reduction": "none"})


def log_probabilities(losses: np.ndarray) -> np.ndarray:
    return -np.moveaxis(losses, -1, 1)
