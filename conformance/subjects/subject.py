"""Subjects: implementations under judgement.

A subject answers a case with NumPy arrays by name: its results, and "gradient of <input>" for every floating input when
the case has cotangents.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.cases.arguments import (
    KERNEL_ARGUMENTS,
    accepted_dtypes,
    arguments,
    gradient_input,
    gradient_name,
    list_arrays,
    named_gradients,
    result_names,
    results_of,
)
from conformance.cases.case import Case
from conformance.cases.declaration import EVERYTHING, Declaration
from conformance.cases.facts import operation_facts
from conformance.cases.layouts import place_array
from conformance.subjects.frameworks import Arrays, Framework, JaxArrays, NumpyArrays, TorchArrays
from conformance.subjects.wrong_answers import (
    DtypeOrShape,
    Materialized,
    Missing,
    OtherDevice,
    OtherType,
    Returned,
    WrongAnswer,
)
from specification.dtypes import FLOATING
from specification.masks import map_arrays

if TYPE_CHECKING:
    from specification.arrays import Array
    from specification.masks import Mask

Answers = dict[str, np.ndarray]


class SubjectScope:
    """Around all that a subject does: what is raised in here is the subject's doing, and `raised` holds it.

    What the subject says by `numpy.seterr` holds in here and nowhere else: the judge's own arithmetic is none of its.
    """

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self.settings: Any = np.geterr()

    def __enter__(self) -> None:
        self.raised = None
        self.numpy_errors = np.errstate(**self.settings)
        self.numpy_errors.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settings = np.geterr()
        self.numpy_errors.__exit__(kind, error, trace)
        self.raised = error


def first_line(error: BaseException, most: int | None = 300) -> str:
    """Errors of frameworks can be pages long; empty where an error cannot say what it is.

    most: characters; None for all of the line.
    """
    try:
        lines = [line for line in str(error).splitlines() if line.strip()]
    except Exception:
        return ""
    return lines[0][:most] if lines else ""


def keep_array(role: str, array: Array) -> Any:
    return array


def describe_value(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type_name(type(value))


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def head_axis(operation: str, name: str, layout: str) -> int:
    """The axis of heads in an array of rank 4. Masks, biases and weights have the same shape in every layout."""
    moved = name in ("query", "key", "value") or (name == "cotangent" and operation == "attention")
    return 2 if layout == "BTHD" and moved and operation.startswith("attention") else 1


def differentiable(case: Case) -> list[str]:
    """Inputs whose gradients the case asks for, where it has cotangents."""
    floating = (name for name, array in case.inputs.items() if str(array.dtype) in FLOATING)
    return [name for name in floating if name not in (*case.constants, *KERNEL_ARGUMENTS)]


def differentiable_results(case: Case) -> list[str]:
    """Results that are no whole numbers, and so have cotangents."""
    indices = operation_facts(case.operation).indices
    return [name for name in result_names(case.operation) if name not in indices]


def name_results(case: Case, names: Sequence[str], returned: Any, framework: Framework) -> Arrays:
    """What a call returned, by name: elements of a list and fields of a state one by one.

    Pairs of an index and a weight, which may come in any order, are sorted by the index.

    names: of the results that it has. Whole numbers of a state become arrays. WrongAnswer where something is missing.
    """
    parts = returned if len(names) > 1 else (returned,)
    if len(names) > 1 and (not isinstance(returned, tuple | list) or len(returned) != len(names)):
        raise WrongAnswer(Returned(describe_value(returned), names=tuple(names)))
    results = Arrays()
    for name, part in zip(names, parts, strict=True):
        results |= parts_by_name(case, name, part, framework)
    for name in operation_facts(case.operation).numbers:
        number = results.get(name)
        if isinstance(number, int | float | np.floating) and not isinstance(number, bool):
            results[name] = framework.array(np.asarray(float(number)))
    if framework.kind is np.ndarray:  # NumPy's own functions return no array where an array would have no axes
        results = {name: np.asarray(part) if isinstance(part, np.generic) else part for name, part in results.items()}
    for part in results.values():
        if not isinstance(part, framework.kind):
            raise WrongAnswer(Returned(describe_value(part), array=type_name(framework.kind)))
    for name in operation_facts(case.operation).indices:
        if results[name].shape == results["weights"].shape:
            results |= dict(
                zip((name, "weights"), framework.sort_pairs(results[name], results["weights"]), strict=True)
            )
    return results


def parts_by_name(case: Case, name: str, part: object, framework: Framework) -> Arrays:
    """One result by name: an array, the elements of a list, or the fields of a state."""
    record = operation_facts(case.operation)
    if name in record.lists:
        count = len(list_arrays(case.inputs, name))
        if not isinstance(part, tuple | list) or len(part) != count:
            raise WrongAnswer(OtherType(describe_value(part), count=count), name)
        return {f"{name}[{i}]": array for i, array in enumerate(part)}
    if record.state is None or name != "state":
        return {name: part}
    fields = {field: getattr(part, field, None) for field in record.state.fields}
    return {n: framework.array(np.asarray(v, np.int32)) if isinstance(v, int) else v for n, v in fields.items()}


class Subject:
    """A module that has every operation under its own name.

    lay: sees every array that is handed over; from ("input" or "cotangent", array) to the same array.
    """

    def __init__(self, name: str, framework: Framework, module: ModuleType | None = None) -> None:
        self.name, self.framework, self.module = name, framework, module
        self.declaration: Declaration = replace(EVERYTHING, strides=framework.strides)
        self.scope = SubjectScope()
        self.latest: tuple[Case, Answers] | None = None
        self.lay: Callable[[str, Any], Any] = keep_array

    @property
    def differentiates_by_hand(self) -> bool:
        """By a function of its own, and not by its framework."""
        return self.declaration.vjp is not None

    @property
    def code(self) -> Any:
        """The function or module that is called."""
        return self.module

    def call(self, operation: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        return getattr(self.module, operation)(*positional, **keywords)

    def translate_case(self, case: Case) -> Case:
        """The case in the subject's own conventions."""
        return drop_promise(case)

    def translate_answers(self, case: Case, answers: Answers) -> Answers:
        """The subject's answers in the definition's conventions."""
        return answers

    def arrays(self, case: Case) -> tuple[Arrays, dict[str, Any]]:
        """Inputs and options in the subject's framework, arrays in masks too, each in its memory layout."""

        def array(name: str, a: np.ndarray) -> Any:
            return self.lay("input", self.lay_out(case, name, np.asarray(a)))

        options = dict(case.options)
        if options.get("mask") is not None:
            options["mask"] = map_arrays(options["mask"], partial(array, "mask"))
        if options.get("dropout_keep") is not None:
            options["dropout_keep"] = array("dropout_keep", options["dropout_keep"])
        return {name: array(name, a) for name, a in case.inputs.items()}, options

    def lay_out(self, case: Case, name: str, array: np.ndarray) -> Any:
        """An array of the case in the subject's framework, as it lies in memory. name: as in `Case.memory`."""
        layout = case.memory.get(name)
        if layout is None or not self.framework.strides:
            return self.framework.array(array)
        buffer, place = place_array(array, layout, head_axis(case.operation, name, self.declaration.layout))
        return self.framework.view(buffer, array.shape, place)

    def results(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> Arrays:
        """The results by name, still the framework's own arrays."""
        positional, keywords = arguments(case.operation, inputs, options)
        returned = self.call(case.operation, positional, keywords)
        return name_results(case, result_names(case.operation), returned, self.framework)

    def cotangents(self, case: Case) -> Arrays:
        """By result, in the subject's framework."""
        return {name: self.lay("cotangent", self.lay_out(case, "cotangent", a)) for name, a in case.cotangents.items()}

    def differentiate(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> tuple[Arrays, Arrays]:
        return self.framework.differentiate(
            lambda arrays: self.results(case, arrays, options),
            inputs,
            differentiable(case),
            self.cotangents(case),
        )

    def materialize(self, mask: Mask | np.ndarray | None, shape: tuple[int, int, int, int]) -> np.ndarray | None:
        """The subject's dense array of a mask for [B, H, Q, K]; None if it has no such function."""
        B, H, Q, K = shape
        if mask is None or self.module is None:
            return None
        with self.framework.context():
            mask = map_arrays(mask, lambda a: self.framework.array(np.asarray(a)))
            with self.scope:
                array = self.module.materialize(mask, Q, K, batch=B, heads=H)
                if not isinstance(array, self.framework.kind):
                    raise WrongAnswer(Materialized(type_name(type(array))))
                return self.framework.numpy(array)

    def __call__(self, case: Case) -> Answers:
        """All results and gradients of the case; the latest are remembered, for whoever asks what a check has seen."""
        answers = self.answer_case(case)
        self.latest = case, answers
        return answers

    def answer_case(self, case: Case) -> Answers:
        case_asked = self.translate_case(case)
        with self.framework.context():
            inputs, options = self.arrays(case_asked)
            with self.scope:
                answers = self.compute_answers(case_asked, inputs, options)
        return self.translate_answers(case_asked, answers)

    def compute_answers(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> Answers:
        """What is returned, as NumPy arrays; WrongAnswer where something is missing, or is not what it has to be."""
        names = list(results_of(case))
        if case.cotangents and differentiable(case):
            results, gradients = self.differentiate(case, inputs, options)
            names += [gradient_name(name) for name in differentiable(case)]
            results = results | {gradient_name(name): gradient for name, gradient in gradients.items()}
        else:
            results = self.framework.evaluate(lambda a: self.results(case, a, options), inputs)
        return {name: self.answer(name, case, results) for name in names}

    def answer(self, name: str, case: Case, results: Mapping[str, Any]) -> np.ndarray:
        """One result or gradient: of the framework's kind, on its device, and of the shape and dtype it has to have."""
        got = results.get(name)
        if got is None:
            raise WrongAnswer(Missing(), name)
        if not isinstance(got, self.framework.kind):
            raise WrongAnswer(OtherType(type_name(type(got)), array=type_name(self.framework.kind)), name)
        place = self.framework.elsewhere(got) if case.inputs else ""
        if place:
            raise WrongAnswer(OtherDevice(place), name)
        array = self.framework.numpy(got)
        dtypes, shape = accepted_dtypes(name, case), expected_shape(name, case, self.declaration.layout)
        if str(array.dtype) not in dtypes or array.shape != shape:
            # As in another layout: the second and third of four axes have changed places.
            swapped = len(shape) == array.ndim == 4 and array.shape == (shape[0], shape[2], shape[1], shape[3])
            raise WrongAnswer(DtypeOrShape(str(array.dtype), array.shape, tuple(dtypes), tuple(shape), swapped), name)
        return array


def drop_promise(case: Case) -> Case:
    """The case without "any" for empty rows, which says what is judged and is no argument of the operation."""
    if case.options.get("empty_rows") != "any":
        return case
    return replace(case, options={name: value for name, value in case.options.items() if name != "empty_rows"})


def expected_shape(name: str, case: Case, layout: str = "BHTD") -> tuple[int, ...]:
    """Of a result or gradient of a case that is written in that layout."""
    of = gradient_input(name)
    if of is not None:
        return case.inputs[of].shape
    return operation_facts(case.operation).shape(case, name, layout)


class NumpySubject(Subject):
    """reference_numpy, or a module like it, with its gradients by hand."""

    differentiates_by_hand = True

    def __init__(self, module: str = "reference_numpy", device: str = "cpu") -> None:
        super().__init__(module, NumpyArrays(device), importlib.import_module(module))

    def differentiate(self, case: Case, inputs: Arrays, options: dict[str, Any]) -> tuple[Arrays, Arrays]:
        positional, keywords = arguments(case.operation, inputs, options)
        vjp, cotangents = getattr(self.module, f"{case.operation}_vjp"), self.cotangents(case)
        bars = [cotangents[name] for name in differentiable_results(case)]
        gradients = named_gradients(case, vjp(*positional, *bars, **keywords))
        return self.results(case, inputs, options), gradients


class TorchSubject(Subject):
    """A module of torch functions, differentiated by torch.autograd."""

    def __init__(self, module: str = "torch_impl", device: str = "cpu") -> None:
        super().__init__(module, TorchArrays(device), importlib.import_module(module))


class JaxSubject(Subject):
    """A module of JAX functions, differentiated by jax.vjp; optionally under jax.jit."""

    def __init__(self, module: str = "jax_impl", device: str = "cpu", jit: bool = False) -> None:
        super().__init__(module + (" (jit)" if jit else ""), JaxArrays(device, jit), importlib.import_module(module))


IMPLEMENTATIONS = {"reference_numpy": NumpySubject, "torch_impl": TorchSubject, "jax_impl": JaxSubject}
"""The three implementations of this project, in reading order."""
