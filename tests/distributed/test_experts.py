"""Mixtures of experts over several ranks, beside the mixture of the whole (DIST-4 to DIST-6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from conformance.cases.case import Case
from conformance.sampling.experts import decide
from conformance.sampling.strategies import Draw
from specification import FeedForward, GatedFeedForward, Linear, MixtureOfExperts
from tests.support import experts_on_ranks as support
from tests.support.devices import Devices
from tests.support.engine_cases import worst
from tests.support.experts_on_ranks import Call, split_evenly
from tests.support.helpers import Finding, judge, truth_and_bounds
from tests.support.ranks import Ranks, replaced
from torch_impl import distributed_experts, experts

WIDTHS = {"E": 6, "F": 5, "out": 4}


def draw_mixture(
    tokens: int, experts: int, chosen: int, *, dtype: str = "float32", gated: bool = True, shared: bool = True,
    choice_bias: bool = False, pulled: float = 0.0, masked: bool = False, seed: int = 0, **options: Any,
) -> Case:  # fmt: skip
    """A case with gradients. pulled: how far the router's bias pulls all tokens to the second expert."""
    d, (E, F, out) = Draw(seed, dtype), WIDTHS.values()
    inputs = {"x": d.normal(tokens, E), "router.weight": d.normal(E, experts, scale=E**-0.5)}
    if pulled:
        inputs["router.bias"] = d.cast(pulled * (np.arange(experts) == 1))
    if choice_bias:
        inputs["choice_bias"] = d.normal(experts, scale=2 / experts)
    for name, lead in [("experts", (experts,)), ("shared", ())][: 2 if shared else 1]:
        for side in ("gate", "inner") if gated else ("inner",):
            inputs |= {f"{name}.{side}.weight": d.normal(*lead, E, F, scale=E**-0.5)}
            inputs |= {f"{name}.{side}.bias": d.normal(*lead, F)}
        inputs |= {f"{name}.outer.weight": d.normal(*lead, F, out, scale=F**-0.5)}
    case = decide(Case("mixture_of_experts", dtype, inputs, {"chosen": chosen, **options}), d)
    more = {"token_mask": d.booleans(tokens)} if masked else {}
    return Case(case.operation, dtype, case.inputs | more, case.options, {"output": d.normal(tokens, out)})


GROUPED = {"groups": 4, "chosen_groups": 2, "scoring": "sigmoid", "scale": 2.5}
CASES = {
    "plain": draw_mixture(12, 8, 2, gated=False, weighting="scores"),
    "bfloat16": draw_mixture(24, 8, 3, dtype="bfloat16", choice_bias=True, activation="clamped_swiglu"),
    "float64": draw_mixture(5, 8, 2, dtype="float64"),
    "float16": draw_mixture(12, 8, 2, dtype="float16", shared=False),
    "groups": draw_mixture(12, 64, 6, choice_bias=True, **GROUPED),
    "one expert": draw_mixture(12, 8, 1, pulled=9.0, weighting="scores"),
    "capacity": draw_mixture(24, 8, 2, pulled=1.0, masked=True, capacity=3),
    "padding": draw_mixture(16, 8, 8, masked=True, dtype="bfloat16"),
}
"""With 64 experts some have no token."""
UNEVEN = (
    ((0, 9, 3), (3, 3, 2)),
    ((5, 7, 0), (0, 8, 0)),
    ((12, 0, 0), (0, 1, 7)),
    ((1, 0, 11), (5, 3, 0)),
)
"""Tokens and experts of three ranks."""


def spread_evenly(name: str, ranks: int) -> Call:
    case = CASES[name]
    return Call(
        case, split_evenly(len(case.inputs["x"]), ranks), split_evenly(case.inputs["router.weight"].shape[1], ranks)
    )


def compute(processes: Ranks, calls: list[Call]) -> list[list[dict[str, Any]]]:
    """Of each call what every rank has; all on the same number of ranks."""
    answers = processes.ask(support.compute_in_torch, [calls] * calls[0].ranks)
    assert [error for _, error in answers] == [None] * calls[0].ranks
    return [list(of_ranks) for of_ranks in zip(*(results for results, _ in answers), strict=True)]


KNOWN: dict[int, Any] = {}
"""Values and bounds of `CASES`."""


def verdict(case: Case, results: dict[str, np.ndarray]) -> Finding:
    """The worst error, in error bounds: those of MOE-4 hold for a sum in any order."""
    truth = KNOWN.get(id(case)) or truth_and_bounds(case)
    if any(case is one for one in CASES.values()):
        KNOWN[id(case)] = truth
    return worst(judge(case, results, *truth))


