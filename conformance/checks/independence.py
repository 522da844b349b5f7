"""Checks of what a result must not depend on: other calls, and how arrays lie in memory (ATT-13)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.bounds import bound
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case, reverse_last_axis
from conformance.cases.layouts import REFUSABLE
from conformance.checks.comparison import breaks, judge
from conformance.checks.findings import (
    Detail,
    Finding,
    InputChanged,
    NoGradientsAgain,
    NotDeterministic,
    ResultChanged,
    Role,
    SharedMemory,
    Unreadable,
)
from conformance.checks.levels import CORE, ROBUST, STRICT
from conformance.oracle.reference import oracle
from conformance.subjects.frameworks import Arrays, Framework, NoGradients
from conformance.subjects.subject import Answers, Subject, differentiable
from conformance.subjects.wrong_answers import Missing, WrongAnswer
from specification.masks import map_arrays

if TYPE_CHECKING:
    from specification.arrays import Array
    from specification.masks import Mask

Findings = list[Finding]


Ask = Callable[[Subject, Case, Arrays, dict[str, Any]], Arrays]
"""(subject, case, inputs, options) -> what it returns, by name, still the framework's own arrays."""


def check_determinism(subject: Subject, case: Case, shared: None) -> Findings:
    """The same bits twice, another call in between; arguments untouched; results that share no memory with anything.

    For the gradients first, where the case has cotangents: a function that keeps its answers may keep them without what
    their gradients need. Then for the results alone.
    """
    own_case = subject.translate_case(case)

    def level_of(*answers: Answers) -> str:
        """The level of a difference of answers in the subject's own conventions."""
        return level_of_difference(case, *(subject.translate_answers(own_case, answer) for answer in answers))

    findings: Findings = []
    with subject.framework.context():
        if own_case.cotangents and differentiable(own_case):
            with contextlib.suppress(NoGradients):  # there are none to compare; whether that is right, ATT-12 says
                findings += compare_repeated_calls(subject, own_case, results_and_gradients, level_of)
        return findings + compare_repeated_calls(subject, own_case, results, level_of)


def results(subject: Subject, case: Case, inputs: Arrays, options: dict[str, Any]) -> Arrays:
    return subject.results(case, inputs, options)


def results_and_gradients(subject: Subject, case: Case, inputs: Arrays, options: dict[str, Any]) -> Arrays:
    """Gradients of floating inputs only; of others a function may return any. WrongAnswer where one is missing."""
    values, gradients = subject.differentiate(case, inputs, options)
    for name in differentiable(case):
        if gradients.get(name) is None:
            raise WrongAnswer(Missing(), gradient_name(name))
    return values | {gradient_name(name): gradients[name] for name in differentiable(case)}


def compare_repeated_calls(subject: Subject, case: Case, ask: Ask, level_of: Callable[..., str]) -> Findings:
    """case: as it is asked, in the subject's own conventions. level_of: the level of a difference of two answers."""
    framework, cotangents = subject.framework, Cotangents(case)
    subject = change_memory(subject, cotangents.lay)
    inputs, options = subject.arrays(case)
    others = {name: framework.array(reverse_last_axis(array)) for name, array in case.inputs.items()}
    with subject.scope:
        earlier = ask(subject, case, inputs, options)
        kept = copy_results(subject, case, earlier)
        between = ask(subject, case, others, options)
        after = copy_results(subject, case, earlier)
        try:
            second = ask(subject, case, inputs, options)
        except NoGradients:
            return [Finding("call", np.inf, detail=NoGradientsAgain())]
        again = copy_results(subject, case, second)
    findings = [
        input_finding(name, array, framework, now)
        for name, array, now in (*pair_arrays(case, inputs, options), *cotangents.pair_arrays())
    ]
    same = [identical(name, array, again[name]) for name, array in kept.items()]
    level = level_of(kept, again) if breaks(same) else CORE
    findings += [replace(finding, level=level) for finding in same]
    if framework.mutable:
        findings += shared_memory(framework, second, {"input": inputs, "earlier": earlier, "other": between})
        if subject.differentiates_by_hand:  # autograd itself hands a cotangent on where that is the gradient
            findings += shared_memory(framework, second, {"cotangent": cotangents.arrays})
    return findings + [identical(n, array, after[n], ResultChanged()) for n, array in kept.items()]


