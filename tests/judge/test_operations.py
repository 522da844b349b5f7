"""Every operation has a complete record, and all that belongs to it stands under its name."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import pytest

import jax_impl
import reference_numpy
import torch_impl
from conformance.bounds.operations import BOUNDS
from conformance.cases.arguments import results_of
from conformance.cases.declaration import CONVENTIONS, FEATURES, PRECISIONS, roundings
from conformance.oracle.reference import PER_NUMBER, WORK, evaluate_definition
from conformance.runner.dimensions import layout_of
from conformance.sampling.operations import CASES
from conformance.selftest import selftest
from specification.rules import RULES
from tests.support.helpers import EVERYTHING, OPERATIONS, Case, bound, catalogue, draw_cases, operation_cases

ball = pytest.importorskip("conformance.oracle.ball", reason="needs python-flint")


def complete(operation: Any) -> list[str]:
    """What the record lacks, as text; empty where it lacks nothing."""
    name, found = operation.name, list[str]()
    for package in (reference_numpy, torch_impl, jax_impl):
        if not callable(getattr(package, name, None)):
            found.append(f"{package.__name__} has no {name}")
    if operation.differentiated and not callable(getattr(reference_numpy, f"{name}_vjp", None)):
        found.append(f"reference_numpy has no {name}_vjp")
    found += [f"no rule {rule} for {feature!r}" for feature, rule in operation.rules.items() if rule not in RULES]
    found += [f"no feature {feature!r}" for feature in operation.rules if feature not in (*FEATURES, "dtype", "")]
    if "" not in operation.rules:
        found.append("no rule for whatever no other rule speaks of")
    own = signature(getattr(reference_numpy, name)).parameters
    found += [f"{argument} is no argument" for argument in operation.arguments if argument not in own]
    found += [f"{argument} is no argument" for argument in operation.differentiated if argument not in own]
    if not any(one.operation == name for one in selftest.everything_planted()):
        found.append("nothing planted")
    if not any(probe.operations == (name,) and probe.check.name == "agreement" for probe in catalogue()):
        found.append("no probe of its results")
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_missing(name: str) -> None:
    assert complete(OPERATIONS[name].facts) == []


def test_every_table_has_every_operation() -> None:
    assert BOUNDS.keys() == WORK.keys() | PER_NUMBER.keys() == CASES.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_record_fits_its_cases(name: str) -> None:
    """Shapes, bounds, axes and exact values have the names and shapes that the definition's results have."""
    operation = OPERATIONS[name].facts
    example = operation_cases(name, ("float32",), EVERYTHING)
    for _, case in draw_cases(example, 6, 0):
        truth = evaluate_definition(case)
        assert set(truth) == {*results_of(case), *(f"gradient of {n}" for n in differentiated(case, operation))}
        assert {key: array.shape for key, array in bound(case).items()} == {k: e.high.shape for k, e in truth.items()}
        for result in results_of(case):
            assert operation.shape(case, result, "BHTD") == truth[result].high.shape
        assert set(layout_of(case).arrays) >= set(case.inputs)
        dimensions = operation.dimensions(case)
        assert (*dimensions,) == operation.dimension_names
        assert all(size >= 0 for size in dimensions.values())
        assert callable(ball.formula(name))


@pytest.mark.parametrize("name", OPERATIONS)
@np.errstate(all="ignore")
def test_a_convention_that_widens_a_bound_may_be_declared(name: str) -> None:
    for _, case in draw_cases(operation_cases(name, ("float32", "bfloat16"), EVERYTHING), 3, 0):
        for convention, value in ((one, value) for one in PRECISIONS for value in CONVENTIONS[one][1:]):
            rounding = roundings(EVERYTHING.add_conventions(**{convention: value}), case.dtype)
            own, wider = bound(case), bound(replace(case, rounding=rounding))
            same = all(np.array_equal(own[key], wider[key], equal_nan=True) for key in own)
            assert same or convention in OPERATIONS[name].facts.conventions, convention


def differentiated(case: Case, operation: Any) -> list[str]:
    """The case's inputs that have gradients, where it asks for any."""
    names = [n for n, array in case.inputs.items() if np.issubdtype(array.dtype, np.floating)]
    return names if case.cotangents and operation.differentiated else []
