"""Attention over several devices in JAX, beside attention of the whole (DIST-1 to DIST-5)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from conformance.bounds import bound
from conformance.cases.arguments import gradient_name
from conformance.oracle.reference import oracle
from specification import Causal, Dense, KeyLengths, KeyPadding, Segments, SlidingWindow
from tests.support import devices
from tests.support.devices import FAULTS, Devices
from tests.support.engine_cases import SIZES, drawn, worst
from tests.support.helpers import Case, Finding, judge, truth_and_bounds
from tests.support.shards import Call, merged_case

RNG = np.random.default_rng(3)
EVEN = SIZES._replace(H=8, G=2, Q=24, K=48)
"""Lengths that 2, 3, 4 and 8 ranks share equally; in zigzag, those of 8 ranks are pieces of 2 and 1 queries."""
IDS = np.sort(RNG.integers(0, 4, (2, 24))), np.sort(RNG.integers(0, 4, (2, 48)))
MASKS = {
    "none": None,
    "causal": Causal(24),
    "causal, empty rows": Causal(-5),
    "causal, per batch": Causal(np.array([20, -3])),
    "window": SlidingWindow(5, 2, 11),
    "lengths": KeyLengths(np.array([0, 31])),
    "causal and lengths": Causal(24) & KeyLengths(np.array([11, 48])),
    "padding or segments": KeyPadding(RNG.random((2, 48)) < 0.5) | Segments(*IDS),
    "dense": Dense(RNG.random((24, 48)) < 0.5),
    "dense, per head": Dense(RNG.random((2, 8, 24, 48)) < 0.5),
}
CASES = {name: drawn(mask, sizes=EVEN) for name, mask in MASKS.items()} | {
    "everything": drawn(MASKS["causal and lengths"], "bfloat16", EVEN, (1, 8, 24, 48), True, softcap=2.0, scale=-1.3),
    "float64": drawn(MASKS["window"], "float64", EVEN, (24, 48)),
    "one key head": drawn(MASKS["causal"], "bfloat16", EVEN._replace(G=1), sinks=True),
    "six heads": drawn(MASKS["dense"], "bfloat16", EVEN._replace(H=6), bias=(2, 1, 24, 48), sinks=True),
}


def verdict(process: Devices, call: Call, checked: bool = True) -> Finding:
    """The worst error, in error bounds."""
    case = merged_case(call)
    return worst(judge(case, process.ask(devices.compute, call, checked), *truth_and_bounds(case)))


def conforms(process: Devices, call: Call, checked: bool = True) -> None:
    finding = verdict(process, call, checked)
    assert finding.ratio <= 1, f"{call.ranks} ranks, {call.shard}, {call.layout}, {call.engine}: {finding}"


@pytest.mark.parametrize(
    ("name", "ranks", "shard", "layout"),
    [("causal", 4, "sequence", "contiguous"), ("everything", 2, "heads", "zigzag")],
)
@pytest.mark.rule("DIST-1", "DIST-2")
def test_attention_of_the_whole(process: Devices, name: str, ranks: int, shard: str, layout: str) -> None:
    conforms(process, Call(CASES[name], ranks, shard, layout, "reference"))


LAYOUTS = ("contiguous", "zigzag")
SLOW = [
    *((name, 4, "sequence", LAYOUTS[i % 2], "reference") for i, name in enumerate(CASES)),
    *((name, 4, "heads", LAYOUTS[1 - i % 2], "reference") for i, name in enumerate(CASES)),
    *((name, ranks, shard, "zigzag", "reference") for name, ranks, shard in product(
        ("causal", "everything"), (1, 2, 3, 8), ("sequence", "heads")
    )),
    *((name, 2, shard, "zigzag", "blocked") for name, shard in product(
        ("everything", "causal"), ("sequence", "heads")
    )),
    *(("six heads", 3, shard, "zigzag", "reference") for shard in ("sequence", "heads")),
]  # fmt: skip
SLOW = [row for row in SLOW if row[2] == "sequence" or CASES[row[0]].inputs["query"].shape[1] % row[1] == 0]


@pytest.mark.slow
@pytest.mark.parametrize("row", SLOW, ids=lambda row: ", ".join(map(str, row)))
@pytest.mark.rule("DIST-1", "DIST-2")
def test_more_of_it(process: Devices, row: tuple[str, int, str, str, str]) -> None:
    conforms(process, Call(CASES[row[0]], *row[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["sequence", "heads"])
@pytest.mark.rule("DIST-1")
def test_without_types_that_say_what_varies(process: Devices, shard: str) -> None:
    conforms(process, Call(CASES["six heads"], 2, shard), checked=False)


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["sequence", "heads"])
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.rule("DIST-1", "DIST-2")
def test_a_bias_for_all_queries(process: Devices, shard: str, heads: int) -> None:
    """As in `test_torch.py`: the gradient of repeated rows, added up, within their bounds and the sum's rounding."""
    case = drawn(MASKS["lengths"], sizes=EVEN, bias=(1, heads, 24, 48))
    case = replace(case, inputs=case.inputs | {"bias": np.repeat(case.inputs["bias"][:, :, :1], 24, axis=2)})
    call = Call(case, 4, shard, "zigzag", "reference", one_row=True)
    results, case, name = process.ask(devices.compute, call), merged_case(call), gradient_name("bias")
    exact, bounds = oracle(case)[name].high, bound(case)[name]
    rounding = 24 * 2.0**-24 / (1 - 24 * 2.0**-24)
    allowed = bounds.sum(axis=2) + rounding * (np.abs(exact) + bounds).sum(axis=2)
    assert (np.abs(results[name][:, :, 0] - exact.sum(axis=2)) <= allowed).all()


