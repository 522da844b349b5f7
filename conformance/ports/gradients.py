"""Gradients of a port: of every entry of its checkpoint, held to the noise of the definition's (`noisy_arrays.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import reference_numpy
from conformance.checks.comparison import compare
from conformance.checks.findings import Finding
from conformance.models.stepwise import replace_nan
from conformance.oracle.reference import Exact
from conformance.ports.cases import ModelCase, round_array
from conformance.ports.diagnosis import name_sublayer, shorten
from conformance.ports.noisy_arrays import bound_noise
from conformance.ports.subject import Answer
from conformance.subjects.wrong_answers import Detail, DtypeOrShape, Missing
from specification.calls import Functions, model_calls
from specification.checkpoints import flatten
from specification.parameters import MultiHeadAttention

NAMES = ("encoder", "decoder", "language_model", "transformer", "classifier")
# A single attention has no such function: it gets one that is never called.
FUNCTIONS = model_calls(
    Functions(
        **{name: getattr(reference_numpy, f"{name}_vjp") for name in NAMES}, attend=dict, multi_head_attention=dict
    )
)
del FUNCTIONS[MultiHeadAttention]
"""The definition's gradients, by the structure of the parameters: called as the model, with `cotangent` by keyword."""


def make_gradient_case(case: ModelCase, generator: np.random.Generator) -> ModelCase:
    """Return the case with a cotangent of its result, of numbers that its dtype holds."""
    cotangent = round_array(generator.normal(size=case.exact.shape), case.dtype)
    call = replace(case.call, cotangent=cotangent, twice=False)
    return replace(case, probe="gradients of all entries", rule="ATT-12", call=call)


def compare_gradients(case: ModelCase, answer: Answer) -> tuple[list[Finding], GradientCause | None]:
    """Return a finding for every entry of the checkpoint, and where wrong numbers begin.

    Where there are no gradients, there is one finding, of what stands in their place.
    """
    if answer.detail is not None or answer.gradients is None:
        return [Finding("gradients", np.inf, detail=answer.detail, raised_at=answer.raised_at)], None
    exact, bounds = bound_gradients(case)
    due = case.checkpoint.sum_gradients(exact)
    limits = {name: replace_nan(bound) for name, bound in case.checkpoint.sum_gradients(bounds).items()}
    found: dict[str, Finding] = {}
    for name, array in due.items():
        got = answer.gradients.get(name)
        if got is not None and got.shape == array.shape:
            right = Exact(array, 0 * array)
            found[name] = compare(f"gradient of {name}", got.astype(float), right, limits[name], "float64")
            continue
        detail: Detail = Missing()
        if got is not None:
            due_dtype = "float64" if case.dtype == "float64" else "float32"  # that of the entries
            detail = DtypeOrShape(str(got.dtype), got.shape, (due_dtype,), array.shape)
        found[name] = Finding(f"gradient of {name}", np.inf, detail=detail)
    wrong = {name: finding for name, finding in found.items() if not finding.ratio <= 1}
    if not wrong or any(finding.detail is not None for finding in wrong.values()):
        return [*found.values()], None
    return [*found.values()], find_gradient_cause(case, wrong, answer.gradients, exact, bounds)


def bound_gradients(case: ModelCase) -> tuple[Any, Any]:
    """Return the exact gradients of the definition's parameters, and their bounds."""
    arrays, run = gather_gradients(case)
    return bound_noise(run, arrays, case.dtype)


def gather_gradients(case: ModelCase) -> tuple[Any, Callable[[Any], Any]]:
    """Return parameters, inputs and cotangent, and the function from these to the gradients of the parameters."""
    function = FUNCTIONS[type(case.checkpoint.parameters)]
    options = {**case.call.options, "configuration": case.checkpoint.configuration}

    def run(arrays: tuple[Any, ...]) -> Any:
        parameters, inputs, cotangent = arrays
        found = function(parameters, *inputs, cotangent=cotangent, **options)
        return found if isinstance(found, type(parameters)) else found.parameters

    cotangent = np.asarray(case.call.cotangent, np.float64)
    return (case.checkpoint.parameters, case.computation.inputs, cotangent), run


BIAS = "relative_position_bias"
"""In the name of the step that reads a table of relative positions."""

# --- what is wrong ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientCause:
    """Where gradients begin to be wrong, on their way backwards.

    Attributes:
        step: the sublayer, by the definition's path.
        entries: names of its wrong entries, the worst first. shown: the finding of that.
        mistake: "gradient.detached" where no gradient reaches some parameters, "gradient.rows-missing" where it reaches
            some rows of a table alone, "gradient.part-missing" where an entry that is read twice lacks the gradient of
            one reading; else empty.
        paths: of the parameters that the mistake is about.
    """

    step: str
    entries: tuple[str, ...]
    shown: Finding
    mistake: str = ""
    paths: tuple[str, ...] = ()


def find_gradient_cause(
    case: ModelCase, wrong: Mapping[str, Finding], got: Mapping[str, np.ndarray], exact: Any, bounds: Any
) -> GradientCause:
    """Return where gradients begin to be wrong: in the last sublayer of the forward pass that has a wrong entry.

    Gradients go backwards, so that those before it have its error. What is read twice, such as a tied table, has the
    errors of both places, and decides only where nothing else is wrong.
    """
    checkpoint, readers = case.checkpoint, flatten(case.checkpoint.places)
    total, limits, given = (
        np.concatenate([np.ravel(entries[name]) for name in checkpoint.shapes])
        for entries in (checkpoint.sum_gradients(exact), checkpoint.sum_gradients(bounds), got)
    )
    owners = np.repeat([*checkpoint.shapes], [int(np.prod(shape)) for shape in checkpoint.shapes.values()])
    readings = np.zeros(len(owners), int)
    for place in readers.values():
        np.add.at(readings, place, 1)

    mistakes: dict[str, str] = {}
    places = {path: place for path, place in readers.items() if np.isin(owners[place], [*wrong]).any()}
    for path, place in places.items():
        part, limit = flatten(exact)[path], limits[place]
        if readings[place].max() == 1:
            if np.any(np.abs(part) > limit) and not np.any(given[place]):
                mistakes[path] = "gradient.detached"
            elif (
                "embedding" in path
                and part.ndim == 2
                and not np.any(given[place][(np.abs(given[place] - part) > limit).any(axis=1)])
            ):
                mistakes[path] = "gradient.rows-missing"
        elif np.all(np.abs(given[place] - (total[place] - part)) <= limit):
            mistakes[path] = "gradient.part-missing"

    steps = list[str]()
    case.computation.run(watch=lambda name, _: steps.append(name if BIAS in name else name.partition(":")[0]))

    def is_read(path: str, name: str) -> bool:
        if BIAS in name:
            return "relative_positions" in path and name.startswith(path.partition("relative_positions")[0])
        return name != "" and path.startswith(name)

    def order(path: str) -> int:
        return max((number for number, name in enumerate(steps) if is_read(path, name)), default=0)

    once = [path for path, place in places.items() if readings[place].max() == 1]
    decisive = once or [*mistakes] or [*places]
    step = name_sublayer(steps[max(map(order, decisive))], case)
    there = [path for path in decisive if name_sublayer(steps[order(path)], case) == step]
    entries = {str(name) for path in there for name in owners[places[path]].flat} & wrong.keys()
    named = sorted(entries, key=lambda name: -wrong[name].ratio)
    blamed = tuple(path for path in there if path in mistakes)
    short = tuple(shorten(path, case) for path in blamed)
    return GradientCause(step, tuple(named), wrong[named[0]], mistakes[blamed[0]] if blamed else "", short)
