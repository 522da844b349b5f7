"""From a case's named arrays to an implementation's arguments, and from its gradients back to names.

"query.weight" is a field of a parameter structure, "query[0].weight" that of a per-head projection, "outputs[0]" an
element of a list. Nothing here depends on the framework whose arrays they are.

Kernels have arguments that the definition lacks; they stand for arguments that it has:

alibi_slopes: [H] or [B, H], in the compute dtype. Query i and key j have a bias of -slope |i + K - Q - j| (Press et al.
2022): distances count from the last query, which stands at the last key. Slopes have no gradient.
query_lengths: whole numbers [B]. What follows a sequence's queries is no query: it takes part in nothing, and neither
its output nor its gradient is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case, list_arrays
from conformance.cases.declaration import KERNEL_ARGUMENTS
from conformance.cases.facts import operation_facts
from conformance.cases.operation import OperationFacts, Structure
from specification import FeedForward, GatedFeedForward, Linear, Norm
from specification.dtypes import compute_dtype_name
from specification.masks import Dense, as_mask

GRADIENT = "gradient of "


def gradient_name(name: str) -> str:
    return f"{GRADIENT}{name}"


def gradient_input(name: str) -> str | None:
    """The input of whose gradient this is the name; None for the name of a result."""
    return name.removeprefix(GRADIENT) if name.startswith(GRADIENT) else None


def is_gradient(name: str) -> bool:
    return gradient_input(name) is not None


def result_names(operation: str) -> tuple[str, ...]:
    return operation_facts(operation).results


def results_of(case: Case) -> tuple[str, ...]:
    """Names of the results that the case asks for: those of a list and of a state one by one."""
    record = operation_facts(case.operation)
    names: list[str] = []
    for name in record.results:
        if name in record.lists:
            names += [f"{name}[{i}]" for i in range(len(list_arrays(case.inputs, name)))]
        else:
            names += record.state.fields if record.state is not None and name == "state" else [name]
    return (*names, *(("logsumexp",) if case.with_logsumexp else ()))


def expected_dtype(name: str, case: Case) -> str:
    """Results have the dtype of the inputs or the compute dtype, gradients that of their argument.

    A list's have that of the array in the same place; whole numbers are int32.
    """
    argument = gradient_input(name) or name
    if argument in case.inputs:
        return str(case.inputs[argument].dtype)
    if isinstance(case.options.get(name), int):
        return "int32"
    record = operation_facts(case.operation)
    if name in record.indices:
        return "int64"
    if "angles" in case.rounding and name in record.single:
        return "float32"
    return compute_dtype_name(case.dtype) if record.is_wide(name) else case.dtype


def accepted_dtypes(name: str, case: Case) -> tuple[str, ...]:
    """The expected dtype first; then others that say no less, as of frequencies in float64 beside angles in float32."""
    record, expected = operation_facts(case.operation), expected_dtype(name, case)
    if name in record.indices:
        return expected, "int32"
    return (expected, case.dtype) if name in record.single and expected != case.dtype else (expected,)


def dtype_beside(got: np.ndarray | None, name: str, case: Case) -> str:
    """Of the accepted dtypes that of the answer, or the expected one."""
    dtypes = accepted_dtypes(name, case)
    return str(got.dtype) if got is not None and str(got.dtype) in dtypes else dtypes[0]


def arguments(operation: str, inputs: dict[str, Any], options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """(positional, keyword) arguments of the operation."""
    available: dict[str, Any] = {name: array for name, array in inputs.items() if "." not in name and "[" not in name}
    available |= options
    record = operation_facts(operation)
    if record.structure is not None:
        fields = [read_field(inputs, record.structure, name) for name in record.structure.fields]
        available["parameters"] = record.structure.kind(*fields)
        available = {name: value for name, value in available.items() if name not in record.structure.optional}
    available |= {name: projection(inputs, name) for name in record.projections}
    if record.state is not None:
        available["state"] = record.state.kind(*(available.pop(name, None) for name in record.state.fields))
    available |= {name: list_arrays(inputs, name) for name in record.lists}
    positional = [available.pop(name, None) for name in record.arguments]
    return positional, available


def name_arguments(operation: str, given: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The inputs and options of a case, of an operation's arguments by name: the inverse of `arguments`."""
    record, inputs, options = operation_facts(operation), dict[str, np.ndarray](), dict[str, Any]()
    for name, value in given.items():
        if name == "parameters" and record.structure is not None:
            for field in record.structure.fields:
                own = getattr(value, field)
                named = name_field(field, own) if is_nested(record, field, own) else name_projection(field, own)
                inputs |= {n: array for n, array in named.items() if array is not None}
        elif name in record.projections:
            inputs |= name_projection(name, value)
        elif name == "state" and record.state is not None:
            fields = {field: getattr(value, field) for field in record.state.fields}
            whole = {field: int(number) for field, number in fields.items() if np.asarray(number).dtype.kind in "iu"}
            options |= whole
            inputs |= {field: array for field, array in fields.items() if field not in whole}
        elif name in record.lists:
            inputs |= {f"{name}[{i}]": array for i, array in enumerate(value)}
        elif name in record.arguments and isinstance(value, list):
            inputs[name] = np.asarray(value)
        elif isinstance(value, np.ndarray) and value.ndim and name not in ("mask", "dropout_keep"):
            inputs[name] = value
        elif value is not None:
            options[name] = value.item() if isinstance(value, np.ndarray) and not value.ndim else value
    return inputs, options


