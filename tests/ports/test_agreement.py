"""The three implementations agree on every rule (Hypothesis), and the run that says so is not vacuous."""

from __future__ import annotations

import pytest

from conformance.checks.catalogue import make_probe
from conformance.subjects.subject import IMPLEMENTATIONS
from specification import RULES
from tests.support.helpers import OPERATIONS, Subject, operation_cases, probes_of_all, run_probes

SEED = 20260102
SLOW_IN_JAX = (
    *(f"MASK-{number}" for number in (1, 3, 4, 5, 6)), *(f"ATT-{number}" for number in (1, 2, 3, 4, 5, 7, 13)), "MHA-1",
)  # fmt: skip
"""Rules for which JAX compiles what it also compiles for ATT-8, with every feature, for ATT-12 or for MHA-2."""


@pytest.fixture(scope="module")
def subjects() -> list[Subject]:
    return [make() for make in IMPLEMENTATIONS.values()]


@pytest.mark.parametrize("examples", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.slow_where("MHA-1-1")
def test_all_three_keep_the_rule(rule: str, examples: int, subjects: list[Subject]) -> None:
    """Four cases for each probe. In the fast tier one, for at most six probes, and in JAX for one of these or none."""
    probes = [probe for probe in probes_of_all() if probe.rule == rule]
    if examples == 1:
        probes = probes[:: -(-len(probes) // 6)]
    *others, in_jax = subjects
    probes_in_jax = probes if examples > 1 else [] if rule in SLOW_IN_JAX else probes[:1]
    for asked, some in ((others, probes), ([in_jax], probes_in_jax)):
        results = run_probes(some, asked, examples, SEED)
        assert results.conforms, results.violations


def test_substance() -> None:
    """Most attention cases have masked and allowed keys, weights that are spread, and an output unlike zeros."""
    probe = make_probe("attention", "ATT-12", "attention", operation_cases("attention", ("float32", "bfloat16")))
    results = run_probes([probe], [IMPLEMENTATIONS["reference_numpy"]()], 100, SEED)
    count = len(results.substance.masked)
    assert count == 100
    assert results.substance.telling > 0.8 * count
    assert sum(share > 0 for share in results.substance.masked) > 0.7 * count


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.slow_where(unless=("layer_norm", "logsumexp"))
def test_definition_within_its_bound_of_ball_arithmetic(operation: str) -> None:
    """float64, every feature; `conformance definition` does the same with more cases."""
    pytest.importorskip("flint")
    probe = make_probe(operation, "ATT-9", operation, operation_cases(operation, ("float64",)))
    results = run_probes([probe], [IMPLEMENTATIONS["reference_numpy"]()], 100, SEED)
    assert results.conforms, results.violations
