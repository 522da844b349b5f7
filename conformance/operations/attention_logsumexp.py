"""The log-sum-exp of every query's scores, with which attention over parts of the keys is merged."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import EMPTY_ROWS, TWIN
from conformance.checks.histories import attention_histories
from conformance.checks.levels import CORE, ROBUST
from conformance.checks.probe import Probe, agreement
from conformance.checks.refusals import no_refusals
from conformance.operations.attention import score_features
from conformance.operations.common import OFTEN, plan_probe
from conformance.operations.judged_operation import JudgedOperation
from conformance.sampling import special
from conformance.sampling import strategies as generation

NAME = "attention_logsumexp"


def probes(declaration: Declaration) -> list[Probe]:
    cases = partial(generation.attention_cases, NAME, declaration=declaration)
    empty = partial(special.empty_row_cases, NAME, declaration=declaration)
    featured = score_features(declaration)

    def agree(rule: str, name: str, cases: st.SearchStrategy[Case], weight: float = 1.0, level: str = CORE) -> Probe:
        return agreement(rule, name, NAME, cases, weight, level)

    return [
        Probe("MASK-7", f"hidden in {NAME}", (NAME,), special.hidden_cases(NAME, declaration), TWIN, weight=0.8),
        Probe(
            "ATT-5",
            "log-sum-exp beside sinks of -inf",
            (NAME,),
            special.absent_sinks(NAME, declaration),
            TWIN,
            weight=0.5,
            level=ROBUST,
        ),
        Probe("ATT-6", "empty rows of log-sum-exp", (NAME,), empty(), EMPTY_ROWS),
        Probe("ATT-6", "empty rows with a sink", (NAME,), empty(focus=("sinks",)), EMPTY_ROWS, 0.5),
        agree("ATT-14", "log-sum-exp", cases(), weight=1.5),
        agree("ATT-14", "log-sum-exp, every feature", cases(focus=featured, mask="any"), weight=0.5),
        *(
            agree("ATT-14", name, special.far_cases(NAME, focus, declaration), weight=0.4, level=ROBUST)
            for name, focus in (("log-sum-exp far from 0", ()), ("log-sum-exp of sinks far from 0", ("sinks",)))
        ),
        plan_probe("ATT-14", "log-sum-exp, features", "features", NAME, declaration, mask="none", large=True),
        plan_probe("ATT-14", "log-sum-exp, lengths", "lengths", NAME, declaration, others=True, rate=OFTEN, large=True),
    ]


OPERATION = JudgedOperation(NAME, probes, no_refusals, attention_histories)
