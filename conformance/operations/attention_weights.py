"""The weights that attention gives to every key."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import EMPTY_ROWS, TWIN
from conformance.checks.histories import attention_histories
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import no_refusals
from conformance.operations.attention import score_features
from conformance.operations.common import OFTEN, plan_probe
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import special
from conformance.sampling import strategies as generation

NAME = "attention_weights"


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.attention_cases, NAME, declaration=declaration)
    empty = partial(special.empty_row_cases, NAME, declaration=declaration)
    featured = score_features(declaration)

    def agree(rule: str, title: str, cases: st.SearchStrategy[Case], weight: float = 1.0) -> Probe:
        return agreement(rule, title, NAME, cases, weight)

    return [
        Probe("MASK-7", f"hidden in {NAME}", (NAME,), special.hidden_cases(NAME, declaration), TWIN, weight=0.8),
        agree("ATT-5", "weights", cases(others=False)),
        agree("ATT-5", "weights beside sinks", cases(others=False, focus=("sinks",)), weight=0.5),
        Probe("ATT-6", "empty rows of weights", (NAME,), empty(), EMPTY_ROWS),
        *(
            Probe("ATT-6", f"empty rows as {mode}", (NAME,), empty(modes=(mode,)), EMPTY_ROWS, weight=0.8)
            for mode in ("mean", "nan")
            if "empty_rows" in declaration
        ),
        agree("ATT-14", "weights", cases(), weight=1.5),
        agree("ATT-14", "weights, every feature", cases(focus=featured, mask="any"), weight=0.5),
        plan_probe("ATT-14", "weights, features", "features", NAME, declaration, mask="none", large=True),
        plan_probe("ATT-14", "weights, lengths", "lengths", NAME, declaration, others=True, rate=OFTEN, large=True),
    ]


OPERATION = JudgedOperation(NAME, probes, no_refusals, attention_histories)
