"""Losses of classes."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases.axes import Described, leading
from conformance.cases.case import Case
from conformance.cases.operation import OperationFacts, Rows, Shape


def loss_shape(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["targets"].shape if case.options.get("reduction") == "none" else ()


def loss_dimensions(case: Case) -> dict[str, int]:
    rows = case.inputs.get("logits", case.inputs.get("log_probabilities"))
    return {"rows": case.inputs["targets"].size, "classes": 0 if rows is None else rows.shape[-1]}


def loss_axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["targets"], 0)
    whole = (*rows, ("classes",))
    arrays = {"targets": rows, "logits": whole, "log_probabilities": whole}
    arrays["-> output"] = rows if case.options.get("reduction") == "none" else ()
    return sizes | {"classes": loss_dimensions(case)["classes"]}, arrays, {}


CROSS_ENTROPY = OperationFacts(
    name="cross_entropy",
    rules={"": "LOSS-1"},
    arguments=("logits", "targets"),
    differentiated=("logits",),
    rows=Rows("logits", lambda case: 1),
    shape=loss_shape,
    dimensions=loss_dimensions,
    axes=loss_axes,
)
NLL_LOSS = replace(
    CROSS_ENTROPY,
    name="nll_loss",
    rules={"": "LOSS-2"},
    arguments=("log_probabilities", "targets"),
    differentiated=("log_probabilities",),
    copies=True,
    rows=Rows("log_probabilities", lambda case: 1),
)
