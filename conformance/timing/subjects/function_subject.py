"""A plain function as a subject: with the parameters and the declaration that `conformance check` reads.

It gets its inputs, layout and masks as in a check. A function without a parameter `mask` that has a causal flag gets
this flag. What it does not support is left out, with what it declares or lacks as the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.case import Case as JudgedCase
from conformance.cases.case import numpy_dtype
from conformance.cases.declaration import FEATURES, PRECISIONS, Declaration
from conformance.cases.features import unsupported_features
from conformance.cases.signatures import describe_never_given, parameter_names
from conformance.checks.findings import Finding
from conformance.reports.sentences import describe_finding
from conformance.runner.array_guess import make_subject
from conformance.runner.in_process import TIME_LIMIT
from conformance.subjects.callables import CallableSubject, Target
from conformance.subjects.gradients import gradients_by_name
from conformance.subjects.subject import describe_value, type_name
from conformance.subjects.wrong_answers import WrongAnswer
from conformance.timing.subjects import jax_subjects, numpy_subjects, torch_subjects
from conformance.timing.subjects.timed_subject import BTHD, Prepared, Subject, Wrong, usual_layout
from conformance.timing.timed_case import Arrays, Case, dense_mask, mask
from specification.masks import map_arrays

PREPARED: dict[str, Callable[..., Prepared]] = {
    "numpy": numpy_subjects.prepared,
    "torch": torch_subjects.prepared,
    "jax": jax_subjects.prepared,
}
"""By framework: from a function to what is timed."""
FLAGS = ("is_causal", "causal")
EPS = 1e-5


def function_subject(
    target: str, function: Callable[..., Any], operation: str, arrays: str | None, device: str
) -> Subject:
    """Return the subject that calls a function; ValueError says what is wrong with its declaration or its arrays.

    Args:
        target: where its process finds the function; the subject's name.
        function: what is there.
        operation: what it computes.
        arrays: that it takes; None for a guess.
        device: on which a guess calls it.
    """
    made, subject = make_subject(Target(function, operation, arrays, device), TIME_LIMIT)
    assert made.arrays is not None
    declaration, flag = subject.declaration, find_causal_flag(function)
    return Subject(
        target,
        operation,
        made.arrays,
        (made.arrays,),
        prepare_function,
        (target, made.arrays),
        device="cpu" if made.arrays == "numpy" else "cpu or cuda",
        takes=partial(find_unsupported, replace(declaration, vjp=None), flag),
        conventions={name: value for name, value in declaration.conventions.items() if name in PRECISIONS},
        yours=True,
    )


def find_causal_flag(function: Callable[..., Any]) -> str:
    """Return the name of the parameter that makes it causal; empty where it has none, or takes a mask."""
    names, _ = parameter_names(function)
    return "" if "mask" in names else next((flag for flag in FLAGS if flag in names), "")


def shape_case(case: Case, description: Any) -> JudgedCase:
    """The case as the judge has it, with zeros that take no memory."""
    zero = np.zeros((), numpy_dtype(case.dtype))
    arrays = {name: np.broadcast_to(zero, shape) for name, shape in case.shapes.items()}
    cotangents = {"output": arrays.pop("cotangent")} if case.backward else {}
    options = {"mask": description} if case.operation == "attention" else {"eps": EPS}
    return JudgedCase(case.operation, case.dtype, arrays, options, cotangents)


def find_unsupported(declaration: Declaration, flag: str, case: Case) -> str:
    """Why the function is not given the case, in a line; empty if it is."""
    description = None if flag and case.kind == "causal" else mask(case, 0)
    lacking = next(unsupported_features(shape_case(case, description), declaration), "")
    return f"it does not support {FEATURES.get(lacking, lacking)}" if lacking else ""


@cache
def load_function(target: str, operation: str, arrays: str, device: str) -> CallableSubject:
    """Return the function as the judge calls it, loaded once in this process."""
    subject = Target(target, operation, arrays, device).make()
    assert isinstance(subject, CallableSubject)
    return subject


class Slot(NamedTuple):
    """Stands for an array in the arguments of a call."""

    number: int


def prepare_function(case: Case, device: str, target: str, arrays: str) -> Prepared:
    """Ready for the case. Arguments are bound to the signature beforehand; a call only puts its arrays there."""
    subject = load_function(target, case.operation, arrays, device)
    function, declaration, framework = subject.function, subject.declaration, subject.framework
    flag, structured = find_causal_flag(function), "structured" in declaration
    masked = case.kind != "dense" and not flag
    fixed = structured and case.kind in ("causal", "window")  # holds no arrays: JAX compiles it in

    def convert_mask(description: Any) -> Any:
        if structured:
            return map_arrays(description, framework.array)
        allowed = dense_mask(case, description)
        allowed = np.broadcast_to(allowed, (*allowed.shape[:2], case.Q, case.K))
        return framework.array(~allowed if declaration.convention("polarity") == "masked" else allowed)

    count = len(case.inputs)
    keywords: dict[str, Any] = {"eps": EPS} if case.operation == "layer_norm" else {}
    if masked:
        keywords["mask"] = mask(case, 0) if fixed else Slot(count)
    by_place, by_name = subject.signature.bind_arguments([Slot(number) for number in range(count)], keywords)
    if flag:
        by_name[flag] = case.kind == "causal"

    def bind(given: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        def put(value: Any) -> Any:
            return given[value.number] if type(value) is Slot else value

        return [put(value) for value in by_place], {name: put(value) for name, value in by_name.items()}

    both = declaration.returns_both(case.operation)

    def apply(*given: Any) -> Any:
        positional, named = bind(given)
        returned = function(*positional, **named)
        output = returned[0] if both and isinstance(returned, tuple | list) else returned
        if not isinstance(output, framework.kind):
            raise Wrong(f"returned {describe_value(returned)}, expected {type_name(framework.kind)}")
        return output

    judged, vjp = shape_case(case, None), declaration.vjp
    of_rows = (case.B, case.Q, case.H) if declaration.layout == "BTHD" else (case.B, case.H, case.Q)
    zeros = [framework.array(np.zeros(of_rows, np.float32))] if both and case.backward else []

    def differentiate(*given: Any) -> list[Any]:
        inputs, cotangent, extra = given[:count], given[count], given[count + 1 :]
        positional, named = bind((*inputs, *extra))
        assert vjp is not None
        returned = vjp(*positional, cotangent, *zeros, **named)
        try:
            gradients = gradients_by_name(judged, returned, framework.kind, declaration.lacking)
        except WrongAnswer as error:
            raise Wrong(describe_finding(Finding(error.name, np.inf, detail=error.detail))) from error
        return [gradients.get(name) for name in case.inputs]

    layout = BTHD if declaration.layout == "BTHD" and case.operation == "attention" else usual_layout(case)
    ready = PREPARED[arrays](
        case,
        device,
        apply,
        convert_mask if masked and not fixed else None,
        gradients=None if vjp is None else differentiate,
        layout=layout,
    )
    form = flag or ("" if not masked else "description" if structured else "boolean array")
    never_given = [name for name in subject.signature.never_given if name != flag]
    notes = (describe_never_given(never_given, case.operation),) if never_given else ()
    return tile_heads(replace(ready, form=form, notes=notes), subject.head_order(judged))


def tile_heads(ready: Prepared, order: np.ndarray | None) -> Prepared:
    """Ready for a function that reads key head h % G: query heads in the order in which it reads the same ones."""
    if order is None:
        return ready
    of_query_heads, back = ("query", "cotangent", "output", "gradient of query"), np.argsort(order)

    def load(arrays: Arrays, description: Any) -> Any:
        ordered = {name: array[:, order] if name in of_query_heads else array for name, array in arrays.items()}
        return ready.load(ordered, description)

    def view(result: Any, name: str) -> Any:
        viewed = ready.view(result, name)
        return viewed[:, back] if name in of_query_heads else viewed

    return replace(ready, load=load, view=view)
