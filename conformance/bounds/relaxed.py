"""Bounds of what the profile `strict` alone asks for: how far from exact a result may be below it.

16-bit inputs. The weights may be rounded to the inputs' dtype before they are multiplied: the bound is that of a
subject that declares weights=inputs (`rounding.py`).

SiLU. sigmoid(x), or exp(x), may be a number too small to be normal while x sigmoid(x) is still normal. It is then
flushed to 0, or taken as 1 / (1 + exp(-x)) with an exponential that overflows. Either way sigmoid(x) is off by at most
the smallest normal number t of the compute dtype, and x sigmoid(x) by |x| t. The slope sigmoid(x) + x sigmoid(x)
sigmoid(-x) is off by (1 + |x|) t, and so is the gradient, times the cotangent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.bounds.arithmetic import Precision
from conformance.bounds.operations import Bounds, bound, merged_bound
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case

HALF = ("float16", "bfloat16")
WEIGHTED = ("attention", "attention_weights", "attention_logsumexp", "multi_head_attention")


def weights_in_inputs(case: Case) -> Case | None:
    """The case of a subject that rounds the weights to the inputs' 16 bits; None where that allows nothing more."""
    if case.dtype not in HALF or case.operation not in WEIGHTED or "weights" in case.rounding:
        return None
    return replace(case, rounding={**case.rounding, "weights": case.dtype})


def relaxed_bound(case: Case) -> Bounds | None:
    """The bounds below `strict`; None where they are those of `bound`."""
    if case.operation == "silu":
        return silu_bound(case)
    rounded = weights_in_inputs(case)
    return None if rounded is None else bound(rounded)


def relaxed_merged_bound(parts: list[Case]) -> Bounds | None:
    """As `relaxed_bound`, for attention over parts of the keys that are then merged."""
    rounded = [weights_in_inputs(part) for part in parts]
    return None if None in rounded else merged_bound([part for part in rounded if part is not None])


def silu_bound(case: Case) -> Bounds:
    tiny, size = Precision.of(case.dtype).inner_tiny, np.abs(np.asarray(case.inputs["x"], float))
    more = {"output": size * tiny}
    if case.cotangents:
        more[gradient_name("x")] = (1 + size) * tiny * np.abs(np.asarray(case.cotangents["output"], float))
    with np.errstate(invalid="ignore"):
        return {name: array + more.get(name, 0.0) for name, array in bound(case).items()}
