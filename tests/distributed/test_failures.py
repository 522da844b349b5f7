"""What ranks refuse together, and what becomes of them when one is lost (DIST-5)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from specification import Causal, KeyLengths, KeyPadding
from tests.support.ranks import Ranks, replaced
from torch_impl import distributed

FUNCTIONS = ("ring_attention", "head_parallel_attention")


def arguments(**changes: Any) -> dict[str, Any]:
    """Three queries and four keys, of two heads; or what stands in their place."""
    query, key = torch.ones(1, 2, 3, 4), torch.ones(1, 1, 4, 4)
    return {"query": query, "key": key, "value": key, "mask": Causal(2)} | changes


def call(given: tuple[str, dict[str, Any]], group: Any) -> Any:
    name, changes = given
    return getattr(distributed, name)(**arguments(**changes), group=group).numpy()


def padding(column: int) -> torch.Tensor:
    keep = torch.ones(1, 8, dtype=torch.bool)
    keep[0, column] = False
    return keep


HALF, KEY = torch.float16, torch.ones(1, 1, 5, 4)
LOCAL = {
    "a list": ({"query": [1.0]}, TypeError, "query must be a torch.Tensor, got list"),
    "integers": (
        {"query": torch.ones(1, 2, 3, 4, dtype=torch.int64)}, TypeError, "the dtype of query must be the same on every"
        " rank, got float32 on rank 0 and int64 on rank 1",
    ),
    "another dtype": (
        {"query": torch.ones(1, 2, 3, 4, dtype=HALF)}, TypeError, "the dtype of query must be the same on every rank,"
        " got float32 on rank 0 and float16 on rank 1",
    ),
    "other heads": (
        {"query": torch.ones(1, 4, 3, 4)}, ValueError, "the shape of query without its length must be the same on every"
        " rank, got [1, 2, 4] on rank 0 and [1, 4, 4] on rank 1",
    ),
    "fewer values": ({"key": KEY}, ValueError, "value must have shape [1, 1, 5, V] beside query [1, 2, 3, 4] and"
                     " key [1, 1, 5, 4], got [1, 1, 4, 4]"),
    "another mask": ({"mask": Causal(3)}, ValueError, "mask must be the same on every rank, got Causal(offset=2) on"
                     " rank 0 and Causal(offset=3) on rank 1"),
    "another scale": ({"scale": 0.5}, ValueError, "scale must be the same on every rank, got None on rank 0 and 0.5 on"
                      " rank 1"),
    "a scale in a tensor": ({"scale": torch.tensor(1.0)}, TypeError, "scale must be a plain number, got float32 array"
                            " of shape []"),
    "another softcap": ({"softcap": 2.0}, ValueError, "softcap must be the same on every rank, got None on rank 0 and"
                        " 2.0 on rank 1"),
    "another layout": ({"layout": "zigzag"}, ValueError, "layout must be the same on every rank, got contiguous on"
                       " rank 0 and zigzag on rank 1"),
    "an unknown layout": ({"layout": "striped"}, ValueError, "layout must be one of 'contiguous', 'zigzag', got"
                          " 'striped'"),
    "another engine": ({"engine": "blocked"}, ValueError, "engine must be the same on every rank, got auto on rank 0"
                       " and blocked on rank 1"),
    "sinks": ({"sinks": torch.ones(2)}, ValueError, "the shape of sinks without its length must be the same on every"
              " rank, got None on rank 0 and [2] on rank 1"),
    "a gradient": ({"query": torch.ones(1, 2, 3, 4, requires_grad=True)}, ValueError, "whether query wants a gradient"
                   " must be the same on every rank, got False on rank 0 and True on rank 1"),
}  # fmt: skip
"""What only rank 1 passes, and what both ranks say."""
COMMON = {
    "a width of 0": ({"query": torch.ones(1, 2, 3, 0), "key": torch.ones(1, 1, 4, 0)}, ValueError,
                     "query and key must have a width of at least 1, got 0"),
    "no offset": ({"mask": Causal()}, ValueError, "Causal must have an offset with 6 queries and 8 keys, got None;"
                  " offset=0 aligns the first query and key, offset=2 the last ones"),
    "its own padding": ({"mask": KeyPadding(torch.ones(1, 4, dtype=torch.bool))}, ValueError,
                        "keep must have shape [1, 8], got [1, 4]"),
    "its own columns": ({"bias": torch.ones(3, 4)}, ValueError, "bias must have 8 columns, for the keys of all ranks,"
                        " got [[3, 4], [3, 4]]"),
    "all rows": ({"bias": torch.ones(6, 8)}, ValueError, "bias must have [3, 3] rows on the ranks, or one on each, in"
                 " rank 2 or 4, got [[6, 8], [6, 8]]"),
    "a negative softcap": ({"softcap": -1.0}, ValueError, "softcap must be positive and finite in float32, got -1.0"),
    "an unknown engine": ({"engine": "fast"}, ValueError, "engine must be one of auto, reference, blocked, fused, got"
                          " 'fast'"),
    "an engine without biases": (
        {"bias": torch.ones(3, 8), "engine": "fused"}, ValueError, "engine 'fused' cannot take this call: PyTorch's"
        " kernel has no softcap and no sinks, and no gradient of a bias",
    ),
}  # fmt: skip
"""What both ranks pass."""


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.rule("DIST-5")
def test_what_is_wrong_on_one_rank_is_refused_by_all(processes: Ranks, function: str) -> None:
    for changes, kind, message in LOCAL.values():
        kind = ValueError if "must be the same" in message else kind
        answers = processes.ask(call, [(function, {}), (function, changes)])
        assert [error for _, error in answers] == [(kind.__name__, message)] * 2


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.rule("DIST-5")
def test_what_is_wrong_on_all_ranks_is_refused_by_all(processes: Ranks, function: str) -> None:
    for changes, kind, message in COMMON.values():
        answers = processes.ask(call, [(function, changes)] * 2)
        assert [error for _, error in answers] == [(kind.__name__, message)] * 2


@pytest.mark.rule("DIST-5")
def test_masks_are_compared_by_what_they_hold(processes: Ranks) -> None:
    masks = [KeyPadding(padding(3)), KeyPadding(padding(4))]
    answers = processes.ask(call, [(FUNCTIONS[0], {"mask": mask}) for mask in masks])
    assert len({error for _, error in answers}) == 1
    assert answers[0][1][1].startswith("mask must be the same on every rank, got KeyPadding(keep='bool[1, 8] ")
    alike = [KeyPadding(padding(3)), KeyPadding(padding(3).tolist())]
    answers = processes.ask(call, [(FUNCTIONS[0], {"mask": mask}) for mask in alike])
    assert [error for _, error in answers] == [None, None]


@pytest.mark.rule("DIST-5")
def test_masks_of_no_batch_elements_are_compared(processes: Ranks) -> None:
    """NumPy's empty arrays have strides of 0, which PyTorch keeps."""
    empty = {"query": torch.ones(0, 2, 3, 4), "key": torch.ones(0, 1, 4, 4), "value": torch.ones(0, 1, 4, 4)}
    mask = KeyLengths(torch.empty_strided((0,), (0,), dtype=torch.int64))
    answers = processes.ask(call, [(FUNCTIONS[0], empty | {"mask": mask})] * 2)
    assert [error for _, error in answers] == [None, None]


