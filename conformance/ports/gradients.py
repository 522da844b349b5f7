"""Gradients of a port: of every entry of its checkpoint, held to the bound that is carried through the model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance.checks.comparison import compare
from conformance.checks.findings import Finding
from conformance.models.error_propagation import carried_bound
from conformance.models.stepwise import replace_nan
from conformance.oracle.reference import Exact
from conformance.ports.cases import ModelCase, round_array
from conformance.ports.observation import list_dtypes
from conformance.ports.subject import Answer
from conformance.subjects.wrong_answers import Detail, DtypeOrShape, Missing
from specification.masks import KeyPadding
from specification.parameters import Classifier, Decoder, Encoder, LanguageModel, Transformer

FUNCTIONS = {
    Encoder: "encoder_vjp",
    Decoder: "decoder_vjp",
    LanguageModel: "language_model_vjp",
    Transformer: "transformer_vjp",
    Classifier: "classifier_vjp",
}
"""The definition's functions for gradients, by the structure of the parameters."""


def make_gradient_case(case: ModelCase, generator: np.random.Generator) -> ModelCase:
    """Return the case with a cotangent of its result, of numbers that its dtype holds."""
    cotangent = round_array(generator.normal(size=case.exact.shape), case.dtype)
    call = replace(case.call, cotangent=cotangent, twice=False)
    return replace(case, probe="gradients of all entries", rule="ATT-12", call=call)


def compare_gradients(case: ModelCase, answer: Answer) -> list[Finding]:
    """Return a finding for every entry of the checkpoint, or one for what is wrong in place of gradients."""
    if answer.detail is not None or answer.gradients is None:
        return [Finding("gradients", np.inf, detail=answer.detail, raised_at=answer.raised_at)]
    exact, bounds = bound_gradients(case)
    found = []
    for name, due in exact.items():
        got = answer.gradients.get(name)
        if got is None or got.shape != due.shape:
            detail: Detail = Missing()
            if got is not None:
                detail = DtypeOrShape(str(got.dtype), got.shape, list_dtypes(case.dtype), due.shape)
            found.append(Finding(f"gradient of {name}", np.inf, detail=detail))
            continue
        found.append(compare(f"gradient of {name}", got.astype(float), Exact(due, 0 * due), bounds[name], "float64"))
    return found


def bound_gradients(case: ModelCase) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """By entry: the exact gradient, and its bound."""
    parameters, configuration = case.checkpoint.parameters, case.checkpoint.configuration
    cotangent = np.asarray(case.call.cotangent, np.float64)
    options = convert_options(case)

    def run(functions: SimpleNamespace) -> Any:
        function = getattr(functions, FUNCTIONS[type(parameters)])
        found = function(parameters, *case.computation.inputs, cotangent, configuration=configuration, **options)
        return found if isinstance(found, type(parameters)) else found.parameters

    exact, bounds = carried_bound(run, parameters, case.dtype)
    checkpoint = case.checkpoint
    return checkpoint.sum_gradients(exact), {
        name: replace_nan(bound) for name, bound in checkpoint.sum_gradients(bounds).items()
    }


def convert_options(case: ModelCase) -> dict[str, Any]:
    """Return the options with masks in the place of padding, as the functions for gradients take them."""
    options = dict(case.call.options)
    keep = options.pop("key_padding", None)
    return options if keep is None else options | {"mask": KeyPadding(keep)}
