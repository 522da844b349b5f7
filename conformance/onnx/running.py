"""ONNX's cases, put to an implementation and judged twice: by ONNX's tolerances, and by the bounds derived here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np

from conformance.bounds import bound
from conformance.cases.expectations import Exact
from conformance.checks.comparison import ratio
from conformance.onnx.activations import gelu, log_softmax, swish
from conformance.onnx.attention import attention
from conformance.onnx.cases import Arrays, NodeCase
from conformance.onnx.losses import negative_log_likelihood_loss, softmax_cross_entropy_loss
from conformance.onnx.normalization import layer_normalization, rms_normalization
from conformance.onnx.optimizers import adam, momentum
from conformance.onnx.translation import Copied, Translated, Translation
from conformance.oracle.reference import oracle
from conformance.subjects.subject import Subject

TRANSLATIONS = {
    "Attention": attention,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy_loss,
    "NegativeLogLikelihoodLoss": negative_log_likelihood_loss,
    "Adam": adam,
    "Momentum": momentum,
    "Gelu": gelu,
    "Swish": swish,
    "LogSoftmax": log_softmax,
}


@dataclass(frozen=True)
class Bridged:
    """A case of ONNX's, translated, with the truth of every output and its bound."""

    node: NodeCase
    translation: Translation
    truths: dict[str, tuple[Exact, np.ndarray]]

    def ratios(self, outputs: Arrays) -> dict[str, float]:
        """The worst |output - truth| / bound of every output; infinity for a shape or dtype that is not ONNX's."""
        return {name: self.ratio(name, array) for name, array in outputs.items()}

    def ratio(self, name: str, got: np.ndarray) -> float:
        exact, error = self.truths[name]
        if got.shape != exact.high.shape or got.dtype != self.node.outputs[name].dtype:
            return float("inf")
        with np.errstate(invalid="ignore"):  # widening a NaN of 16 bits
            return float(np.max(ratio(got.astype(np.float64), exact, error, str(got.dtype)), initial=0.0))


def bridge_node(node: NodeCase) -> Bridged:
    translation = TRANSLATIONS[node.operator](node)
    return Bridged(node, translation, {name: truth_of(part) for name, part in translation.items()})


def truth_of(part: Translated | Copied) -> tuple[Exact, np.ndarray]:
    if isinstance(part, Copied):
        zeros = np.zeros(part.array.shape)
        return Exact(part.array.astype(np.float64), zeros), zeros
    return part.truth(oracle(part.case)[part.result], bound(part.case)[part.result])


def outputs_of(subject: Subject, translation: Translation) -> Arrays:
    """The node's outputs, when the subject computes them."""
    results: dict[int, Arrays] = {}
    outputs = {}
    for name, part in translation.items():
        outputs[name] = part.array if isinstance(part, Copied) else part.output(result_of(subject, part, results))
    return outputs


def result_of(subject: Subject, part: Translated, results: dict[int, Arrays]) -> np.ndarray:
    """A case is computed once, though several outputs may be read off it."""
    if id(part.case) not in results:
        results[id(part.case)] = subject(part.case)
    return results[id(part.case)][part.result]


def objection(node: NodeCase, outputs: Arrays) -> str:
    """What ONNX's own test runner says against these outputs; empty if it accepts them."""
    runner = import_module("onnx.backend.test.runner").Runner
    expected, got = ([arrays[name] for name in outputs] for arrays in (node.outputs, outputs))
    try:
        runner.assert_similar_outputs(expected, got, node.relative, node.absolute)
    except AssertionError as error:
        return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return ""


@dataclass(frozen=True)
class Outcome:
    """One implementation on one case. ratio: its worst error in units of the bound. objection: ONNX's, if any."""

    node: NodeCase
    ratio: float
    objection: str

    @property
    def conforms(self) -> bool:
        return self.ratio <= 1 and not self.objection


def outcome(subject: Subject, case: Bridged) -> Outcome:
    outputs = outputs_of(subject, case.translation)
    return Outcome(case.node, max(case.ratios(outputs).values()), objection(case.node, outputs))
