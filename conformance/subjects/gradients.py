"""From what a function for gradients returns to gradients by the names of a case's inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from conformance.cases.arguments import is_nested, name_field
from conformance.cases.case import Case, list_arrays
from conformance.cases.facts import operation_facts
from conformance.cases.signatures import definition
from conformance.subjects.subject import describe_value, type_name
from conformance.subjects.wrong_answers import ReturnedGradients, WrongAnswer
from specification import Linear

if TYPE_CHECKING:
    from specification.arrays import Array


def gradients_by_name(case: Case, returned: object, kind: type, lacking: Collection[str] = ()) -> dict[str, Any]:
    """The gradients of the case's inputs; `WrongAnswer` says what came in place of them.

    returned: by name in a dictionary or a named tuple, or in the order of the operation's arguments in a tuple or list,
    where an argument that is absent may have None, or nothing. For a single argument its gradient alone will do.
    `parameters` are structured as they are given; so are the parts of a merge. kind: of the framework's arrays.
    lacking: arguments for which the function has no parameter.
    """
    record = operation_facts(case.operation)
    names = [name for name in definition(case.operation) if name in record.differentiated and name not in lacking]
    made = ("parameters", *record.lists, *record.projections)
    present = [name for name in names if name in made or name in case.inputs]
    if hasattr(returned, "_asdict"):
        returned = returned._asdict()
    elif isinstance(returned, kind) and len(present) == 1:
        returned = {present[0]: returned}
    elif isinstance(returned, tuple | list):
        returned = dict(pair_gradients(returned, names, present))
    if not isinstance(returned, dict):
        raise WrongAnswer(ReturnedGradients(describe_value(returned), names=tuple(present)))
    flat: dict[str, Any] = {}
    for name, gradient in returned.items():
        if gradient is not None:
            flat |= split_gradient(case, name, gradient)
    gradients = {name: gradient for name, gradient in flat.items() if name in case.inputs and gradient is not None}
    for name, gradient in gradients.items():
        if not isinstance(gradient, kind):
            raise WrongAnswer(ReturnedGradients(describe_value(gradient), of=name, array=type_name(kind)))
    return gradients


def pair_gradients(
    returned: tuple[Any, ...] | list[Any], names: list[str], present: list[str]
) -> Iterator[tuple[str, Any]]:
    """One for each argument, or for each that is present."""
    given = [gradient for gradient in returned if gradient is not None]
    if len(returned) == len(names):
        return zip(names, returned, strict=True)
    if len(given) == len(present):
        return zip(present, given, strict=True)
    if len(returned) == len(present):
        return zip(present, returned, strict=True)
    raise WrongAnswer(ReturnedGradients(describe_value(returned), names=tuple(present)))


def split_gradient(case: Case, name: str, gradient: object) -> dict[str, Any]:
    """Of one argument, by the names of the inputs of which it consists."""
    record = operation_facts(case.operation)
    if name in record.lists:
        parts = list_arrays(case.inputs, name)
        if not isinstance(gradient, tuple | list) or len(gradient) != len(parts):
            raise WrongAnswer(ReturnedGradients(describe_value(gradient), of=name, count=len(parts)))
        return {f"{name}[{i}]": part for i, part in enumerate(gradient)}
    if name in record.projections and hasattr(gradient, "weight"):
        return linear_gradients(name, gradient)
    if name != "parameters":
        return {name: gradient}
    if isinstance(gradient, dict):
        return gradient
    flat: dict[str, Any] = {}
    for field in record.structure.fields if record.structure is not None else ():
        if not hasattr(gradient, field):
            raise WrongAnswer(ReturnedGradients(describe_value(gradient), of=name, lacks=field))
        own = getattr(gradient, field)
        nested = is_nested(record, field, own)
        flat |= name_field(field, own) if nested else projection_gradients(case, field, own)
    return flat


def projection_gradients(case: Case, name: str, gradient: Any) -> dict[str, Any]:
    """Of a projection, or of those of all heads, which may come side by side."""
    heads = list_arrays(case.inputs, name, ".weight")
    if not hasattr(gradient, "weight") and not (isinstance(gradient, tuple | list) and len(gradient) == len(heads)):
        raise WrongAnswer(ReturnedGradients(describe_value(gradient), of=name))
    if not heads:
        return linear_gradients(name, gradient)
    if hasattr(gradient, "weight"):
        stops = pairwise(accumulate((head.shape[1] for head in heads), initial=0))
        biases = getattr(gradient, "bias", None)
        gradient = [Linear(columns(gradient.weight, *cut), columns(biases, *cut)) for cut in stops]
    return {n: g for i, head in enumerate(gradient) for n, g in linear_gradients(f"{name}[{i}]", head).items()}


def columns(whole: Array | None, start: int, stop: int) -> Any:
    return None if whole is None else whole[..., start:stop]


def linear_gradients(name: str, gradient: object) -> dict[str, Any]:
    return {f"{name}.{field}": getattr(gradient, field, None) for field in ("weight", "bias")}
