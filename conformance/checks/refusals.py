"""Calls that must be refused, each for the rule that it breaks, with a TypeError or ValueError."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.case import Case, numpy_dtype
from conformance.cases.declaration import Declaration
from conformance.cases.features import features_of, has_declared_masks
from conformance.cases.signatures import required_arguments
from conformance.checks.findings import Accepted, ErrorWithoutText, WrongError
from conformance.subjects.subject import Subject, first_line
from conformance.subjects.wrong_answers import WrongAnswer
from specification.masks import Mask

SHAPES = frozenset({"gqa", "cross", "value_width"})
"""Features that lie in the sizes, which are the subject's own."""
Kind = type[Exception]


class Refusal(NamedTuple):
    """A case that breaks a rule, and the error that it must raise."""

    rule: str
    title: str
    error: type[Exception]
    case: Case


def refusal_failure(subject: Subject, refusal: Refusal) -> Accepted | WrongError | ErrorWithoutText | None:
    """What the subject did in place of refusing as it should; None if it did that."""
    case = subject.translate_case(refusal.case)
    due = "" if refusal.error is Exception else refusal.error.__name__
    with subject.framework.context():
        inputs, options = subject.arrays(case)
        try:
            with subject.scope:
                subject.results(case, inputs, options)
        except WrongAnswer as error:
            return Accepted(due, error.detail)
        except refusal.error as error:
            return None if first_line(error) else ErrorWithoutText(type(error).__name__)
        except Exception as error:
            return WrongError(type(error).__name__, due, first_line(error))
    return Accepted(due)


def is_applicable(case: Case, declaration: Declaration) -> bool:
    """Whether the subject has what the call would need, were it right."""
    if isinstance(case.options.get("mask"), Mask) and "structured" not in declaration:
        return False
    if not has_declared_masks(case, declaration):
        return False
    return features_of(case) - SHAPES <= declaration.features and not required_arguments(case) & declaration.lacking


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


class Numbers:
    """Arrays of small numbers in one dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __call__(self, *shape: int, dtype: str = "") -> np.ndarray:
        name = dtype or self.dtype
        numbers = np.arange(np.prod(shape)).reshape(shape) % 5 - 2
        return numbers.astype(numpy_dtype(name))

    @property
    def another(self) -> str:
        """A floating dtype that may not stand beside theirs."""
        return "bfloat16" if self.dtype == "float16" else "float16"

    def refusal(
        self, operation: str, rule: str, title: str, error: Kind, inputs: dict[str, Any], **options: object
    ) -> Refusal:
        return Refusal(rule, title, error, Case(operation, self.dtype, inputs, options))


def no_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    """Of an operation whose arguments are those of another, which refuses for both."""
    return iter(())
