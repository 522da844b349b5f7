"""What a user writes, for the type checker alone: no public name is of an unknown type."""

from typing import assert_type

import numpy as np

import conformance
import reference_numpy


@conformance.declare(["causal"], dtypes=["float32"])
def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
    return reference_numpy.attention(query, key, value, mask=mask)


report = conformance.check(attention, "attention", arrays="numpy", effort="quick", limits={"keys": 64})
assert_type(report, conformance.Report)
assert_type(report.conforms, bool)

numbers = np.ones((1, 1, 2, 4), np.float32)
assert_type(attention(numbers, numbers, numbers), np.ndarray)
found = conformance.compare("attention", numbers, query=numbers, key=numbers, value=numbers, mask=conformance.Causal())
assert_type(found, conformance.Comparison)
assert_type(found.error_ratio, float)
assert_type(found.worst.index, tuple[int, ...])
