"""How experts are multiplied fast, in whole numbers exactly: PyTorch's sorted tokens, JAX's pieces of matrices."""

from __future__ import annotations

from functools import cache
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
    return [output, *torch.autograd.grad((output * (torch.arange(output.numel()).reshape(-1, E) % 5)).sum(), arrays)]


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


def multiply_groups(module: Any, width: int, columns: int, turned: bool) -> bool:
    """Whether rows of two experts are multiplied, and a third one without rows is not read."""
    rng = np.random.default_rng(0)
    rows, stack = whole(rng, 5, width), whole(rng, 3, *((columns, width) if turned else (width, columns))).detach()
    stack[1] = torch.nan
    stack = stack.mT if turned else stack
    expected = torch.cat([rows[:2] @ stack[0], rows[2:] @ stack[2]])
    groups = module.find_groups(np.array([2, 0, 3]))
    return torch.equal(module.GroupedProduct.apply(rows, stack, groups), expected)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("width", "columns"), [(8, 4), (4, 8), (8, 1), (1, 8), (1, 1), (4, 6), (3, 4)])
def test_groups_of_every_width_are_multiplied(width: int, columns: int, turned: bool) -> None:
    assert multiply_groups(experts, width, columns, turned)


def test_widths_that_grouped_mm_refuses_are_noticed() -> None:
    module = edited("torch_impl.experts", "stride > 1 and stride % 4 == 0", "True")
    with pytest.raises(RuntimeError, match="16 bytes"):
        multiply_groups(module, 4, 6, turned=False)
    module = edited(
        "torch_impl.experts", "offs=torch.tensor(groups.ends", "offs=torch.tensor(sorted(groups.ends)[::-1]"
    )
    assert not multiply_groups(module, 8, 4, turned=False)


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
ROUTES = ("one unused", "some dropped", "all on one", "none taken", "one token")


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
    products = [multiply(rows, expert) for rows, expert in zip(x, (2, 1), strict=True)]
    together = jax.vmap(multiply)(x, jnp.array([2, 1]))
    return np.array_equal(products, right) and np.array_equal(together, right)


def routed(gated: bool, route: str) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The arguments, with the places of a route."""
    networks, tokens, weights, places = arguments(gated, route == "some dropped")
    if route in ("all on one", "none taken"):
        places[:] = False
        places[:, 2] = route == "all on one"
    count = 1 if route == "one token" else N
    return networks, tokens[:count].detach().requires_grad_(), weights[:count].detach().requires_grad_(), places[:count]


def convert_to_jax(given: Any) -> Any:
    """The arrays of PyTorch in a structure as those of JAX."""
    return jax.tree.map(lambda array: jnp.asarray(array.detach().numpy()), given)


def jax_results(module: Any, networks: Any, tokens: jax.Array, weights: jax.Array, places: jax.Array) -> list[Any]:
    """The output of JAX and its gradients, as `results` lists those of PyTorch."""
    indices = jnp.argsort(~places, axis=1, stable=True)[:, :C]  # experts that take the token, and others up to C

    def mix(networks: Any, tokens: jax.Array, weights: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(weights, indices, axis=1)
        return module.sorted_sum(networks, tokens, indices, chosen, places, "relu", jnp.dtype("float32"))

    output, backward = jax.vjp(mix, networks, tokens, weights)
    cotangent = (jnp.arange(output.size).reshape(output.shape) % 5).astype(output.dtype)
    return [output, *jax.tree.leaves(backward(cotangent))]


def agrees_in_jax(module: Any, gated: bool, routes: tuple[str, ...] = ROUTES) -> bool:
    """Whether JAX has the results of every expert on every token for each of the routes."""
    for route in routes:
        given = routed(gated, route)
        results_in_jax = jax_results(module, *convert_to_jax(given))
        pairs = zip(results_in_jax, results(experts, "masked_sum", given), strict=True)
        if not all(np.array_equal(one, other.detach()) for one, other in pairs):
            return False
    return True


@cache
def small_pieces() -> Any:
    """The module with pieces of 2 rows: one of a matrix with 5 rows is left. JAX compiles it once."""
    return edited("jax_impl.experts", "PIECE = 2**22", "PIECE = 10")


@pytest.mark.rule("MOE-4")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("piece", [1, 10, 15, 34, 35, 39, 40, 2**18])
def test_pieces_of_a_matrix_make_its_product(turned: bool, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row at a time; 2, 3 and 6 rows of 7, which leave one; all 7; more than there are."""
    assert multiplies(jax_experts, turned, piece, monkeypatch)


@pytest.mark.rule("MOE-4", "MOE-5")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("gated", [False, True])
def test_blocks_and_pieces_have_the_same_results(gated: bool, route: str) -> None:
    assert agrees_in_jax(small_pieces(), gated, (route,))


@pytest.mark.rule("MOE-4")
def test_mixtures_side_by_side_have_the_same_results() -> None:
    """Under `jax.vmap` a loop runs as long as the mixture with the most blocks needs it."""
    networks, tokens, weights, _ = convert_to_jax(routed(True, ROUTES[0]))
    places = jnp.stack([convert_to_jax(routed(True, route)[-1]) for route in ROUTES[:4]])
    together = jax.vmap(lambda one: jax_results(small_pieces(), networks, tokens, weights, one))(places)
    for number, one in enumerate(places):
        alone = jax_results(small_pieces(), networks, tokens, weights, one)
        assert all(np.array_equal(some[number], other) for some, other in zip(together, alone, strict=True))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("multiply(whole * piece, rest, output) if rest > 0 else output", "output"),
        ("return output + jnp.matmul(columns", "return jnp.matmul(columns"),
        ("(0, start))", "(0, 0))"),
        ("in (expert, start, 0)]", "in (expert, 0, 0)]"),
    ],
    ids=["rest", "sum", "columns", "rows"],
)
def test_a_fault_in_pieces_is_noticed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a single product, and by the mixture."""
    module = edited("jax_impl.experts", old, new)
    assert not all(multiplies(module, turned, 10, monkeypatch) for turned in (False, True))
    assert not agrees_in_jax(module, gated=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(ends - of_experts) * size", "ends * size"),
        ('side="right"', 'side="left"'),
        ("fori_loop(0, used, multiply", "fori_loop(0, used - 1, multiply"),
        ("output.at[owners[i]].add", "output.at[owners[i]].set"),
        ("cast(of_stack, stack.dtype)", "cast(2 * of_stack, stack.dtype)"),
        ("at[blocks.owners].get", "at[blocks.owners - 1].get"),
    ],
    ids=["offset", "owner", "last", "stack", "twice", "bias"],
)
def test_a_fault_in_blocks_is_noticed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = edited("jax_impl.experts", old, new)
    monkeypatch.setattr(module, "PIECE", 10)
    assert not agrees_in_jax(module, gated=False)
