"""The engines of the ports: what each computes, on cases that the judge does not draw.

The judge asks every engine for every rule (`conformance dev engines`). What is no matter of one result
stands in the files beside this one.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.checks.results import Cell
from conformance.cli.dev.engines import row
from conformance.peers.engines import Engine, judge
from specification import Causal, KeyLengths, SlidingWindow
from tests.support.engine_cases import (
    BLOCKED,
    CASES,
    EACH,
    FAR,
    FUSED,
    NEAR,
    PIECES,
    agreement,
    conforms,
    drawn,
    error,
    every_engine,
    lowered,
    module_of,
    subject,
    worst,
)
from tests.support.helpers import Case, Sizes, truth_and_bounds
from tests.support.helpers import judge as judged

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.mark.parametrize(("engine", "name"), EACH)
@pytest.mark.rule("ATT-8", "ATT-9", "ATT-12")
@pytest.mark.slow_where("jax_impl", unless=("everything", "none"))
@pytest.mark.slow_where("jax_impl", "pieces")
def test_definition(engine: Engine, name: str) -> None:
    conforms(agreement(engine, name))


@pytest.mark.parametrize("engine", [BLOCKED, PIECES], ids=lambda engine: engine.title)
@pytest.mark.rule("ATT-4")
@pytest.mark.slow_where("jax_impl")
def test_scores_far_below_zero_lose_nothing(engine: Engine) -> None:
    """Of a log-sum-exp near -4096 float32 leaves 2^-12; no gradient may see that."""
    conforms(error(engine, lowered(4096), truth_and_bounds(lowered(0))))


@pytest.mark.parametrize(
    ("case", "near"),
    [*((case, True) for case in NEAR.values()), *((case, False) for case in FAR.values())],
    ids=[*(f"near, {name}" for name in NEAR), *(f"far, {name}" for name in FAR)],
)
@pytest.mark.rule("ATT-8")
def test_scores_near_zero_and_far_from_it(case: Case, near: bool) -> None:
    """JAX's blocks sum exp(score) itself only where no such number is too large or too small."""
    blocked, choice = module_of(PIECES, "engines.blocked"), module_of(PIECES, "engines.choice")
    inputs = {name: jnp.asarray(array) for name, array in case.inputs.items()}
    given = blocked.Inputs(**inputs, mask=None, scale=case.options.get("scale"), softcap=None)
    assert bool(blocked.near_zero(choice.in_blocks(given))) is near
    conforms(error(PIECES, case))


@pytest.mark.parametrize("name", ["all", "everything"])
@pytest.mark.rule("ATT-8", "ATT-12")
def test_one_query_at_a_time_where_scores_are_many(name: str) -> None:
    conforms(agreement(BLOCKED._replace(limits=(4, 1)), name))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [BLOCKED, FUSED], ids=lambda engine: engine.name)
def test_the_judge_finds_nothing(engine: Engine) -> None:
    report = judge(engine, effort="quick", seed=2026, shrink=False)
    assert report.conforms, report.violations


def test_pieces_reach_back_and_are_several() -> None:
    """Else the cases above would not try what they are there for."""
    blocked = module_of(PIECES, "engines.blocked")
    given = {name: jnp.asarray(array) for name, array in CASES["all"].inputs.items()}
    inputs = blocked.Inputs(**given, mask=True, bias=None, scale=1, softcap=None, sinks=None)
    sizes = blocked.sizes_of(inputs, blocked.Limits(*PIECES.limits))
    assert (sizes.block, sizes.pieces) == (3, (3, 5, 7))
    assert sizes.Q % sizes.block
    assert all(sizes.K % piece for piece in sizes.pieces)


def test_few_keys_are_not_divided() -> None:
    """Each length of pieces would be compiled for itself."""
    blocked = module_of(PIECES, "engines.blocked")

    def pieces(keys: int) -> tuple[int, ...]:
        query, key = jnp.zeros((1, 2, 16, 4)), jnp.zeros((1, 2, keys, 4))
        inputs = blocked.Inputs(query, key, key, mask=True, bias=None, scale=1, softcap=None, sinks=None)
        found: tuple[int, ...] = blocked.sizes_of(inputs, blocked.Limits()).pieces
        return found

    assert pieces(32) == (32,)
    assert pieces(100) == (100,)
    assert pieces(200) == (67, 134, 200)
    assert len(pieces(1024)) == 8


# --- integers that are narrow -----------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint64])
@pytest.mark.rule("MASK-2", "MASK-3", "MASK-4")
@pytest.mark.slow_where("jax_impl", unless="uint8")
def test_numbers_of_any_width_inside_a_mask(engine: Engine, kind: Any) -> None:
    """A block's offset is the mask's less a difference: it may be negative, and larger than 8 bits hold."""
    sizes = Sizes(1, 1, 1, 300, 300, 2, 2)
    for wide in (Causal(100), SlidingWindow(3, 2, 100) & Causal(100), KeyLengths([120]) & SlidingWindow(90, 100, 0)):
        case = replace(drawn(wide, sizes=sizes), cotangents={})
        narrow = replace(case, options={"mask": replaced_numbers(wide, kind)})
        conforms(worst(judged(case, subject(engine)(narrow), *truth_and_bounds(case))))


def replaced_numbers(mask: Any, kind: Any) -> Any:
    """Every number in a description as NumPy's of that kind."""
    if isinstance(mask, int | list):
        return kind(mask) if isinstance(mask, int) else np.array(mask, kind)
    return mask if mask is None else type(mask)(*(replaced_numbers(part, kind) for part in vars(mask).values()))


def test_the_table_of_engines_shows_dtypes_apart() -> None:
    """The worst of the 16 bits hides nothing of the wider ones."""
    cells = Cell(), Cell()
    cells[0].add(0.25, "float32")
    cells[1].add(0.75, "bfloat16")
    report: Any = SimpleNamespace(rules={"ATT-1": cells[0], "ATT-9": cells[1]}, violations=[])
    assert [str(part) for part in row(report)] == ["2", "2", "0.25  0.75", "0"]
