"""Intermediate values of a model that were computed elsewhere: the first that departs from the definition's."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from conformance.checks.comparison import Finding, compare
from conformance.models.error_propagation import carried_bound
from conformance.models.inside import MASKED, piece_names, walk_inside
from conformance.models.local import cast
from conformance.models.stepwise import Oracle, replace_nan
from conformance.oracle.reference import Exact
from specification.checkpoints import flatten
from specification.dtypes import FLOATING
from specification.parameters import mapped


class Departures(NamedTuple):
    """Findings by step or piece, in the definition's order.

    unknown: names of neither. looked_into: steps of which there are pieces. rounded: whether that changed the
    checkpoint's weights.
    """

    dtype: str
    findings: dict[str, Finding]
    unknown: list[str]
    looked_into: list[str]
    rounded: bool

    @property
    def first(self) -> str | None:
        """The first whose error is beyond its carried bound."""
        return next(iter(self.departing), None)

    @property
    def departing(self) -> list[str]:
        """All whose error is beyond their carried bound, in order."""
        return [name for name, finding in self.findings.items() if not finding.ratio <= 1]


def departures(oracle: Oracle, arrays: Mapping[str, np.ndarray]) -> Departures:
    """Compare saved intermediate values with the definition's, by bounds that are carried from the input.

    A model in the dtype of the arrays holds its weights in that dtype, so the definition computes from these.

    Args:
        oracle: the definition's steps on the same input.
        arrays: results by the name of the step, or of the piece inside a step, all of one floating dtype, which is the
            one that they were computed in.

    Raises:
        ValueError: for arrays of several dtypes or no floating one, and where no name is that of a step or piece.
    """
    inside = piece_names(oracle)
    every = [name for step in oracle.taken for name in (*inside.get(step, ()), step)]
    known = {name: arrays[name] for name in every if name in arrays}
    unknown = [name for name in arrays if name not in known]
    if not known:
        names = list(oracle.taken)
        steps = f"{', '.join(names[:3])}, ..., {names[-1]}"
        every_name = "run with --all --save FILE.npz for all names"
        raise ValueError(f"no name is that of a step; the steps are {steps}; {every_name}")
    dtypes = sorted({str(array.dtype) for array in known.values()})
    if len(dtypes) > 1 or dtypes[0] not in FLOATING:
        raise ValueError(f"the arrays must be of one floating dtype, got {', '.join(dtypes)}")
    looked_into = [step for step, pieces in inside.items() if known.keys() & {*pieces}]
    exactly = oracle.model.parameters
    parameters = mapped(lambda array: cast(array, dtypes[0]).astype(np.float64), exactly)
    rounded = not all(map(np.array_equal, flatten(parameters).values(), flatten(exactly).values()))

    def run(functions: SimpleNamespace) -> Any:
        of_kind = functions.MODELS[type(parameters)]
        return of_kind(parameters, *oracle.inputs, configuration=oracle.model.configuration, **oracle.options)

    exact, bounds = carried_bound(run, parameters, dtypes[0], walk=walk_inside(looked_into))
    order = [name for step in oracle.taken for name in (*(inside[step] if step in looked_into else ()), step)]
    judged = dict(zip(order, zip(exact, bounds, strict=True), strict=True))

    def finding(name: str) -> Finding:
        (result, bound), got = judged[name], known[name]
        if name.endswith(f": {MASKED}"):
            # What is at or below half the lowest number of its dtype forbids the pair: `conformance watch` reads alike.
            got = np.where(got <= ml_dtypes.finfo(got.dtype).min / 2, got.dtype.type(-np.inf), got)
        return compare(name, got, Exact(result, np.zeros_like(result)), replace_nan(bound), dtypes[0])

    return Departures(dtypes[0], {name: finding(name) for name in known}, unknown, looked_into, rounded)
