"""Attention over several ranks in PyTorch, beside attention of the whole (DIST-1 to DIST-4)."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.bounds import bound
from conformance.cases.arguments import gradient_name
from conformance.oracle.reference import oracle
from conformance.runner.compiled_code import give_back_freed_memory
from specification import Causal, KeyLengths
from specification.distributed import shard_positions
from tests.support.engine_cases import CASES, MASKS, SIZES, drawn, worst
from tests.support.helpers import Case, Finding, judge, truth_and_bounds
from tests.support.ranks import FAULTS, Ranks, forward, replaced
from tests.support.shards import Call, join, merged_case
from torch_impl import attention, distributed
from torch_impl.engines import choice
from torch_impl.engines.blocked import Limits

WIDER = SIZES._replace(H=24, G=24)
LENGTHS = {
    "fewer rows than ranks": drawn(Causal(1), sizes=WIDER._replace(Q=2, K=3, G=8)),
    "one row": drawn(None, sizes=WIDER._replace(Q=1, K=1)),
    "no key": drawn(Causal(0), sizes=WIDER._replace(K=0), bias=(SIZES.Q, 0)),
    "no query": drawn(Causal(0), sizes=WIDER._replace(Q=0), sinks=True),
    "whole shards": drawn(Causal(), sizes=WIDER._replace(Q=16, K=16, G=3)),
    "remainders": drawn(Causal() & KeyLengths([17, 9]), sizes=WIDER._replace(Q=17, K=17, G=1)),
}
"""With heads for any number of ranks."""
UNEVEN = (
    ((5, 0, 8), (0, 19, 0)),
    ((13, 0, 0), (6, 7, 6)),
    ((0, 0, 13), (0, 0, 19)),
    ((1, 11, 1), (9, 1, 9)),
)
"""Queries and keys of three ranks."""
GROUPS = {f"{H} heads, {G} key heads": drawn(MASKS["dense"], "bfloat16", SIZES._replace(H=H, G=G), sinks=True)
          for H, G in ((6, 6), (6, 3), (6, 2), (6, 1), (12, 2))}  # fmt: skip


def verdict(call: Call, of_ranks: Any) -> Finding:
    """The worst error of what the ranks computed together, in error bounds."""
    case = merged_case(call)
    return worst(judge(case, join(call, of_ranks), *truth_and_bounds(case)))


def conforms(processes: Ranks, call: Call) -> None:
    (of_ranks,) = processes.compute([call])
    finding = verdict(call, of_ranks)
    assert finding.ratio <= 1, f"{call.ranks} ranks, {call.shard}, {call.layout}, {call.engine}: {finding}"


# --- the whole --------------------------------------------------------------------------------------------------------

DAILY = [
    *((name, 3, "sequence", ("contiguous", "zigzag")[i % 2], "auto") for i, name in enumerate(CASES)),
    *((name, 4, "heads", "zigzag", "auto") for name in ("none", "all", "dense, per head", "everything", "bfloat16")),
    *((name, 2, "sequence", "zigzag", "reference") for name in ("all", "everything", "float64")),
    *((name, 8, "sequence", "zigzag", "blocked") for name in ("all", "sinks")),
    *((name, 1, shard, "zigzag", "auto") for name in ("all", "everything") for shard in ("sequence", "heads")),
]
RANKS = (1, 2, 3, 4, 8)
EVERYTHING = [
    (name, ranks, shard, layout, engine)
    for (name, case), ranks, shard, layout, engine in product(
        CASES.items(), RANKS, ("sequence", "heads"), ("contiguous", "zigzag"), ("auto", "blocked", "reference")
    )
    if shard == "sequence" or case.inputs["query"].shape[1] % ranks == 0
]


def parameters(row: tuple[str, int, str, str, str]) -> Any:
    name, ranks, shard, layout, engine = row
    return Call(CASES[name], ranks, shard, layout, engine)


@pytest.mark.parametrize("row", DAILY, ids=lambda row: ", ".join(map(str, row)))
@pytest.mark.rule("DIST-1", "DIST-2")
def test_attention_of_the_whole(processes: Ranks, row: Any) -> None:
    conforms(processes, parameters(row))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.rule("DIST-1", "DIST-2")
def test_every_case_in_every_way(processes: Ranks, ranks: int) -> None:
    calls = [parameters(row) for row in EVERYTHING if row[1] == ranks]
    for call, of_ranks in zip(calls, processes.compute(calls), strict=True):
        finding = verdict(call, of_ranks)
        assert finding.ratio <= 1, f"{call.shard}, {call.layout}, {call.engine}: {finding}"


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("ranks", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.rule("DIST-3")
def test_any_length(processes: Ranks, name: str, ranks: int) -> None:
    for shard, layout in product(("sequence", "heads"), ("contiguous", "zigzag")):
        conforms(processes, Call(LENGTHS[name], ranks, shard, layout))


@pytest.mark.parametrize("lengths", UNEVEN, ids=str)
@pytest.mark.rule("DIST-3")
def test_ranks_without_queries_or_keys(processes: Ranks, lengths: Any) -> None:
    for name in ("everything", "all"):
        conforms(processes, Call(CASES[name], 3, lengths=lengths))
    conforms(processes, Call(GROUPS["6 heads, 2 key heads"], 3, "heads", lengths=lengths))


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.rule("DIST-1")
def test_key_heads_that_ranks_share(processes: Ranks, name: str) -> None:
    """Their gradients are summed before they are rounded to 16 bits."""
    for layout in ("contiguous", "zigzag"):
        conforms(processes, Call(GROUPS[name], 3, "heads", layout))


@pytest.mark.parametrize("shard", ["sequence", "heads"])
@pytest.mark.parametrize("heads", [1, SIZES.H])
@pytest.mark.rule("DIST-1", "DIST-2")
def test_a_bias_for_all_queries(processes: Ranks, shard: str, heads: int) -> None:
    """Its gradient is that of the repeated rows, added up. n numbers, each off by at most its bound, add up to what is
    off by the sum of these, and by gamma(n) of the sum of their sizes."""
    case = drawn(MASKS["lengths"], bias=(1, heads, SIZES.Q, SIZES.K))
    case = replace(case, inputs=case.inputs | {"bias": np.repeat(case.inputs["bias"][:, :, :1], SIZES.Q, axis=2)})
    call = Call(case, 4, shard, "zigzag", one_row=True)
    (of_ranks,) = processes.compute([call])
    joined, case, name = join(call, of_ranks), merged_case(call), gradient_name("bias")
    exact, bounds = oracle(case)[name].high, bound(case)[name]
    rounding = SIZES.Q * 2.0**-24 / (1 - SIZES.Q * 2.0**-24)
    allowed = bounds.sum(axis=2) + rounding * (np.abs(exact) + bounds).sum(axis=2)
    assert (np.abs(joined.pop(name)[:, :, 0] - exact.sum(axis=2)) <= allowed).all()
    others = {one: value for one, value in oracle(case).items() if one != name}
    assert worst(judge(case, joined, others, bound(case))).ratio <= 1


def special(case: Case, **numbers: tuple[tuple[int, ...], float]) -> Case:
    """With a number at a place of an input."""
    inputs = {name: array.copy() for name, array in case.inputs.items()}
    for name, (place, number) in numbers.items():
        inputs[name][place] = number
    return replace(case, inputs=inputs, special=True)


SPECIAL = {
    "a key": special(CASES["causal"], key=((0, 0, 9, 1), np.nan)),
    "a value": special(CASES["window"], value=((1, 1, 6, 0), np.nan)),
    "infinity": special(replace(CASES["window"], cotangents={}), value=((1, 1, 6, 0), np.inf)),
    "a query": special(CASES["dense"], query=((1, 2, 7, 0), np.nan)),
    "a query of an empty row": special(CASES["causal, empty rows"], query=((0, 0, 1, 0), np.nan)),
    "behind a mask": special(CASES["lengths"], key=((0, 0, 3, 0), np.nan), value=((1, 1, 15, 2), np.inf)),
    "a sink": special(CASES["sinks"], sinks=((1,), np.nan)),
    "no sink": special(CASES["sinks"], sinks=((2,), -np.inf)),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.rule("DIST-1")
def test_special_values(processes: Ranks, name: str) -> None:
    for engine in ("auto", "blocked", "reference"):
        conforms(processes, Call(SPECIAL[name], 3, engine=engine))
    conforms(processes, Call(SPECIAL[name], 4, "heads"))


@pytest.mark.parametrize("function", ["ring_attention", "head_parallel_attention"])
@pytest.mark.rule("DIST-3")
def test_one_process_needs_no_group(function: str) -> None:
    query, key = torch.randn(1, 2, 5, 4), torch.randn(1, 1, 7, 4)
    output = getattr(distributed, function)(query, key, key, mask=Causal(2), layout="zigzag", engine="blocked")
    torch.testing.assert_close(output, attention(query, key, key, mask=Causal(2), engine="blocked"))


# --- which positions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.rule("DIST-3")
def test_positions_are_those_of_the_whole(layout: str) -> None:
    for length, ranks in product(range(20), range(1, 9)):
        shards = [shard_positions(length, ranks, rank, layout) for rank in range(ranks)]
        assert sorted(np.concatenate(shards)) == list(range(length))
        parts = np.array_split(np.arange(length), 2 * ranks if layout == "zigzag" else ranks)
        for rank, shard in enumerate(shards):
            own = [parts[rank], parts[-1 - rank]] if layout == "zigzag" else [parts[rank]]
            np.testing.assert_array_equal(shard, np.concatenate(own))


@pytest.mark.rule("DIST-3")
def test_positions_of_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="rank must be below 3, the number of ranks, got 3"):
        shard_positions(5, 3, 3)
    with pytest.raises(ValueError, match="layout must be one of 'contiguous', 'zigzag', got 'striped'"):
        shard_positions(5, 3, 0, "striped")


# --- what it takes ----------------------------------------------------------------------------------------------------


def shares(call: Call) -> list[tuple[int, int]]:
    return [tuple(map(len, call.positions(rank))) for rank in range(call.ranks)]  # type: ignore[misc]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.rule("DIST-4")
def test_bytes_in_a_ring_are_those_of_the_formula(processes: Ranks, dtype: str, layout: str) -> None:
    call = Call(drawn(MASKS["causal"], dtype), 3, layout=layout)
    (of_ranks,) = processes.compute([call])
    B, _, G, _, _, D, V = SIZES
    width, keys = {"float32": 4, "bfloat16": 2, "float64": 8}[dtype], [keys for _, keys in shares(call)]
    for rank, results in enumerate(of_ranks):
        forward = B * G * (D + V) * width * (sum(keys) - keys[(rank + 1) % 3])
        backward = forward + B * G * (D + V) * max(width, 4) * sum(keys)
        assert (results["counts"]["forward"], results["counts"]["backward"]) == (forward, backward)


@pytest.mark.parametrize(("H", "G", "read"), [(6, 6, (2, 2, 2)), (6, 1, (1, 1, 1)), (6, 2, (1, 2, 1))])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.rule("DIST-4")
def test_bytes_of_an_exchange_of_heads_are_those_of_the_formula(
    processes: Ranks, H: int, G: int, read: tuple[int, ...], dtype: str
) -> None:
    call = Call(drawn(MASKS["causal"], dtype, SIZES._replace(H=H, G=G)), 3, "heads")
    (of_ranks,) = processes.compute([call])
    B, _, _, _, _, D, V = SIZES
    width = {"float32": 4, "bfloat16": 2}[dtype]
    wide = width if sum(read) == G else 4
    for rank, results in enumerate(of_ranks):
        queries, keys = shares(call)[rank]
        others = [one for i, one in enumerate(shares(call)) if i != rank]
        forward = B * width * (queries * D * H * 2 // 3 + keys * (D + V) * (sum(read) - read[rank]))
        forward += B * width * V * H // 3 * sum(q for q, _ in others)
        backward = (
            B * wide * (D * H // 3 * sum(q for q, _ in others) + (D + V) * read[rank] * sum(k for _, k in others))
        )
        backward += B * width * queries * V * H * 2 // 3
        assert (results["counts"]["forward"], results["counts"]["backward"]) == (forward, backward)


@pytest.mark.parametrize(("layout", "computed"), [("contiguous", [1, 2, 3, 4]), ("zigzag", [9, 9, 9, 9])])
@pytest.mark.rule("DIST-2")
def test_nothing_is_computed_behind_a_causal_mask(processes: Ranks, layout: str, computed: list[int]) -> None:
    """Of 4 pairs of pieces, or of 16: in zigzag every rank has as much to do."""
    (of_ranks,) = processes.compute([Call(drawn(Causal(), sizes=SIZES._replace(Q=16, K=16)), 4, layout=layout)])
    assert [results["counts"]["pairs"] for results in of_ranks] == computed


def saved_numbers(call: Call, group: Any) -> int:
    """How many numbers a rank keeps for its backward pass."""
    output, _, _ = forward(call, group)
    saved = {id(tensor.untyped_storage()): tensor for tensor in output.grad_fn.saved_tensors if tensor is not None}
    return sum(tensor.numel() for tensor in saved.values())


@pytest.mark.rule("DIST-4")
def test_memory_for_the_backward_pass_is_that_of_the_own_part(processes: Ranks) -> None:
    call = Call(drawn(Causal(), sizes=SIZES._replace(Q=64, K=64)), 4)
    B, H, G, Q, K, D, V = SIZES._replace(Q=16, K=16)
    own = B * (H * Q * (D + V) + G * K * (D + V) + 2 * H * Q)  # query, output, keys, values, log-sum-exp, empty rows
    assert {numbers for numbers, _ in processes.ask(saved_numbers, [call] * 4)} == {own}


# --- planted faults ---------------------------------------------------------------------------------------------------

EVEN = drawn(Causal(), sizes=SIZES._replace(Q=16, K=16), sinks=True)
CAUGHT = {
    "stale keys in the backward pass": Call(EVEN, 4),
    "mask of the wrong rank": Call(EVEN, 4),
    "merged without log sum exps": Call(EVEN, 4),
    "gradients not summed over ranks": Call(EVEN, 4),
    "order not undone": Call(EVEN, 4, layout="zigzag"),
    "remainder lost": Call(CASES["lengths"], 3),
    "sinks counted on every rank": Call(EVEN, 4),
    "only own gradients of shared heads": Call(GROUPS["6 heads, 2 key heads"], 3, "heads"),
}
HEADS = {
    "gradients not summed over ranks": Call(EVEN, 4, "heads"),
    "order not undone": Call(EVEN, 4, "heads", layout="zigzag"),
}


def test_every_fault_is_planted() -> None:
    assert set(CAUGHT) == set(FAULTS)


@pytest.mark.parametrize(
    ("name", "call"), [*CAUGHT.items(), *HEADS.items()], ids=[*CAUGHT, *(f"{name}, heads" for name in HEADS)]
)
@pytest.mark.rule("DIST-1")
def test_planted_fault_is_caught(processes: Ranks, name: str, call: Call) -> None:
    conforms(processes, call)
    (of_ranks,) = processes.compute([replace(call, fault=name)])
    if name == "gradients not summed over ranks":
        sinks = [results[gradient_name("sinks")] for results in of_ranks]
        assert any((one != sinks[0]).any() for one in sinks)
        for results in of_ranks:
            results[gradient_name("sinks")] = sinks[0]
    assert verdict(call, of_ranks).ratio > 1


# --- peak memory ------------------------------------------------------------------------------------------------------


PART = 4096
"""Positions of each of four ranks."""


def peak(engine: str, group: Any) -> int:
    """Bytes above its inputs that a rank needs for the forward and the backward pass."""

    def status(name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def run() -> None:
        output = distributed.ring_attention(*parts, mask=Causal(), group=group, layout="zigzag", engine=engine)
        torch.autograd.grad(output, parts, torch.ones_like(output))

    parts = [torch.randn(1, 4, PART, 64).requires_grad_() for _ in range(3)]
    with replaced(choice, "LIMITS", Limits()):
        run()
        give_back_freed_memory()
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        run()
    return status("VmHWM") - before


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read in /proc")
@pytest.mark.rule("DIST-4")
def test_no_rank_holds_the_scores_of_its_queries() -> None:
    """Not even those with the keys of one rank. "reference" does, which shows that it would be seen."""
    scores = 4 * PART * PART * 4
    with Ranks(4, seconds=300) as ranks:
        for engine in ("auto", "reference"):
            answers = ranks.ask(peak, [engine] * 4, patience=300)
            assert (max(found for found, _ in answers) < scores) is (engine == "auto")