def conforms(processes: Ranks, calls: list[Call]) -> None:
    for call, of_ranks in zip(calls, compute(processes, calls), strict=True):
        finding = verdict(call.case, call.join(of_ranks))
        assert finding.ratio <= 1, f"{call.tokens} tokens, {call.experts} experts: {finding}"


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.rule("DIST-6")
def test_mixture_of_the_whole(processes: Ranks, ranks: int) -> None:
    conforms(processes, [spread_evenly(name, ranks) for name in CASES])


@pytest.mark.parametrize("shares", UNEVEN, ids=str)
@pytest.mark.rule("DIST-6")
def test_any_number_of_tokens_and_experts(processes: Ranks, shares: Any) -> None:
    conforms(processes, [Call(CASES["plain"], *shares)])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.rule("DIST-6")
def test_more_of_it(processes: Ranks, ranks: int) -> None:
    cases = [
        draw_mixture(*sizes, dtype=dtype, gated=gated, masked=not gated, capacity=capacity, seed=seed)
        for seed, (sizes, dtype, gated, capacity) in enumerate(
            product([(0, 8, 2), (3, 16, 1), (40, 64, 8)], ("float32", "bfloat16", "float16"), (True, False), (None, 2))
        )
    ]
    rng = np.random.default_rng(ranks)
    calls = []
    for case in cases:
        sizes = case.inputs["router.weight"].shape[1], len(case.inputs["x"])
        X, N = (tuple(np.bincount(rng.integers(0, ranks, size), minlength=ranks).tolist()) for size in sizes)
        calls.append(Call(case, N, X))
    conforms(processes, calls)


def special(name: str, number: float) -> Case:
    case = replace(CASES["plain"], inputs=dict(CASES["plain"].inputs), special=True)
    case.inputs[name] = case.inputs[name].copy()
    case.inputs[name][2] = number
    return case


@pytest.mark.parametrize("name", ["x", "experts.outer.weight"])
@pytest.mark.rule("DIST-6")
def test_special_values(processes: Ranks, name: str) -> None:
    """NaN is in the same results and gradients as on one rank."""
    for number in (np.nan, np.inf):
        case = special(name, number)
        call, whole = Call(case, (4, 3, 5), (3, 3, 2)), Call(case, (12,), (8,))
        found, expected = (one.join(*compute(processes, [one])) for one in (call, whole))
        for result, array in expected.items():
            np.testing.assert_array_equal(np.isnan(found[result]), np.isnan(array))
        assert verdict(replace(case, cotangents={}), found).ratio <= 1


@pytest.mark.rule("DIST-6")
def test_one_process_needs_no_group() -> None:
    networks = FeedForward(Linear(torch.randn(8, 6, 5)), Linear(torch.randn(8, 5, 6)))
    parameters, x = MixtureOfExperts(Linear(torch.randn(6, 8)), networks), torch.randn(2, 3, 6)
    found = distributed_experts.mixture_of_experts(parameters, x, chosen=2)
    torch.testing.assert_close(found, experts.mixture_of_experts(parameters, x, chosen=2))


# --- devices ----------------------------------------------------------------------------------------------------------

DAILY = [("capacity", 4)]
EVEN = [(name, ranks) for name, ranks in product(CASES, (1, 2, 4, 8)) if len(CASES[name].inputs["x"]) % ranks == 0]


@pytest.mark.parametrize(
    ("name", "ranks"), [*DAILY, *(pytest.param(*row, marks=pytest.mark.slow) for row in EVEN if row not in DAILY)]
)
@pytest.mark.rule("DIST-6")
def test_mixture_of_the_whole_in_jax(process: Devices, name: str, ranks: int) -> None:
    finding = verdict(CASES[name], process.ask(support.compute_in_jax, spread_evenly(name, ranks)))
    assert finding.ratio <= 1, finding


@pytest.mark.slow
@pytest.mark.rule("DIST-6")
def test_without_types_that_say_what_varies(process: Devices) -> None:
    for name in ("bfloat16", "groups"):
        assert verdict(CASES[name], process.ask(support.compute_in_jax, spread_evenly(name, 4), False)).ratio <= 1


@pytest.mark.slow
@pytest.mark.rule("DIST-6")
def test_pieces_of_matrices(process: Devices) -> None:
    assert verdict(CASES["plain"], process.ask(support.compute_by_pieces, spread_evenly("plain", 4))).ratio <= 1


@pytest.mark.slow
@pytest.mark.rule("DIST-6")
def test_special_values_in_jax(process: Devices) -> None:
    for name, number in product(("x", "experts.outer.weight"), (np.nan, np.inf)):
        case = special(name, number)
        found, expected = (
            process.ask(support.compute_in_jax, Call(case, split_evenly(12, n), split_evenly(8, n))) for n in (4, 1)
        )
        for result, array in expected.items():
            np.testing.assert_array_equal(np.isnan(found[result]), np.isnan(array))


