"""A mistake as a subject: the definition, whose results are those of the mistake where it shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.cases.arguments import KERNEL_ARGUMENTS, expected_dtype, replace_kernel_arguments
from conformance.cases.case import Case, numpy_dtype
from conformance.mistakes.call import Call, Results
from conformance.mistakes.mistake import Mistake
from conformance.oracle.reference import evaluate_definition
from conformance.subjects.shards import SHARDS, declare_ranks
from conformance.subjects.subject import Answers, NumpySubject

RANKS = {"sequence": 3, "zigzag": 2, "heads": 2}
"""On how many ranks a mistake of ranks is planted."""


class PlantedSubject(NumpySubject):
    """An implementation that makes a known mistake, and is right otherwise."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__()
        self.name, self.mistake = str(mistake), mistake
        added = {*mistake.condition.features} & {"logsumexp", *KERNEL_ARGUMENTS}
        self.declaration = replace(self.declaration, features=self.declaration.features | added)
        for shard in {*mistake.condition.features} & {*SHARDS}:
            self.declaration = declare_ranks(self.declaration, shard, RANKS[shard])

    def answer_case(self, case: Case) -> Answers:
        """The definition's answers, but for what the mistake predicts; it has no arguments of kernels."""
        if case.with_logsumexp or {*KERNEL_ARGUMENTS} & case.inputs.keys():
            exact = evaluate_definition(replace_kernel_arguments(case))
            answers = {name: one.high.astype(numpy_dtype(expected_dtype(name, case))) for name, one in exact.items()}
        else:
            answers = super().answer_case(case)
        predictions = self.mistake.predict(Call(case))
        results: Results = predictions[0].results if predictions else {}
        with np.errstate(all="ignore"):
            wrong = {name: np.asarray(results[name]).astype(answers[name].dtype) for name in results if name in answers}
        return answers | wrong


@dataclass(frozen=True)
class PlantedMistake:
    """A mistake to be caught by its rule. `selftest` plants it."""

    mistake: Mistake
    arrays: str = "numpy"

    @property
    def rule(self) -> str:
        return self.mistake.rule

    @property
    def operation(self) -> str:
        return self.mistake.operations[0]

    @property
    def name(self) -> str:
        """The mistake, its condition, and the operation where it is not attention; no other has the same."""
        where = "" if self.operation == "attention" else f" in {self.operation}"
        condition = ", ".join(f"{name}={value}" for name, value in self.mistake.condition.requirements.items())
        return f"{self.mistake}{where}{' ' if condition else ''}{condition}"

    @property
    def title(self) -> str:
        return f"{self.rule} {self.name}"

    def make(self) -> Any:
        subject = PlantedSubject(self.mistake)
        subject.name = self.title
        return subject

    def make_right(self) -> None:
        """There is no right twin to be judged beside it: it is the definition."""
