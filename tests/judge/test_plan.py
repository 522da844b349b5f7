"""The plan of sizes: what it covers, what it costs, and that it keeps to what a subject declares."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.cases import features
from conformance.cases.case import heads_and_keys
from conformance.judge.plan import count_cases
from conformance.operations import corpus
from conformance.sampling import histories, strategies
from conformance.sampling.draws import Rows, draw_from_seed
from conformance.sampling.plan import attention, covering, layers
from reference_numpy import attention_weights
from tests.support.helpers import EVERYTHING, Declaration, Sizes, catalogue, draw_cases

KERNEL = Declaration(limits={"keys": 100, "key_width": 64, "heads": 8, "batch": 3}, width_multiple=8)


@pytest.mark.parametrize("name", attention.RANGES)
def test_every_affordable_pair_of_ranges_meets(name: str) -> None:
    levels, affords = attention.levels_of(name, False, None), attention.budget_of(name).affords
    rows = covering.covering(levels, affords)
    for one, other in combinations(levels, 2):
        for pair in product(range(len(levels[one])), range(len(levels[other]))):
            picked = dict(zip((one, other), pair, strict=True))
            if affords(covering.smallest_with(picked, levels)):
                assert any(picked.items() <= row.items() for row in rows)


def test_triples_meet_too() -> None:
    levels = {"a": ((1,), (2,)), "b": ((1,), (2,)), "c": ((1,), (2,))}
    assert len({tuple(row.values()) for row in covering.covering(levels, lambda row: True, 3)}) == 8


def test_every_size_occurs_and_rows_are_affordable() -> None:
    rows = attention.rows("everything", False, None)
    for dimension in ("keys", "key_width", "value_width"):
        assert set(attention.VALUES[dimension]) <= {row[dimension] for row in rows}
    assert {row["group_ratio"] for row in attention.rows("heads", False, None) if row["key_heads"] > 1} >= {3, 5, 6, 7}
    assert max(row["queries"] * row["keys"] for row in rows) > 2**16
    for row in rows:
        assert attention.Budget(2**22, 2**18, 2**20).affords(row)


def test_the_largest_sizes_have_a_row_each() -> None:
    norms = layers.plan_of(layers.NORMS, EVERYTHING)
    assert 65537 in {row["norm_width"] for row in norms} & {row["rows"] for row in norms}
    for name, varied in attention.RANGES.items():
        rows = attention.rows(name, False, None)
        for dimension in varied:
            largest = sorted(set(attention.VALUES[dimension]))[-3:]
            assert set(largest) <= {row[dimension] for row in rows}, (name, dimension)


@pytest.mark.parametrize("keys", [65, 300, 65537])
def test_a_query_seeks_the_last_keys(keys: int) -> None:
    """Its weight on them is seen beside all others, whatever the spread, as far as the numbers have any."""
    sizes, found = Sizes(1, 2, 1, 3, keys, 2, 2), []
    for number in range(20):
        plain = {"mask": "none", "others": False, "gradients": False}
        cases = strategies.attention_cases(dtypes=("float32",), plans=(sizes,), **plain)
        [case] = draw_from_seed(cases, number, False)
        found.append(attention_weights(case.inputs["query"][:, :1], case.inputs["key"])[0, 0, -1, -2:].max())
    assert np.median(found) > 0.1
    assert np.mean(np.array(found) > 0.01) > 0.75


def test_each_row_gives_one_case_before_any_gives_another() -> None:
    rows = Rows(lambda: tuple(map(st.just, range(7))), later=lambda: (st.just(7),))
    first = [case for _, case in draw_cases(rows, 7, 3)]
    assert sorted(first) == list(range(7))
    assert first != [case for _, case in draw_cases(rows, 7, 4)]
    assert 7 in [case for _, case in draw_cases(rows, 15, 3)]


def at_sizes(operation: str, declaration: Declaration) -> list[Any]:
    probes = [p for p in catalogue(declaration) if p.operations == (operation,) and isinstance(p.cases, Rows)]
    return [(probe, row) for probe in probes for row in probe.cases.strategies]


@pytest.mark.parametrize("operation", ["attention", "layer_norm", "embedding", "feed_forward", "rotary_embedding"])
def test_nothing_beyond_a_limit_is_drawn(operation: str) -> None:
    limits = {
        "rows": 50,
        "norm_width": 200,
        "model_width": 30,
        "vocabulary": 1000,
        "inner_width": 9,
        "length": 60,
        "table": 300,
    }
    declaration = replace(KERNEL, limits=KERNEL.limits | limits)
    for number, (_, row) in enumerate(at_sizes(operation, declaration)):
        if number % 7 == 0:
            for case in draw_from_seed(row, number, False):
                assert features.supports_case(case, declaration), features.dimensions(case)
    for number, probe in enumerate(p for p in catalogue(declaration) if p.operations == (operation,)):
        if number % 3 == 0 or operation != "attention":
            for _, example in draw_cases(probe.cases, 1, 5):
                case = probe.check.case_of(example)
                assert not [*features.unsupported_features(case, declaration)], probe.title


@pytest.mark.parametrize("compiled", [False, True])
def test_norms_of_one_width_have_histories(compiled: bool) -> None:
    """Of the widths that histories have, 24 alone is within the limit."""
    declaration = Declaration(limits={"norm_width": 30}, compiled=compiled)
    for kind, history in histories.norm_histories("layer_norm", declaration, None).items():
        for _, cases in draw_cases(history, 3, 0) if kind != "dtypes" else ():  # those have the widths of other cases
            assert {case.inputs["weight"].size for case in cases} == {24}


def test_tiles_add_their_neighbours() -> None:
    keys = {row["keys"] for row in attention.rows("everything", False, (48, 144))}
    assert {143, 144, 145, 287, 288, 289} <= keys


def test_where_shapes_are_compiled_there_are_few() -> None:
    compiled = replace(EVERYTHING, compiled=True)
    shapes = {sizes for name in attention.RANGES for sizes in attention.plan_of(name, compiled)}
    assert len(shapes) <= 16
    assert {65537} <= {sizes.K for sizes in shapes}


def test_quick_takes_a_share_of_the_rows() -> None:
    probe = next(p for p in catalogue() if p.title == "everything, everything")
    whole = len(probe.cases.strategies)
    assert count_cases(probe, 10) == whole
    assert whole / 13 < count_cases(probe, 3) < whole / 10


# --- where shapes are compiled ----------------------------------------------------------------------------------------

COMPILED = replace(EVERYTHING, compiled=True, strides=False)


def sizes_of(case: Any) -> Sizes:
    (B, H, Q, D), (_, G, K, V) = case.inputs["query"].shape, case.inputs["value"].shape
    return Sizes(B, H, G, Q, K, D, V)


FEW, MANY = strategies.FEATURED, (*strategies.SHORT, *strategies.LONG)


@pytest.mark.parametrize(("declaration", "sizes"), [(COMPILED, {*FEW}), (EVERYTHING, {*MANY})])
def test_features_are_compiled_for_few_shapes(declaration: Declaration, sizes: set[Sizes]) -> None:
    cases = strategies.attention_cases(mask="none", focus=("bias",), dtypes=("float32",), declaration=declaration)
    assert {sizes_of(draw_from_seed(cases, seed, False)[0]) for seed in range(60)} == sizes


@pytest.mark.parametrize("part", ["scale", "softcap", "bias", "sinks", "mask", "dropout_keep"])
def test_some_frozen_cases_ask_for_no_gradients(part: str) -> None:
    """With them, the forward function of a `jax.custom_vjp` is all that is called of what it computes."""
    entries = [entry for entry in corpus.entries_for({"attention"}, COMPILED) if entry.check.name == "agreement"]
    alone = [entry.case for entry in entries if not entry.case.cotangents]
    assert sum(part in case.inputs or case.options.get(part) is not None for case in alone) >= 2


def test_lengths_and_heads_come_in_the_multiples_that_a_function_takes() -> None:
    whole = Declaration(length_multiple=3, head_multiple=2, limits={"heads": 9})
    for probe in catalogue(whole, "attention"):
        for _, example in draw_cases(probe.cases, 1, 7):
            for case in example if isinstance(example, tuple) else (example,):
                if getattr(case, "operation", "") == "attention":
                    H, G, Q, K = heads_and_keys(case)
                    assert (H % 2, G % 2, Q % 3, K % 3) == (0, 0, 0, 0), probe.title
                    assert H <= 9
