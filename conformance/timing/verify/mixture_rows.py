"""What rows of a mixture of experts are judged by: all rows of a judgement together, and the experts that they choose.

The weights are the same in every call, and rows know nothing of each other. So rows of many calls and subjects are one
call of the mixture, which reads each expert once. The exact results and the bounds are computed in float64 from weights
in float64, of which experts that nobody chooses are not a part: zeros stand for them, which take no memory until they
are written. The definition reads no such expert (MOE-4), and the bounds of a token for which another choice is left are
infinite.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import reference_numpy
from conformance.timing.timed_case import Arrays, Case, join_parameters, mixture_weights


class WideWeights:
    """A mixture's weights in float64: the router, and the experts that were chosen until now; zeros for the others."""

    def __init__(self, case: Case) -> None:
        self.case, self.narrow = case, mixture_weights(case)
        self.widened = np.zeros(case.X, bool)
        # In the same order in memory, in which numbers are copied fastest.
        self.arrays = {n: np.zeros(array.swapaxes(-1, -2).shape).swapaxes(-1, -2) for n, array in self.narrow.items()}
        self.arrays["router.weight"][...] = self.narrow["router.weight"]
        self.parameters = join_parameters(self.arrays, np.asarray)

    def choose(self, x: np.ndarray) -> Arrays:
        """Widen the experts that tokens x [N, D] choose, and return the weights by name."""
        indices = reference_numpy.route(x, self.parameters.router, chosen=self.case.chosen).indices
        for expert in np.flatnonzero(np.bincount(indices.ravel(), minlength=self.case.X) * ~self.widened):
            self.widened[expert] = True
            for name, array in self.arrays.items():
                if name != "router.weight":
                    array[expert] = self.narrow[name][expert]
        return self.arrays


@lru_cache(maxsize=1)
def wide_weights(case: Case) -> WideWeights:
    """Those of a case, for its whole run."""
    return WideWeights(case)


def evaluate_rows(case: Case, x: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """Return the weights that tokens x [N, D] need, and the exact output for them [N, D]."""
    wide, tokens = wide_weights(case), np.asarray(x, float)
    weights = wide.choose(tokens)
    return weights, reference_numpy.mixture_of_experts(wide.parameters, tokens, chosen=case.chosen)
