"""Why there is no case for a question: the features that all its cases need, and that a subject does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from conformance.cases.case import Case
from conformance.cases.declaration import FEATURES, MASK_KINDS, SIMPLEST_FIRST, Declaration
from conformance.cases.features import features_of
from conformance.checks.catalogue import Probe
from conformance.sampling.draws import draw_cases

DRAWN = 5
"""Cases from which is told what all of a probe's cases need."""


def widen_declaration(declaration: Declaration) -> Declaration:
    """The same with every feature and dtype, and in whichever form it takes masks."""
    features = set(FEATURES) - {"refusals"} - ({"structured", "logsumexp"} - declaration.features)
    return replace(declaration, features=frozenset(features), dtypes=SIMPLEST_FIRST, lacking=frozenset())


def some_cases(probe: Probe) -> list[Case]:
    """The same every time; fewer, or none, where they are hard to draw."""
    return [probe.check.case_of(example) for _, example in draw_cases(probe.cases, DRAWN, 0)]


def missing_features(cases_of: Callable[[Declaration], list[Case]], declaration: Declaration) -> str:
    """What all cases need and the subject does not take; empty where that is not the same for all.

    cases_of: some cases of the question for a subject that takes what is declared.
    """
    wide = widen_declaration(declaration)
    lacks = [lacked_features(case, declaration) for case in cases_of(wide)]
    common = set.intersection(*lacks) if lacks else set()
    common = {name for name in common if name not in FEATURES or not cases_of(wide.remove_features(name))}
    if common <= {"combined", "or"} and lacks and all(one & set(MASK_KINDS) for one in lacks):
        return "masks" if not declaration.masks else "these masks"
    dtypes = {name for one in lacks for name in one} - set(FEATURES)
    return join_names(common) or (" or ".join(sorted(dtypes)) if all(one & dtypes for one in lacks) else "")


def lacked_features(case: Case, declaration: Declaration) -> set[str]:
    dtype = set() if case.dtype in declaration.dtypes else {case.dtype}
    return (features_of(case) - declaration.features) | dtype


def join_names(names: Iterable[str]) -> str:
    """In the order in which they are documented."""
    order = [*SIMPLEST_FIRST, *FEATURES]
    return " and ".join(sorted(names, key=order.index))
