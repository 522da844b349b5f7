"""A model judged step by step, each step on the definition's own activations.

The definition is run in float64, and what every step was given and gave is kept. Then the implementation is run, and
every step of it is given the definition's activations in place of its own, rounded to the model's dtype; what it gives
is held to the bound of that one step. All else that a step is given (parameters, masks, configuration) stays what the
implementation has made of it. So an error is seen where it is made, is measured by that step alone, and does not grow
with the depth of the model.

What a step is given instead would hide that it was given the wrong thing. So for every activation it is also seen which
step it came from, and that has to be the same step as in the definition; and all steps have to be taken, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.checks.findings import ChangedLater, Detail, Finding, OtherSource, Source, SurplusStep, TimesTaken
from conformance.models.error_propagation import compare_within_bound
from conformance.models.instrumentation import Namer, instrument_package
from conformance.models.local import cast, local_bound
from conformance.subjects.frameworks import Framework
from conformance.subjects.subject import IMPLEMENTATIONS, Subject
from specification.dtypes import FLOATING
from specification.parameters import mapped

if TYPE_CHECKING:
    from reference_numpy.models import Model
    from specification.parameters import ModelParameters


def framework_of(package: str) -> Framework:
    subject: Subject = IMPLEMENTATIONS[package]()
    return subject.framework


class Taken(NamedTuple):
    """One step of the definition, in float64. function: the definition's own. sources: the steps whose results its
    arguments are, or the inputs that they are.
    """

    step: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any
    sources: tuple[Source, ...]


class StepFinding(NamedTuple):
    """What is found of one step of an implementation on the definition's activations."""

    name: str
    finding: Finding