def is_nested(record: OperationFacts, name: str, value: object) -> bool:
    """Whether a field is a network, or an optional one, and no projection or list of them."""
    return hasattr(value, "inner") or (record.structure is not None and name in record.structure.optional)


def name_field(name: str, value: Any) -> dict[str, Any]:
    """The arrays of a field, or their gradients, by the names that they have as inputs of a case."""
    if value is None or hasattr(value, "shape"):
        return {name: value}
    if hasattr(value, "inner"):
        parts = {part: getattr(value, part) for part in ("gate", "inner", "outer") if hasattr(value, part)}
        return {n: array for part, one in parts.items() for n, array in name_field(f"{name}.{part}", one).items()}
    return {f"{name}.weight": value.weight, f"{name}.bias": getattr(value, "bias", None)}


def name_projection(name: str, linear: Linear | Norm | Sequence[Linear] | None) -> dict[str, np.ndarray]:
    """The arrays of a projection or norm, or of several projections, one for each head; none of a field without any."""
    if linear is None:
        return {}
    if not isinstance(linear, Linear | Norm):
        return {n: array for i, one in enumerate(linear) for n, array in name_projection(f"{name}[{i}]", one).items()}
    arrays = {f"{name}.weight": linear.weight, f"{name}.bias": linear.bias}
    return {n: array for n, array in arrays.items() if array is not None}


def read_field(inputs: dict[str, Any], structure: Structure, name: str) -> Any:
    """A field of a structure: an array, a network, a norm, a projection, or those of all heads.

    None for a field that may be None and has no arrays.
    """
    if name in inputs and name in structure.optional:
        return inputs[name]
    if f"{name}.inner.weight" in inputs:
        kind: Any = GatedFeedForward if f"{name}.gate.weight" in inputs else FeedForward
        return kind(*(projection(inputs, f"{name}.{part}") for part in kind._fields))
    if name in structure.norms and f"{name}.weight" in inputs:
        return Norm(inputs[f"{name}.weight"], inputs.get(f"{name}.bias"))
    absent = not any(given.startswith((f"{name}.", f"{name}[")) for given in inputs)
    return None if absent and name in structure.optional else projection(inputs, name)


