"""Which quantities of a step depart from the definition, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.expectations import Exact
from conformance.checks.comparison import compare
from conformance.checks.findings import Finding, SurplusTensor
from training.lockstep.expected import QUANTITIES, Bounded, paths_of

SCALARS = ("loss", "norm", "learning rate")
"""Single numbers, in whatever dtype they come."""


class Compared(NamedTuple):
    """One tensor of one quantity, at its worst element."""

    quantity: str
    finding: Finding

    @property
    def departs(self) -> bool:
        return self.finding.ratio > 1


def compared(answer: Mapping[str, Any], expected: Mapping[str, Bounded], dtype: str) -> Iterator[Compared]:
    """Compare every tensor that the implementation tells with the definition's, in the order of a step."""
    for quantity in QUANTITIES:
        if answer.get(quantity) is None or quantity not in expected:
            continue
        arrays, exact = paths_of(answer[quantity]), expected[quantity]
        for path in [*exact, *(path for path in arrays if path not in exact)]:
            if path not in exact:
                finding = Finding(path, np.inf, detail=SurplusTensor())
            else:
                value, error = exact[path]
                got = None if arrays.get(path) is None else np.asarray(arrays[path])
                kind = str(got.dtype) if got is not None and quantity in SCALARS else dtype
                finding = compare(path, got, Exact(value, np.zeros_like(value)), np.asarray(error), kind)
            yield Compared(quantity, finding)
