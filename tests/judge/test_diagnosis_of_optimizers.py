"""Names of known mistakes of optimizers and clipping, on the planted faults; and that nothing right has a name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance.diagnosis.matches import known
from conformance.diagnosis.matching import Failing
from conformance.diagnosis.operation_mistakes import MISTAKES
from conformance.selftest.faults.optimizers import FAULTS

from conformance.bounds import bound
from conformance.cases.arguments import results_of
from conformance.diagnosis import extents
from conformance.oracle.reference import oracle
from conformance.sampling.draws import drawn
from conformance.sampling.operations import operation_cases

MANY = 12
NAMES = {
    "no bias correction": "no bias correction",
    "bias correction one step late": "the bias correction counts steps from 0",
    "bias correction one step ahead": "the bias correction is one step ahead",
    "1 - beta^t in float32": "1 - beta^t is computed in float32",
    "eps inside the root": "eps stands inside the root",
    "eps before the correction": "eps is added before the square is corrected for its bias",
    "eps forgotten": "no eps",
    "the larger of root and eps": "the quotient is by the larger of root and eps",
    "decay coupled for decoupled": "weight decay is coupled, not decoupled",
    "decay decoupled for coupled": "weight decay is decoupled, not coupled",
    "decay without the learning rate": "decoupled weight decay is not multiplied by the learning rate",
    "mean takes the whole gradient": "the mean takes the whole gradient",
    "square never falls": "the square is that of AMSGrad, which never falls",
    "dampening by 1 - momentum": "the velocity takes 1 - momentum of the gradient",
    "velocity forgotten": "the velocity is replaced by the gradient",
    "nesterov from the old velocity": "nesterov looks ahead by the old velocity",
    "nesterov left out": "nesterov is left out",
    "decay decoupled": "weight decay is left out",
    "1e-6 added to the norm": "1e-6 is added to the norm",
    "each array by its own norm": "every array is clipped by its own norm",
    "scaled below the limit too": "gradients are scaled to the limit below it too",
    "divided by the norm": "gradients are divided by the norm",
    "largest size for the norm": "the norm is the largest size",
    "norm after clipping": "the norm returned is that after clipping",
}
"""By the planted fault, what the diagnosis says of it."""


def failures(fault: Any) -> list[Failing]:
    """The fault's wrong answers to usual cases; small norms for what is added to them."""
    wrong, found = fault.target().make(), []
    kinds = {"kinds": ("small",)} if fault.name.startswith("1e-6") else {}
    for _, case in drawn(operation_cases(fault.operation, dtypes=("float32",), **kinds), 60, 0):
        if not case.special and not case.memory:
            failing = Failing(case, wrong(case), oracle(case), bound(case))
            found += [failing] if failing.wrong else []
        if len(found) == MANY:
            break
    return found


@pytest.mark.parametrize("name", NAMES)
def test_planted_faults_have_names(name: str) -> None:
    """Where the fault shows, mostly by its own name; other mistakes may come to the same on some cases."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    found = failures(fault)
    assert len(found) > 2
    named = [any(NAMES[name] in known(one, result, np.inf) for result in one.wrong) for one in found]
    assert sum(named) > 0.5 * len(named)


@pytest.mark.parametrize("operation", ["adam_step", "sgd_step", "clip_by_global_norm"])
def test_every_name_is_of_a_mistake(operation: str) -> None:
    """Each gives, on some case, what is no right answer."""
    mistakes = MISTAKES[operation]
    left = {mistake.name for mistake in mistakes}
    kinds = {"kinds": ("usual", "small")}
    for _, case in drawn(operation_cases(operation, dtypes=("float32",), **kinds), 60, 1):
        truth, allowed = oracle(case), bound(case)
        right = Failing(case, {name: exact.high for name, exact in truth.items()}, truth, allowed)
        for mistake in mistakes:
            with np.errstate(all="ignore"):
                answers = mistake.answers(right) if mistake.name in left else None
            for name in answers[0] if answers is not None else ():
                if (np.abs(answers[0][name] - truth[name].high) > allowed[name]).any():
                    left.discard(mistake.name)
    assert left == set()


def test_what_is_only_just_wrong_stands_in_no_other_place() -> None:
    _, case = next(iter(drawn(operation_cases("adam_step", dtypes=("float32",), plans=((40,),)), 2, 0)))
    truth, allowed = oracle(case), bound(case)
    got = {name: exact.high + 1.5 * allowed[name] for name, exact in truth.items()}
    failing = Failing(case, got, truth, allowed)
    assert set(failing.wrong) >= set(results_of(case)) - {"step"}
    assert list(extents.displaced(failing, "parameters")) == []
