"""Examinations of what a result must not depend on: other calls, and how arrays lie in memory (ATT-13)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.frameworks import Arrays, Framework
from conformance.subjects import Answers, Subject, WrongAnswer
from conformance.verdict import Finding, judge

Findings = list[Finding]


def examine_determinism(subject: Subject, case: Case, shared: Any) -> Findings:
    """The same bits twice, another call in between; inputs untouched; results that share no memory with anything."""
    framework, asked = subject.framework, subject.asked(case)
    with framework.context():
        inputs, options = subject.arrays(asked)
        others = {n: framework.array(reversed_last(a)) for n, a in asked.inputs.items()}
        with subject.answering:
            earlier = subject.results(case.operation, inputs, options)
            kept = copied(subject, asked, earlier)
            between = subject.results(case.operation, others, options)
            after = copied(subject, asked, earlier)
            second = subject.results(case.operation, inputs, options)
            again = copied(subject, asked, second)
        findings = []
        for name, array in asked.inputs.items():
            if not np.array_equal(array, framework.numpy(inputs[name]), equal_nan=array.dtype.kind != "i"):
                findings.append(Finding(name, np.inf, message="was changed by the call"))
        findings += [identical(name, array, again[name]) for name, array in kept.items()]
        if framework.mutable:
            findings += shared_memory(framework, second, {"input": inputs, "earlier": earlier, "other": between})
        findings += [identical(name, array, after[name], "was changed by a later call") for name, array in kept.items()]
    if case.cotangents:
        again = {name: np.array(array) for name, array in subject(case).items()}
        findings += [identical(name, array, again[name]) for name, array in subject(case).items()]
    return findings


def copied(subject: Subject, case: Case, results: Arrays) -> Answers:
    """As they are now, whatever becomes of their memory."""
    return {name: np.array(subject.answer(name, case, results)) for name in results}


def identical(
    name: str, left: np.ndarray, right: np.ndarray, otherwise: str = "differs between two equal calls"
) -> Finding:
    same = left.dtype == right.dtype and np.array_equal(left, right, equal_nan=True)
    return Finding(name, 0.0 if same else np.inf, message="" if same else otherwise)


def reversed_last(array: np.ndarray) -> np.ndarray:
    """Other numbers of the same size; ids stay."""
    return array if array.dtype.kind in "iu" else np.ascontiguousarray(array[..., ::-1])


def shared_memory(framework: Framework, results: Arrays, others: dict[str, Arrays]) -> Findings:
    """One finding for every result that lies in memory of something else."""
    return [
        Finding(name, np.inf, message=f"shares memory with {kind} {other}")
        for name, result in results.items()
        for kind, arrays in others.items()
        for other, array in arrays.items()
        if overlap(framework.memory(result), framework.memory(array))
    ]


def overlap(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is not None and other is not None and np.shares_memory(one, other)


# --- how arrays lie in memory -----------------------------------------------------------------------------------------


def laid_out(subject: Subject, lay: Callable[[str, Any], Any]) -> Subject:
    """The same subject, which is given every array as `lay` puts it into memory."""
    other = copy.copy(subject)
    other.lay = lay
    return other


def examine_views(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """Arrays whose leading axes lie in memory in reverse, and arrays all of whose axes do, which may be refused."""
    permuted = subject.framework.permuted

    def leading(role: str, array: Any) -> Any:
        return permuted(array, [*reversed(range(array.ndim - 1)), array.ndim - 1]) if array.ndim > 2 else array

    def all_of_them(role: str, array: Any) -> Any:
        return permuted(array, [*reversed(range(array.ndim))]) if array.ndim > 1 else array

    findings = judge(case, laid_out(subject, leading)(case), *shared)
    try:
        answers = laid_out(subject, all_of_them)(case)
    except Exception as error:
        if isinstance(error, WrongAnswer) or error is not subject.answering.raised:
            raise
        return findings
    return findings + judge(case, answers, *shared)


def examine_broadcast_cotangents(subject: Subject, case: Case, shared: tuple[Any, Any]) -> Findings:
    """Cotangents that are one number everywhere come as a view of that number, as those of a sum do."""

    def lay(role: str, array: Any) -> Any:
        return subject.framework.spread(array) if role == "cotangent" else array

    return judge(case, laid_out(subject, lay)(case), *shared)
