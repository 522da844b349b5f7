"""A case: one call of one operation, as data. Cases are drawn by `generation.py` and answered by subjects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """One call of one operation, and the cotangents with which its gradients are asked for.

    inputs: NumPy arrays by name, in the case's dtype unless they are ids. A structured argument is spread out:
        "query.weight" is the weight of multi-head attention's query projection, "outputs[0]" the first part to merge.
    options: everything else that the operation takes by keyword; a mask holds NumPy arrays and Python numbers.
    cotangents: one array for each result, by name; empty when the case asks for no gradients.
    """

    operation: str
    dtype: str
    inputs: dict[str, np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    cotangents: dict[str, np.ndarray] = field(default_factory=dict)
