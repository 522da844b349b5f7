"""How many of the planted faults ONNX's own cases would catch, by ONNX's own expected outputs and tolerances.

A fault is caught by a case when ONNX's test runner accepts what the right implementation gives that the fault was made
from, and does not accept what the fault gives, or when the fault raises an error. Asked are the outputs that the
fault's operation computes, of the cases that its declaration has room for. Beside that stands how many of the same
cases would catch it by the bounds derived here. What is left over shows in other inputs only, in gradients, or in how
bad input is met, none of which ONNX asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from conformance.cases.features import supports_case
from conformance.onnx.cases import Arrays
from conformance.onnx.running import Bridged, objection, outputs_of
from conformance.onnx.translation import Translated, Translation
from conformance.runner.limits import TooSlow, limit_time
from conformance.selftest.selftest import Planted
from conformance.subjects.subject import NumpySubject, Subject

OPERATIONS = (
    *("attention", "attention_weights", "attention_logsumexp", "layer_norm", "rms_norm"),
    *("cross_entropy", "nll_loss", "adam_step", "sgd_step", "feed_forward", "silu"),
)
"""The operations that compute some output of ONNX's cases."""
TIME_LIMIT = 10.0
"""Seconds for one case; a fault that takes longer is caught."""


@dataclass(frozen=True)
class Catch:
    """Names of cases: those that the fault was put to, those that caught it, and those that would by our bounds."""

    fault: Planted
    asked: list[str] = field(default_factory=list)
    by_onnx: list[str] = field(default_factory=list)
    by_bounds: list[str] = field(default_factory=list)


def catches(faults: Iterable[Planted], cases: Collection[Bridged]) -> Iterator[Catch]:
    """One for each fault of an operation that ONNX has cases for."""
    return (catch_fault(fault, cases) for fault in faults if fault.operation in OPERATIONS)


def catch_fault(fault: Planted, cases: Iterable[Bridged]) -> Catch:
    wrong, right = fault.make(), fault.make_right() or NumpySubject()
    catch = Catch(fault)
    for case in cases:
        parts = choose_outputs(wrong, fault.operation, case.translation)
        answer = try_outputs(right, parts) if parts else None
        if answer is None or not is_accepted(case, answer):
            continue
        mistaken = try_outputs(wrong, parts)
        catch.asked.append(case.node.name)
        if not is_accepted(case, mistaken):
            catch.by_onnx.append(case.node.name)
        if conforms(case, answer) and not conforms(case, mistaken):
            catch.by_bounds.append(case.node.name)
    return catch


def choose_outputs(subject: Subject, operation: str, translation: Translation) -> Translation:
    """The outputs that the operation computes, if the subject takes the case."""
    return {
        name: part
        for name, part in translation.items()
        if isinstance(part, Translated)
        and part.case.operation == operation
        and supports_case(part.case, subject.declaration)
    }


def try_outputs(subject: Subject, parts: Translation) -> Arrays | None:
    """The outputs; None if the subject raises an error or takes too long."""
    try:
        with limit_time(TIME_LIMIT):
            return outputs_of(subject, parts)
    except (Exception, SystemExit, TooSlow):
        return None


def is_accepted(case: Bridged, outputs: Arrays | None) -> bool:
    """By ONNX's tolerances."""
    return outputs is not None and not objection(case.node, outputs)


def conforms(case: Bridged, outputs: Arrays | None) -> bool:
    """By our bounds."""
    return outputs is not None and max(case.ratios(outputs).values()) <= 1
