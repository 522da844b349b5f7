"""Rotary functions of transformers, by family: they conform with what they do on purpose declared."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import conformance
from conformance.peers import rotary_layers

HALF_AND_SINGLE = ["float32", "bfloat16", "float16"]
FAMILIES: dict[str, tuple[Any, str, list[str] | None]] = {
    "llama": (rotary_layers.llama, "inputs", None),
    "gpt_neox": (rotary_layers.gpt_neox, "inputs", None),
    "cohere": (rotary_layers.cohere, "rounded", HALF_AND_SINGLE),  # it turns float64 in float32
}


def report(family: str, seed: int, **conventions: str) -> Any:
    function, _, dtypes = FAMILIES[family]
    given: dict[str, Any] = {"effort": "quick", "seed": seed, "shrink": False, "dtypes": dtypes, "time_limit": 120}
    return conformance.check(function, "rotary_embedding", arrays="torch", conventions=conventions, **given)


@pytest.mark.slow
@pytest.mark.rule("POS-3", "POS-4")
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_conforms_as_declared(family: str, seed: int) -> None:
    found = report(family, seed, angles="float32", rotation=FAMILIES[family][1])
    assert found.conforms, str(found)
    assert found.kept == "strict"


@pytest.mark.slow
@pytest.mark.rule("POS-3")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("declared", ["angles", "rotation"])
def test_it_needs_both_conventions(family: str, declared: str) -> None:
    value = "float32" if declared == "angles" else FAMILIES[family][1]
    assert "POS-3" in [violation.rule for violation in report(family, 1, **{declared: value}).violations]
