"""A case's inputs as leaves of the tape, each number converted exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.oracle.ball.tape import Variable, balls


class Leaves:
    """The inputs of one evaluation. `read` makes a leaf of one and keeps it, so that its gradient can be asked for."""

    def __init__(self, inputs: dict[str, np.ndarray], wanted: bool):
        self.inputs = inputs
        self.wanted = wanted
        self.variables: dict[str, Variable] = {}

    def __contains__(self, name: str) -> bool:
        return self.inputs.get(name) is not None

    def floating_names(self) -> list[str]:
        """All inputs but ids. (bfloat16 has the kind "V" in some versions.)"""
        return [name for name in self.inputs if name in self and np.asarray(self.inputs[name]).dtype.kind not in "biu"]

    def shape(self, name: str) -> tuple[int, ...]:
        return np.shape(self.inputs[name])

    def read(self, name: str, seen: Any = True) -> Variable:
        """The input by that name. Entries that nothing sees become an exact 0, whatever they hold (MASK-7).

        `seen` broadcasts to the input. A NaN or infinity that is seen raises ValueError: there is no ball for it.
        """
        numbers = np.asarray(self.inputs[name]).astype(np.float64)
        seen = np.broadcast_to(seen, numbers.shape)
        if not np.isfinite(numbers[seen]).all():
            raise ValueError(f"{name} holds NaN or infinity where it counts; special values have no exact result")
        self.variables[name] = Variable(balls(np.where(seen, numbers, 0.0)), wanted=self.wanted)
        return self.variables[name]
