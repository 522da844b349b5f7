"""Honest implementations that are written in other ways conform, those with declared roundings only if they declare."""

from __future__ import annotations

import pytest

from conformance.cases.declaration import CONVENTIONS
from conformance.cases.facts import operation_facts
from conformance.selftest import variants

SEED = 20260104
ROUNDED = [variant for variant in variants.VARIANTS if variant.subject().declaration.conventions]


def identifier(variant: variants.Variant) -> str:
    return f"{variant.operation}, {variant.name}"


SOME = ("MASK-3", "ATT-1", "ATT-6")
"""Rules that are enough for attention in JAX, which compiles for every shape."""


@pytest.mark.slow
@pytest.mark.parametrize("variant", variants.VARIANTS, ids=identifier)
def test_variant_conforms(variant: variants.Variant) -> None:
    rules = SOME if (variant.arrays, variant.operation) == ("jax", "attention") else None
    report = variant.check(effort="quick", seed=SEED, shrink=False, rules=rules)
    assert report.conforms, (report.untried, report.violations)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ROUNDED, ids=identifier)
def test_rounding_has_to_be_declared(variant: variants.Variant) -> None:
    """The same function conforms as it declares (above), and breaks rules of precision when judged as if it did not."""
    by_definition = {name: CONVENTIONS[name][0] for name in operation_facts(variant.operation).conventions}
    report = variant.check(effort="quick", seed=SEED, shrink=False, conventions=by_definition)
    assert report.violations
    for violation in report.violations:  # a product past float16's largest number is infinite
        assert violation.ratio < float("inf") or violation.case.dtype == "float16"


def test_every_declared_rounding_has_a_variant() -> None:
    declared = {name for variant in ROUNDED for name in variant.subject().declaration.conventions}
    assert declared == {"weights", "products", "shared_heads", "normalized", "scores"}
