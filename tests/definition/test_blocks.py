"""Long sequences in blocks of queries: the same results, and memory for a block only."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings

import reference_numpy
from conformance.oracle.reference import evaluate_definition
from conformance.sampling.strategies import attention_cases
from specification import Causal
from tests.support.helpers import Case, NumpySubject, bound, judge


@pytest.mark.rule("ATT-8")
@given(attention_cases(dtypes=("float32",)))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_blocks_change_nothing(case: Case) -> None:
    truth = evaluate_definition(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["reference_numpy.attention_steps"], "BLOCK_SCORES", 200)
        answers = NumpySubject()(case)
    assert all(finding.ratio <= 1 for finding in judge(case, answers, truth, bound(case)))


@pytest.mark.slow
def test_long_sequences_need_no_square_array() -> None:
    """Q = K = 16,384: a boolean [Q, K] alone would be 268 MB, its scores 1 GB."""
    x = np.random.default_rng(0).normal(size=(1, 1, 16384, 8)).astype(np.float32)
    tracemalloc.start()
    output = reference_numpy.attention(x, x, x, mask=Causal())
    reference_numpy.attention_vjp(x, x, x, output, mask=Causal())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6