# --- what it takes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.rule("DIST-4")
def test_bytes_are_those_of_the_formula(processes: Ranks, dtype: str) -> None:
    tokens, owned, chosen = (7, 0, 8), (3, 1, 4), 3
    case = draw_mixture(15, 8, chosen, dtype=dtype, shared=False)
    (of_ranks,) = compute(processes, [Call(case, tokens, owned)])
    x, router = (torch.tensor(case.inputs[name].astype(np.float32)) for name in ("x", "router.weight"))
    owners = np.repeat(np.arange(3), owned)[experts.route(x, Linear(router), chosen=chosen).indices.numpy()]
    homes = np.repeat(np.arange(3), tokens)
    journeys = np.array([[sum(rank in row for row in owners[homes == home]) for rank in range(3)] for home in range(3)])
    np.fill_diagonal(journeys, 0)
    E, _, out = WIDTHS.values()
    n, w = {"float32": (4, 4), "bfloat16": (2, 4)}[dtype]
    for rank, results in enumerate(of_ranks):
        S, R = journeys[rank].sum(), journeys[:, rank].sum()
        assert results["counts"]["forward"] == S * (E * n + chosen * (w + 4)) + R * out * w + 8 * 2
        assert results["counts"]["backward"] == S * out * w + R * (E + chosen) * w