@pytest.mark.rule("DIST-5")
def test_two_functions_do_not_meet(processes: Ranks) -> None:
    answers = processes.ask(call, [(function, {}) for function in FUNCTIONS])
    message = "the function must be the same on every rank, got ring_attention on rank 0 and head_parallel_attention"
    assert [error for _, error in answers] == [("ValueError", f"{message} on rank 1")] * 2


@pytest.mark.rule("DIST-1", "DIST-5")
def test_heads_that_ranks_cannot_share_equally(processes: Ranks) -> None:
    answers = processes.ask(call, [(FUNCTIONS[1], {})] * 3)
    message = "query must have a multiple of 3 heads for as many ranks, got 2 heads"
    assert [error for _, error in answers] == [("ValueError", message)] * 3


@pytest.mark.rule("DIST-3", "DIST-5")
def test_lengths_that_are_not_those_of_a_zigzag_layout(processes: Ranks) -> None:
    changes = {"layout": "zigzag"}, {"layout": "zigzag", "query": torch.ones(1, 2, 7, 4)}
    answers = processes.ask(call, [(FUNCTIONS[0], one) for one in changes])
    message = "the lengths of query must be [5, 5] on the ranks of a zigzag layout, got [3, 7]"
    assert [error for _, error in answers] == [("ValueError", message)] * 2


def call_without_membership(_: Any, group: Any) -> Any:
    alone = dist.new_group([0])
    return call((FUNCTIONS[0], {}), alone) if dist.get_rank() == 1 else None


@pytest.mark.rule("DIST-5")
def test_a_group_without_the_caller(processes: Ranks) -> None:
    answers = processes.ask(call_without_membership, [None] * 8)
    message = "group must hold the rank that calls, got one without rank 1"
    assert [error for _, error in answers] == [None, ("ValueError", message), *[None] * 6]


# --- a rank that is lost ----------------------------------------------------------------------------------------------

LIMIT = 2
"""Seconds that the group waits."""


def fail() -> None:
    raise RuntimeError("no memory")


ENDS: dict[str, Callable[[], object]] = {
    "raises": fail,
    "dies": partial(os._exit, 1),
    "hangs": partial(time.sleep, 3600),
}


def lose_a_rank(given: tuple[str, str], group: Any) -> float:
    """Of three ranks the second is lost while it computes, before it has sent everything."""
    function, end = given

    def compute() -> float:
        return float(call((function, {"query": torch.ones(1, 3, 3, 4), "mask": None}), group).sum())

    if dist.get_rank(group) != 1:
        return compute()
    computation = "forward_of_part" if function == "ring_attention" else "attention"
    with replaced(distributed, computation, lambda *inputs, **options: ENDS[end]()):
        return compute()


SLOW = [(end, function) for end in ENDS for function in FUNCTIONS][1:]


@pytest.mark.parametrize(
    ("end", "function"), [("raises", FUNCTIONS[0]), *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)]
)
@pytest.mark.rule("DIST-5")
def test_a_lost_rank_is_an_error_on_the_others(end: str, function: str) -> None:
    with Ranks(3, seconds=LIMIT) as ranks:
        ranks.ask(call, [(FUNCTIONS[0], {})] * 3)  # the processes have started
        answers = ranks.ask(lose_a_rank, [(function, end)] * 3, patience=4 * LIMIT)
        kinds = [error[0] for _, error in answers]
        assert kinds[1] == {"raises": "RuntimeError", "dies": "death", "hangs": "silence"}[end]
        assert [kinds[0], kinds[2]] == ["RuntimeError"] * 2
