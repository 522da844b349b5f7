"""Rotary functions of transformers, by family: they conform with what they do on purpose declared."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch

import conformance
from conformance.peers import rotary_layers


def halves_as_neighbours(x: torch.Tensor) -> torch.Tensor:
    """Columns (p, p + D / 2) at (2p, 2p + 1)."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def neighbours_as_halves(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def cohere(x: Any, positions: Any, *, base: float = 10000.0, pairing: str = "halves") -> Any:
    """Its pairs are neighbours; halves are put there first."""
    if pairing == "interleaved":
        return rotary_layers.cohere(x, positions, base=base, pairing=pairing)
    return neighbours_as_halves(
        rotary_layers.cohere(halves_as_neighbours(x), positions, base=base, pairing="interleaved")
    )


HALF_AND_SINGLE = ["float32", "bfloat16", "float16"]
FAMILIES: dict[str, tuple[Any, str, list[str] | None]] = {
    "llama": (rotary_layers.llama, "inputs", None),
    "gpt_neox": (rotary_layers.gpt_neox, "inputs", None),
    "cohere": (cohere, "rounded", HALF_AND_SINGLE),  # it turns float64 in float32
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
