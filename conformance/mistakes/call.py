"""One test case with what is right about it, computed when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from conformance.bounds import bound
from conformance.cases.case import Case, heads_of, join_projections
from conformance.cases.expectations import Exact, empty_rows
from conformance.cases.features import features_of
from conformance.cases.operation import Sizes
from conformance.cases.signatures import definition
from conformance.mistakes.attention_steps import AttentionSteps, Forward, Gradients
from conformance.oracle.reference import oracle
from conformance.runner.dimensions import sizes_of
from reference_numpy.multi_head_attention import split_heads

Results = dict[str, np.ndarray]
"""Results and gradients by name, in float64."""


@dataclass(frozen=True)
class Call:
    """A test case, its exact results and error bounds, and the steps of attention for an operation that has them."""

    case: Case

    @classmethod
    def make(cls, case: Case, exact: dict[str, Exact], bounds: Results) -> Call:
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
        """Those that a declaration names, values of options, what ranks have a part of, and "hidden_rows".

        "hidden_rows": the mask allows some query no key.
        """
        query = self.case.inputs.get("query")
        hidden = query is not None and query.ndim == 4 and self.sizes.get("K") and empty_rows(self.case).any()
        shard = self.case.rounding.get("shard")
        others = (["hidden_rows"] if hidden else []) + ([shard] if shard else [])
        return frozenset({*features_of(self.case), *option_features(self.case), *others})

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """Names of arguments that the call has; "gradients"; and "special" for NaN or infinity, else "finite"."""
        case = self.case
        options = {name for name, value in case.options.items() if value is not None and value is not False}
        kinds = {"special" if case.special else "finite", *(["gradients"] if case.cotangents else ())}
        return frozenset(case.inputs.keys() | options | kinds)

    @cached_property
    def steps(self) -> AttentionSteps:
        """The steps of attention, of its weights or of its log-sum-exp."""
        return AttentionSteps.read_case(self.case)

    @cached_property
    def attention_call(self) -> Call:
        """The call of attention that multi-head attention makes."""
        return Call(attention_inside(self.case))

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

    @cached_property
    def largest(self) -> dict[str, tuple[float, float]]:
        """By result: the largest finite number of what is right, and of its bounds."""
        names = self.right.keys() & self.bounds.keys()
        return {name: (largest_finite(self.right[name]), largest_finite(self.bounds[name])) for name in names}

    def cotangent(self, name: str = "output") -> np.ndarray:
        return self.case.cotangents[name].astype(float)


Split = Callable[[np.ndarray, int], np.ndarray]
"""[B, T, H * W] and H as [B, H, T, W]."""


def attention_inside(case: Case, split: Split = split_heads, split_cotangent: Split = split_heads) -> Case:
    """The call of attention that multi-head attention makes, with arrays in float64."""
    wide = {name: array.astype(float) for name, array in join_projections(case.inputs).items()}
    inputs = {name: array for name, array in wide.items() if name in ("bias", "sinks")}
    for name, heads in heads_of(case).items():
        inputs[name] = split(wide[name] @ wide[f"{name}.weight"] + wide.get(f"{name}.bias", 0), heads)
    heads, weight = case.options["num_heads"], wide["output.weight"]
    bars = {name: split_cotangent(bar.astype(float) @ weight.T, heads) for name, bar in case.cotangents.items()}
    options = {name: value for name, value in case.options.items() if name != "num_heads"}
    return replace(
        case, operation="attention", inputs=inputs, options=options, cotangents=bars, memory={}, constants=()
    )


NUMBERS = ("label_smoothing", "momentum", "weight_decay")
"""Options that do nothing at 0."""
CHOICES = ("activation", "exponent", "ignore", "pairing", "reduction")
SWITCHES = ("absorbed", "decoupled", "nesterov", "plus_one", "scaled")


def option_features(case: Case) -> Iterator[str]:
    """Name what options are: each with its value where that is one of few."""
    parameters = definition(case.operation)
    values = {name: case.options.get(name, parameters[name]) for name in parameters}
    for name in (*NUMBERS, *SWITCHES):
        if values.get(name):
            yield name
    for name in CHOICES:
        if values.get(name) is not None:
            yield f"{name}={values[name]}"
    if values.get("scaling") is not None:
        yield type(values["scaling"]).__name__


def largest_finite(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))