@pytest.mark.parametrize(("dtype", "n"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.rule("DIST-4")
def test_bytes_in_jax_are_those_of_the_formula(process: Devices, dtype: str, n: int) -> None:
    call = Call(draw_mixture(20, 8, 3, dtype=dtype), split_evenly(20, 4), split_evenly(8, 4))
    E, _, out = WIDTHS.values()
    sent = process.ask(support.bytes_in_jax, call)
    assert sent == (3 * 5 * (E * n + 3 * (4 + 4) + out * 4), 3 * 5 * (E + 3 + out) * 4)


# --- what is refused --------------------------------------------------------------------------------------------------


def make_arguments(**changes: Any) -> dict[str, Any]:
    """Arguments: tokens of width 6 and four of eight experts; or what stands in their place."""
    names = ("router", "experts", "choice_bias", "shared")
    parts = {"router": Linear(torch.ones(6, 8)), "experts": networks(4)}
    parts |= {name: changes.pop(name) for name in names if name in changes}
    return {"parameters": MixtureOfExperts(**parts), "x": torch.ones(3, 6), "chosen": 2} | changes


def networks(count: int, **changes: Any) -> FeedForward:
    inner, outer = (Linear(torch.ones(count, *sizes, **changes)) for sizes in ((6, 5), (5, 6)))
    return FeedForward(inner, outer)


SAME = "must be the same on every rank, got"
LOCAL = {
    "a list": ({"x": np.ones((3, 6), np.float32)}, TypeError, "x must be a torch.Tensor, got ndarray"),
    "another width": (
        {"x": torch.ones(3, 7)}, ValueError, "router.weight must have shape [7, X] beside x [3, 7], got [6, 8]",
    ),
    "another dtype": (
        {"x": torch.ones(3, 6, dtype=torch.float64)}, TypeError, "router.weight must be float64 like x, got float32",
    ),
    "another number of experts": ({"experts": networks(3)}, ValueError, "experts must be 8 on all ranks together, for"
                                  " as many columns of router.weight, got [4, 3]"),
    "gated ones": ({"experts": GatedFeedForward(*networks(4), Linear(torch.ones(4, 5, 6)))._replace(
                        inner=Linear(torch.ones(4, 6, 5)))},
                   ValueError, f"parameters {SAME} router.weight, experts.inner.weight, experts.outer.weight"
                   " on rank 0 and router.weight, experts.gate.weight,"
                   " experts.inner.weight, experts.outer.weight on rank 1"),
    "other columns": ({"router": Linear(torch.ones(6, 9))}, ValueError,
                      f"the shape of router.weight {SAME} [6, 8] on rank 0 and [6, 9] on rank 1"),
    "another choice": ({"chosen": 3}, ValueError, f"chosen {SAME} 2 on rank 0 and 3 on rank 1"),
    "another capacity": ({"capacity": 3}, ValueError, f"capacity {SAME} None on rank 0 and 3 on rank 1"),
    "a gradient": ({"x": torch.ones(3, 6, requires_grad=True)}, ValueError,
                   f"whether x wants a gradient {SAME} False on rank 0 and True on rank 1"),
    "a mask of other tokens": ({"token_mask": torch.ones(4, dtype=torch.bool)}, ValueError,
                               "token_mask must have shape [3] beside x [3, 6], got [4]"),
}  # fmt: skip
"""What only rank 1 passes, and what both ranks say."""


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.rule("DIST-5", "DIST-6")
def test_what_is_wrong_on_one_rank_is_refused_by_all(processes: Ranks, name: str) -> None:
    changes, kind, message = LOCAL[name]
    answers = processes.ask(support.call_in_torch, [make_arguments(), make_arguments(**changes)])
    assert [error for _, error in answers] == [(kind.__name__, message)] * 2


def lose_a_rank(arguments: dict[str, Any], group: Any) -> Any:
    """The second rank raises when it has received its tokens, and sends no sums."""
    if torch.distributed.get_rank(group) == 1:
        with replaced(distributed_experts, "sorted_sum", None):
            support.call_in_torch(arguments, group)
    return support.call_in_torch(arguments, group)


@pytest.mark.slow
@pytest.mark.rule("DIST-5", "DIST-6")
def test_a_lost_rank_is_an_error_on_the_others() -> None:
    with Ranks(2, seconds=3) as ranks:
        ranks.ask(support.call_in_torch, [make_arguments()] * 2)  # the processes have started
        kinds = [error[0] for _, error in ranks.ask(lose_a_rank, [make_arguments()] * 2, patience=12)]
        assert kinds == ["RuntimeError", "TypeError"]


@pytest.mark.rule("DIST-5", "DIST-6")
def test_experts_that_do_not_add_up_in_jax(process: Devices) -> None:
    with pytest.raises(ValueError, match="experts must be 8 on all ranks together, for as many columns of"):
        process.ask(support.compute_in_jax, replace(spread_evenly("plain", 2), case=drop_experts(CASES["plain"])))


def drop_experts(case: Case) -> Case:
    """The stack of the last six, of eight that the router knows."""
    inputs = {name: array[2:] if name.startswith("experts.") else array for name, array in case.inputs.items()}
    return replace(case, inputs=inputs)


# --- planted faults ---------------------------------------------------------------------------------------------------

FAULTS = {
    "weights of the wrong rank": (
        "spread(own_weights, own_indices, X)[:, own]", "spread(own_weights, own_indices, X).roll(2, 1)[:, own]",
    ),
    "order not undone": ("output.index_add_(0, of_rank, part)", "output[: len(part)] += part"),
    "last token dropped": ("sent = wanted.sum", "wanted[:, -1:] = False; sent = wanted.sum"),
    "router's gradient not summed": ("SameOnRanks.apply(ranks, array)", "array"),
    "offset of the wrong rank": ("own = slice(*ranges[ranks.rank])", "own = slice(*ranges[0])"),
    "capacity of each rank": ("taken, capacity)", "taken, None)"),
    "gradients stay where they are": (
        "exchange_rows(ranks, sent, received, cotangent)", "cotangent.new_zeros((sum(received), *cotangent.shape[1:]))",
    ),
}  # fmt: skip
JAX_FAULTS = {
    "weights of the wrong rank": ("sorted_sum(experts, all_tokens, local, all_weights",
                                  "sorted_sum(experts, all_tokens, local, jnp.roll(all_weights, count, 0)"),
    "order not undone": ("of_ranks = sums.reshape(", "of_ranks = sums[::-1].reshape("),
    "last token dropped": ("for part in rest:", "for part in rest[:-1]:"),
    "router's gradient not summed": ("router, shared = vary(jax.tree.map(widen, (router, shared)), axes)",
                                     "router, shared = vary(jax.tree.map(lambda a: widen(a) / ranks + (1 - 1 / ranks) *"
                                     " lax.stop_gradient(widen(a)), (router, shared)), axes)"),
    "offset of the wrong rank": ("lax.axis_index(axis_name) * own\n", "0 * own\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.rule("DIST-6")
def test_planted_fault_is_caught(processes: Ranks, name: str) -> None:
    of_case = "capacity" if name == "capacity of each rank" else "bfloat16"
    clean = spread_evenly(of_case, 4)
    conforms(processes, [clean])
    faulty = replace(clean, fault=FAULTS[name])
    (of_ranks,) = compute(processes, [faulty])
    assert verdict(faulty.case, faulty.join(of_ranks)).ratio > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", JAX_FAULTS)
@pytest.mark.rule("DIST-6")
def test_planted_fault_is_caught_in_jax(process: Devices, name: str) -> None:
    faulty = replace(spread_evenly("bfloat16", 4), fault=JAX_FAULTS[name])
    assert verdict(faulty.case, process.ask(support.compute_in_jax, faulty)).ratio > 1