def projection(inputs: dict[str, Any], name: str) -> Linear | list[Linear]:
    if f"{name}.weight" in inputs:
        return Linear(inputs[f"{name}.weight"], inputs.get(f"{name}.bias"))
    weights = list_arrays(inputs, name, ".weight")
    biases = list_arrays(inputs, name, ".bias") or [None] * len(weights)
    return [Linear(weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def named_gradients(case: Case, gradients: Any) -> dict[str, np.ndarray]:
    """The reference's gradients, which are structured like the arguments, under the case's names."""
    record, flat = operation_facts(case.operation), dict[str, np.ndarray]()
    if record.lists:
        for name, parts in zip(record.lists, gradients, strict=True):
            flat |= {f"{name}[{i}]": part for i, part in enumerate(parts)}
    elif not hasattr(gradients, "_asdict"):  # the gradient of the only array
        flat[record.arguments[0]] = gradients
    else:
        fields = gradients._asdict()
        parameters = fields.pop("parameters", None)
        for name in record.projections:
            fields |= name_field(name, fields.pop(name))
        flat |= fields
        for name in record.structure.fields if record.structure is not None else ():
            own = getattr(parameters, name)
            flat |= name_field(name, own) if is_nested(record, name, own) else projection_gradients(case, name, own)
    return {name: g for name, g in flat.items() if g is not None and name in case.inputs}


def projection_gradients(case: Case, name: str, gradient: Linear) -> dict[str, np.ndarray]:
    heads = list_arrays(case.inputs, name, ".weight")
    if not heads:
        return {f"{name}.weight": gradient.weight, f"{name}.bias": gradient.bias}
    stops = np.cumsum([head.shape[1] for head in heads])[:-1]
    result: dict[str, np.ndarray] = {}
    for field in ("weight", "bias"):
        whole = getattr(gradient, field)
        parts = [] if whole is None else np.split(whole, stops, axis=-1)
        result |= {f"{name}[{i}].{field}": part for i, part in enumerate(parts)}
    return result


def kernel_arguments(operation: str) -> tuple[str, ...]:
    """Those that a function for this operation may have."""
    return KERNEL_ARGUMENTS if operation.startswith("attention") else ()


def alibi(slopes: np.ndarray, Q: int, K: int) -> np.ndarray:
    """The bias [B or 1, H, Q, K] in float64."""
    distances = np.abs(np.arange(Q)[:, None] + (K - Q) - np.arange(K))
    return -np.atleast_2d(np.asarray(slopes, float))[..., None, None] * distances


def padded_queries(case: Case) -> np.ndarray:
    """Which queries [B, Q] follow those of their sequence."""
    return np.arange(case.inputs["query"].shape[2]) >= case.inputs["query_lengths"][:, None]


def replace_kernel_arguments(case: Case) -> Case:
    """The case in the definition's arguments: a bias for the slopes, a mask and no cotangents for what is no query."""
    if not {*KERNEL_ARGUMENTS} & case.inputs.keys():
        return case
    inputs = {name: array for name, array in case.inputs.items() if name not in KERNEL_ARGUMENTS}
    (B, _, Q, _), K = inputs["query"].shape, inputs["key"].shape[2]
    options: dict[str, Any] = dict(case.options)
    cotangents, constants = case.cotangents, case.constants
    if "alibi_slopes" in case.inputs:
        inputs["bias"] = alibi(case.inputs["alibi_slopes"], Q, K)
        constants = (*constants, "bias")
    if "query_lengths" in case.inputs:
        padded = padded_queries(case)
        real = Dense(np.broadcast_to(~padded[:, None, :, None], (B, 1, Q, K)))
        options["mask"] = real if options.get("mask") is None else as_mask(options["mask"]) & real
        cotangents = {name: zero_rows(array, padded) for name, array in cotangents.items()}
    return replace(case, inputs=inputs, options=options, cotangents=cotangents, constants=constants)


def zero_rows(array: np.ndarray, padded: np.ndarray) -> np.ndarray:
    """A result's array [B, H, Q, ...] with zeros for what is no query."""
    rows = padded[:, None].reshape(len(padded), 1, -1, *(1,) * (array.ndim - 3))
    return np.where(rows, array.dtype.type(0), array)