def level_of_difference(case: Case, *answers: Answers) -> str:
    """The level of answers of equal calls that differ: STRICT where all of them are right and only bits differ."""
    truth, bounds = oracle(case), bound(case)
    for answer in answers:
        shown = {name: exact for name, exact in truth.items() if name in answer}
        if breaks(judge(case, answer, shown, bounds), ROBUST):
            return CORE
    return STRICT


class Cotangents:
    """Those of every call, by a name that says of which call and result."""

    def __init__(self, case: Case) -> None:
        self.case, self.arrays = case, dict[str, Any]()

    def lay(self, role: str, array: Array) -> Any:
        """For `change_memory`: nothing is changed."""
        if role == "cotangent":
            call, result = divmod(len(self.arrays), len(self.case.cotangents))
            self.arrays[f"cotangent of {list(self.case.cotangents)[result]}, call {call + 1}"] = array
        return array

    def pair_arrays(self) -> Iterator[tuple[str, np.ndarray, Any]]:
        """(name, as it was given, as the subject has it). Each call lays out every result's, in the case's order."""
        for (name, array), given in zip(self.arrays.items(), cycle(self.case.cotangents.values()), strict=False):
            yield name, given, array


def pair_arrays(case: Case, inputs: Arrays, options: dict[str, Any]) -> Iterator[tuple[str, np.ndarray, Any]]:
    """(name, as it was given, as the subject has it) for inputs, and for arrays in masks and of dropout."""
    for name, array in case.inputs.items():
        yield name, array, inputs[name]
    for name in ("mask", "dropout_keep"):
        if case.options.get(name) is not None:
            given, now = arrays_in(case.options[name]), arrays_in(options[name])
            yield from ((name, np.asarray(array), have) for array, have in zip(given, now, strict=True))


def arrays_in(mask: Mask | np.ndarray | None) -> list[Any]:
    """All that a mask holds; an array alone holds itself."""
    arrays: list[Any] = []
    map_arrays(mask, arrays.append)
    return arrays


def input_finding(name: str, given: np.ndarray, framework: Framework, now: Array) -> Finding:
    try:
        same = np.array_equal(given, framework.numpy(now), equal_nan=given.dtype.kind not in "ib")
    except Exception:  # as of an array whose memory JAX was told to reuse
        return Finding(name, np.inf, detail=Unreadable())
    return Finding(name, 0.0) if same else Finding(name, np.inf, detail=InputChanged())


def copy_results(subject: Subject, case: Case, results: Arrays) -> Answers:
    """As they are now, whatever becomes of their memory."""
    return {name: np.array(subject.answer(name, case, results)) for name in results}


TWO_DIFFER = NotDeterministic()


def identical(name: str, left: np.ndarray, right: np.ndarray, otherwise: Detail = TWO_DIFFER) -> Finding:
    same = left.dtype == right.dtype and np.array_equal(left, right, equal_nan=True)
    return Finding(name, 0.0) if same else Finding(name, np.inf, detail=otherwise)


def shared_memory(framework: Framework, results: Arrays, others: dict[Role, Arrays]) -> Findings:
    """One finding for every result that lies in memory of something else."""
    return [
        Finding(name, np.inf, detail=SharedMemory(role, other))
        for name, result in results.items()
        for role, arrays in others.items()
        for other, array in arrays.items()
        if overlap(framework.memory(result), framework.memory(array))
    ]


def overlap(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is not None and other is not None and np.shares_memory(one, other)


# --- how arrays lie in memory -----------------------------------------------------------------------------------------


def change_memory(subject: Subject, lay: Callable[[str, Any], Any]) -> Subject:
    """The same subject, which is given every array as `lay` puts it into memory."""
    other = copy.copy(subject)
    other.lay = lay
    return other


def check_memory(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """Agreement; a subject may refuse arrays whose last axis has another stride than 1 by an error."""
    try:
        answers = subject(case)
    except Exception as error:
        refused = error is subject.scope.raised and not isinstance(error, WrongAnswer)
        if refused and set(case.memory.values()) & set(REFUSABLE):
            return []
        raise
    return judge(case, answers, *shared)
