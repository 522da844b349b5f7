"""How experts are multiplied fast, in whole numbers exactly: PyTorch's sorted tokens, JAX's pieces of matrices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jax_impl import experts as jax_experts
from specification import FeedForward, GatedFeedForward, Linear
from specification.parameters import mapped
from tests.support.small_models import edited
from torch_impl import experts

N, X, C, E, F = 40, 7, 3, 4, 5


def whole(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Whole numbers, whose products and sums are exact in any order."""
    return torch.tensor(rng.integers(-3, 4, shape), dtype=torch.float32, requires_grad=True)


def arguments(gated: bool, dropped: bool) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Networks, tokens, weights and places; nobody takes expert 4, whose numbers are NaN, nor token 5 if any drop."""
    rng = np.random.default_rng(0)

    def stack(rows: int, columns: int) -> Linear:
        return Linear(whole(rng, X, rows, columns), whole(rng, X, columns))

    kind: Any = GatedFeedForward if gated else FeedForward
    networks = kind(*(stack(E, F) for _ in range(1 + gated)), stack(F, E))
    chosen = np.argsort(rng.random((N, X - 1)), axis=1)[:, :C]
    places = np.zeros((N, X), bool)
    np.put_along_axis(places, np.where(chosen == 4, X - 1, chosen), True, axis=1)
    if dropped:
        places &= rng.random((N, X)) < 0.7
        places[5] = False
    with torch.no_grad():
        mapped(lambda array: array[4].fill_(torch.nan), networks)
    return networks, whole(rng, N, E), whole(rng, N, X), torch.tensor(places)


def results(module: Any, name: str, given: Any) -> list[torch.Tensor]:
    networks, tokens, weights, places = given
    places = places.numpy() if name == "sorted_sum" else places
    output = getattr(module, name)(networks, tokens, weights, places, "relu", torch.float32)
    arrays: list[torch.Tensor] = []
    mapped(arrays.append, (networks, tokens, weights))
    return [output, *torch.autograd.grad((output * (torch.arange(output.numel()).reshape(N, E) % 5)).sum(), arrays)]


def agrees(module: Any, gated: bool, dropped: bool) -> bool:
    given = arguments(gated, dropped)
    pairs = zip(results(module, "sorted_sum", given), results(experts, "masked_sum", given), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.rule("MOE-4", "MOE-5")
@pytest.mark.parametrize("run", [1, 9, 512])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_sorted_tokens_have_the_same_results(
    run: int, gated: bool, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "RUN", run)
    assert agrees(experts, gated, dropped)


@pytest.mark.parametrize("run", [1, 9, 10**9])
@pytest.mark.parametrize("counts", [[0], [3], [0, 0, 8, 0, 2, 7, 1, 1, 0], [20, 20]])
def test_runs_hold_every_expert(run: int, counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "RUN", run)
    lengths = experts.run_lengths(np.array(counts), 1)
    assert sum(lengths) == len(counts)
    assert min(lengths) > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("np.nonzero(places.T)", "np.nonzero(places)[::-1]"),
        ("np.argsort(token_of_rows, kind=\"stable\")", "np.arange(len(token_of_rows))"),
        ("widen(stack.bias)[np.repeat(np.arange(len(counts)), counts)]", "widen(stack.bias)[:1]"),
        ("of_rows = GroupedProduct.apply(cotangent", "of_rows = 2 * GroupedProduct.apply(cotangent"),
        ("GroupedOuter.apply(rows, cotangent, ctx.groups)", "2 * GroupedOuter.apply(rows, cotangent, ctx.groups)"),
        ("len(token_of_rows))\n", "0)\n"),
    ],
    ids=["order", "place", "bias", "rows", "stack", "dropped"],
)  # fmt: skip
def test_a_fault_is_noticed(old: str, new: str) -> None:
    module = edited("torch_impl.experts", old, new)
    assert not all(agrees(module, gated, dropped) for gated in (False, True) for dropped in (False, True))


# --- JAX: products with stacked matrices, piece by piece --------------------------------------------------------------

PRODUCTS = {False: "si,io->so", True: "so,io->si"}
"""By whether the matrices are turned."""


def multiplies(module: Any, turned: bool, piece: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether products of whole numbers with one matrix of a stack [3, 7, 5] are exact, as are those of `jax.vmap`."""
    monkeypatch.setattr(module, "PIECE", piece)
    rng = np.random.default_rng(0)
    stack = rng.integers(-3, 4, (3, 7, 5)).astype(np.float32)
    stack[0] = np.nan
    x = rng.integers(-3, 4, (2, 4, 5 if turned else 7)).astype(np.float32)

    def multiply(rows: Any, expert: Any) -> Any:
        return module.stacked_product(turned, rows, jnp.asarray(stack), expert)

    right = [np.einsum(PRODUCTS[turned], rows, stack[expert]) for rows, expert in zip(x, (2, 1), strict=True)]
    found = [multiply(rows, expert) for rows, expert in zip(x, (2, 1), strict=True)]
    together = jax.vmap(multiply)(x, jnp.array([2, 1]))
    return np.array_equal(found, right) and np.array_equal(together, right)


TURNED = pytest.mark.parametrize("turned", [False, True])


@pytest.mark.rule("MOE-4")
@TURNED
@pytest.mark.parametrize("piece", [1, 10, 15, 35, 2**18])
def test_pieces_of_a_matrix_make_its_product(turned: bool, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row at a time, pieces that leave a rest, pieces that do not, and the whole."""
    assert multiplies(jax_experts, turned, piece, monkeypatch)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("multiply(whole * piece, rest, output) if rest > 0 else output", "output"),
        ("return output + jnp.matmul(columns", "return jnp.matmul(columns"),
        ("(0, start))", "(0, 0))"),
        ("in (expert, start, 0)", "in (expert, 0, 0)"),
    ],
    ids=["rest", "sum", "columns", "rows"],
)
def test_a_fault_in_pieces_is_noticed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = edited("jax_impl.experts", old, new)
    assert not all(multiplies(module, turned, 10, monkeypatch) for turned in (False, True))