def record_steps(model: Model, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[dict[str, Taken], Source]:
    """Every step of the definition on these inputs, by name and in order; the model's parameters are float64.

    The second result is the step whose result is the model's own.
    """
    found: dict[str, Taken] = {}
    made: dict[int, Source] = {id(array): number for number, array in enumerate(inputs)}

    def record_step(
        name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        result = function(*arguments, **keywords)
        found[name] = Taken(step, function, arguments, keywords, result, sources_of(arguments, made))
        made[id(result)] = name
        return result

    called = instrument_package("reference_numpy", model.parameters, record_step).MODELS[type(model.parameters)]
    with np.errstate(all="ignore"):
        result = called(model.parameters, *inputs, configuration=model.configuration, **options)
    return found, made.get(id(result))


def sources_of(arguments: tuple[Any, ...], made: dict[int, Source]) -> tuple[Source, ...]:
    """made: steps and inputs by the identity of arrays, all of which are still there."""
    return tuple(made.get(id(argument)) for argument in arguments)


class Judged(NamedTuple):
    """A step on rounded activations: what it is given, what exactly comes of it, and the bound."""

    arguments: tuple[Any, ...]
    truth: np.ndarray
    bound: np.ndarray


def is_bounded(truth: np.ndarray, bound: np.ndarray) -> bool:
    """Whether something is finite, and all that is has a bound: an array without elements is what it must be.

    One of NaN alone may be chance, and NaN among the inputs leaves finite results without a bound.
    """
    numbers = np.isfinite(truth)
    return truth.size == 0 or bool(numbers.any() and np.isfinite(bound[numbers]).all())


def replace_nan(bound: np.ndarray) -> np.ndarray:
    """The bound with infinity for NaN, where nothing is known: any number keeps it."""
    return np.where(np.isnan(bound), np.inf, bound)


class Oracle:
    """The definition's steps on given inputs, and what an implementation in that dtype must give for each of them.

    model: of the definition, in float64. inputs and options: what it is called with, as NumPy arrays. Each step is
    worked out when it is first asked for, and kept for the next implementation.
    """

    def __init__(self, model: Model, inputs: tuple[Any, ...], options: dict[str, Any], dtype: str) -> None:
        self.model, self.inputs, self.options, self.dtype = model, inputs, options, dtype
        self.taken, self.returned = record_steps(model, inputs, options)
        self.own = Namer(model.parameters)
        self.judged: dict[str, Judged] = {}

    def __getitem__(self, name: str) -> Judged:
        if name not in self.judged:
            step, function, arguments, keywords, result, _ = self.taken[name]
            # An activation as the implementation can hold it, in float64; everything else as it is.
            exactly = tuple(
                cast(argument, self.dtype).astype(np.float64) if self.is_activation(argument) else argument
                for argument in arguments
            )
            if self.dtype == "float64":  # nothing was rounded
                truth = result
            else:
                with np.errstate(all="ignore"):
                    truth = function(*exactly, **keywords)
            # The definition's own step, in float64, is as far off as that of an implementation in float64.
            bound = local_bound(step, self.dtype, exactly, keywords) * (2 if self.dtype == "float64" else 1)
            self.judged[name] = Judged(exactly, truth, replace_nan(bound))
        return self.judged[name]

    def is_activation(self, argument: object) -> bool:
        """An array of numbers that is no parameter."""
        floating = isinstance(argument, np.ndarray) and str(argument.dtype) in FLOATING
        return floating and id(argument) not in self.own.paths


def judge_steps(package: str, framework: Framework, parameters: ModelParameters, oracle: Oracle) -> list[StepFinding]:
    """A finding for every step of the package's model, in order. parameters: the framework's own arrays."""
    found: list[StepFinding] = []
    made: dict[int, Source] = {}
    results: list[tuple[str, Any, np.ndarray]] = []  # kept, so that no identity is given away
    dtype = oracle.dtype

    def find_fault(name: str, detail: Detail) -> None:
        found.append(StepFinding(name, Finding(name, np.inf, detail=detail)))

    def force_step(
        name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if name not in oracle.taken:
            find_fault(name, SurplusStep())
            return function(*arguments, **keywords)
        exactly, truth, bound = oracle[name]
        given = [
            framework.array(cast(e, dtype)) if oracle.is_activation(e) else a
            for e, a in zip(exactly, arguments, strict=True)
        ]
        result = function(*given, **keywords)
        answer = np.array(framework.numpy(result))  # a copy, because what comes later may change the result
        sources = zip(exactly, sources_of(arguments, made), oracle.taken[name].sources, strict=True)
        others = [(own, right) for e, own, right in sources if oracle.is_activation(e) and own != right]
        if others:  # an activation comes from another step than in the definition
            find_fault(name, OtherSource(*others[0]))
        else:
            found.append(StepFinding(name, compare_within_bound(name, answer, truth, bound, dtype)))
        made[id(result)] = name
        results.append((name, result, answer))
        return result

    called = instrument_package(package, parameters, force_step).MODELS[type(parameters)]
    with framework.context(), np.errstate(all="ignore"):
        arrays = [framework.array(cast(a, dtype)) for a in oracle.inputs]
        keywords = {name: convert_arrays(value, framework) for name, value in oracle.options.items()}
        made |= {id(array): number for number, array in enumerate(arrays)}
        returned = called(parameters, *arrays, configuration=oracle.model.configuration, **keywords)
    source, times = made.get(id(returned)), Counter(step.name for step in found)
    if source != oracle.returned:
        find_fault("result", OtherSource(source, oracle.returned, returned=True))
    for name, result, answer in results:
        if not np.array_equal(framework.numpy(result), answer, equal_nan=answer.dtype.kind == "f"):
            find_fault(name, ChangedLater())
    for name in oracle.taken:
        if times[name] != 1:
            find_fault(name, TimesTaken(times[name]))
    return found


def convert_arrays(value: object, framework: Framework) -> Any:
    from specification.masks import map_arrays

    return mapped(framework.array, value) if isinstance(value, np.ndarray) else map_arrays(value, framework.array)
