"""One test case with what is right about it, computed when first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance.bounds import bound
from conformance.cases.axes import Sizes
from conformance.cases.case import Case
from conformance.cases.expectations import Exact
from conformance.cases.features import features_of
from conformance.mistakes.attention_steps import AttentionSteps, Forward, Gradients
from conformance.oracle.reference import oracle
from conformance.runner.dimensions import sizes_of

Results = dict[str, np.ndarray]
"""Results and gradients by name, in float64."""


@dataclass(frozen=True)
class Call:
    """A test case, its exact results and error bounds, and the steps of attention for an operation that has them."""

    case: Case

    @classmethod
    def judged_by(cls, case: Case, exact: dict[str, Exact], bounds: Results) -> Call:
        """A call whose check has exact results and bounds of its own, as those of a case's harmless twin."""
        call = cls(case)
        call.__dict__.update(exact=exact, bounds=bounds)
        return call

    @cached_property
    def exact(self) -> dict[str, Exact]:
        return oracle(self.case)

    @cached_property
    def bounds(self) -> Results:
        return bound(self.case)

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.case)

    @cached_property
    def features(self) -> frozenset[str]:
        return frozenset(features_of(self.case))

    @cached_property
    def steps(self) -> AttentionSteps:
        """The steps of attention, of its weights or of its log-sum-exp."""
        return AttentionSteps.of_case(self.case)

    @cached_property
    def forward(self) -> Forward:
        return self.steps.forward()

    @cached_property
    def gradients(self) -> Gradients:
        """The right gradients before their sums."""
        return self.steps.pull_back(self.case.cotangents, self.forward.weights)

    @cached_property
    def right(self) -> Results:
        """The exact results, rounded to float64."""
        return {name: exact.high for name, exact in self.exact.items()}

    def cotangent(self, name: str = "output") -> np.ndarray:
        return self.case.cotangents[name].astype(float)
