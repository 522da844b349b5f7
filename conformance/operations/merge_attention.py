"""Attention over parts of the keys, merged by the log-sum-exps of the parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import TWIN
from conformance.checks.levels import ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations.common import Cases, rows_of
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import special
from conformance.sampling import strategies as generation
from conformance.sampling.draws import Rows
from conformance.sampling.strategies import SHORT
from specification.dtypes import HALF

NAME = "merge_attention"
MANY_PARTS = (5, 8, 9, 16, 17, 33, 64, 65, 129)


def probes(declaration: Declaration) -> list[Probe]:
    merges = partial(generation.merge_cases, declaration=declaration)
    return [
        Probe("MASK-7", f"hidden in {NAME}", (NAME,), special.hidden_cases(NAME, declaration), TWIN, weight=0.8),
        agreement("ATT-14", "merge", NAME, merges(), weight=1.5),
        agreement("ATT-14", "merge of far parts", NAME, merges(("float32", *HALF), (2, 3, 4), 100.0), 0.5, ROBUST),
        agreement("ATT-14", "merge in 16 bits", NAME, merges(HALF, (3, 4)), weight=0.5),
        agreement("ATT-14", "merge, sizes", NAME, rows_of(merges, "merges", "merge", declaration, large=True)),
        agreement("ATT-14", "merge of many parts", NAME, many_part_rows(merges, declaration)),
    ]


def many_part_rows(merges: Cases, declaration: Declaration) -> Rows:
    """Where shapes are compiled, two numbers of parts stand for all."""
    counts = (9, 65) if declaration.compiled else MANY_PARTS
    return Rows(lambda: tuple(merges(parts=(count,), plans=SHORT) for count in counts))


def refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    parts = {"outputs[0]": array(2, 4, 3, 7), "logsumexps[0]": array(2, 4, 5)}
    yield array.refusal("ATT-14", "parts that do not match", ValueError, NAME, parts)


OPERATION = JudgedOperation(NAME, probes, refusals)