def special(case: Case, name: str, place: tuple[int, ...]) -> Case:
    inputs = case.inputs | {name: case.inputs[name].copy()}
    inputs[name][place] = np.nan
    return replace(case, inputs=inputs, special=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), [("key", (0, 0, 9, 1)), ("value", (1, 1, 40, 0)), ("query", (1, 2, 7, 0))])
@pytest.mark.rule("DIST-1")
def test_nan(process: Devices, name: str, place: tuple[int, ...]) -> None:
    for engine in ("reference", "blocked"):
        conforms(process, Call(special(CASES["causal and lengths"], name, place), 3, engine=engine))


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["sequence", "heads"])
@pytest.mark.rule("DIST-3")
def test_other_lengths_are_padded_by_the_caller(process: Devices, shard: str) -> None:
    """13 positions on four ranks are 16, of which three are hidden."""
    case = drawn(Causal(), sizes=EVEN._replace(Q=13, K=13))
    more = [(0, 0), (0, 0), (0, 3), (0, 0)]
    padded = replace(
        case,
        inputs={name: np.pad(array, more) for name, array in case.inputs.items()},
        cotangents={name: np.pad(array, more) for name, array in case.cotangents.items()},
        options={"mask": Causal() & KeyLengths(np.array([13, 13]))},
    )
    results = process.ask(devices.compute, Call(padded, 4, shard, "zigzag", "reference"))
    assert not any(array[:, :, 13:].any() for name, array in results.items() if name != "output")
    cut = {name: array[:, :, :13] for name, array in results.items()}
    case = merged_case(Call(case, 4, shard, "zigzag"))
    assert worst(judge(case, cut, *truth_and_bounds(case))).ratio <= 1


# --- what it takes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.rule("DIST-4")
def test_bytes_in_a_ring_are_those_of_the_formula(process: Devices, dtype: str, layout: str) -> None:
    ranks, width = 4, {"float32": 4, "bfloat16": 2}[dtype]
    B, _, G, _, K, D, V = EVEN
    numbers = B * G * K // ranks * (D + V)
    forward = numbers * width * (ranks - 1)
    sent = process.ask(devices.bytes_sent, Call(drawn(MASKS["causal"], dtype, EVEN), ranks, layout=layout))
    assert sent == (forward, forward + numbers * 4 * ranks)


@pytest.mark.parametrize(("G", "read"), [(8, 2), (4, 1), (2, 1), (1, 1)])
@pytest.mark.rule("DIST-4")
def test_bytes_of_an_exchange_of_heads_are_those_of_the_formula(process: Devices, G: int, read: int) -> None:
    ranks = 4
    B, H, _, Q, K, D, V = EVEN
    sent = process.ask(devices.bytes_sent, Call(drawn(None, "bfloat16", EVEN._replace(G=G)), ranks, "heads"))
    wide = 2 if G % ranks == 0 else 4
    numbers = Q // ranks * D * H // ranks + K // ranks * (D + V) * read
    one_way = B * (ranks - 1) * (numbers * wide + Q // ranks * V * H // ranks * 2)
    assert sent == (one_way, one_way)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "computed"), [("contiguous", 10), ("zigzag", 36)])
@pytest.mark.rule("DIST-2")
def test_nothing_is_computed_behind_a_causal_mask(process: Devices, layout: str, computed: int) -> None:
    case = drawn(Causal(), sizes=EVEN._replace(K=24))
    assert process.ask(devices.pairs_computed, Call(case, 4, layout=layout, engine="reference")) == computed


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no offset": ({"mask": Causal()}, ValueError, "Causal must have an offset with 6 queries and 8 keys, got None;"
                  " offset=0 aligns the first query and key, offset=2 the last ones"),
    "its own padding": ({"mask": KeyPadding(np.ones((1, 4), bool))}, ValueError,
                        "keep must have shape [1, 8], got [1, 4]"),
    "its own columns": ({"bias": np.ones((3, 4), np.float32)}, ValueError, "bias must have 8 columns, for the keys of"
                        " all ranks, got [[3, 4], [3, 4]]"),
    "an unknown layout": ({"layout": "striped"}, ValueError, "layout must be one of 'contiguous', 'zigzag', got"
                          " 'striped'"),
    "a scale in an array": ({"scale": np.ones((), np.float32)}, TypeError, "scale must be a plain number, got float32"
                            " array of shape []"),
    "an unknown engine": ({"engine": "fast"}, ValueError, "engine must be one of auto, reference, blocked, fused, got"
                          " 'fast'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.rule("DIST-5")
def test_wrong_calls_are_refused_in_the_same_words_as_in_torch(process: Devices, name: str) -> None:
    changes, kind, message = REFUSED[name]
    for shard in ("sequence", "heads"):
        with pytest.raises(kind) as caught:
            process.ask(devices.refusal, Call(CASES["none"], 2, shard), changes)
        assert str(caught.value) == message


@pytest.mark.rule("DIST-1")
def test_heads_that_ranks_cannot_share_equally(process: Devices) -> None:
    with pytest.raises(ValueError, match="query must have a multiple of 3 heads for as many ranks, got 2 heads"):
        process.ask(devices.refusal, Call(CASES["none"], 3, "heads"), {})


# --- planted faults ---------------------------------------------------------------------------------------------------

SQUARE = drawn(Causal(), sizes=EVEN._replace(K=24), sinks=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.rule("DIST-1")
def test_planted_fault_is_caught(process: Devices, name: str) -> None:
    call = Call(SQUARE, 4, "heads" if name == "order not undone" else "sequence", "zigzag", "reference")
    conforms(process, call)
    assert verdict(process, replace(call, fault=name)).ratio > 1
