"""What is particular to the JAX port: transformations, tracing, pytrees, precision. Values are the judge's concern."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

import jax_impl
from jax_impl.dtypes import cast
from specification import (
    Causal,
    Dense,
    FeedForward,
    GatedFeedForward,
    KeyLengths,
    KeyPadding,
    Linear,
    MixtureOfExperts,
    MultiHeadAttention,
    Segments,
    SlidingWindow,
)

B, H, G, Q, K, D, V = 2, 4, 2, 5, 7, 3, 4

MASKS = {
    "none": None,
    "causal": Causal(2),
    "causal per batch": Causal(np.array([2, -3])),
    "window": SlidingWindow(2, None, np.array([0, 1])),
    "lengths": KeyLengths(np.array([0, 5])),
    "padding": KeyPadding(np.arange(14).reshape(2, 7) % 3 > 0),
    "segments": Segments(np.array([[0, 0, 1, 1, 2]]), np.array([[0, 1, 1, 2, 2, 2, 3], [3, 3, 1, 1, 1, 0, 0]])),
    "dense": Dense(np.arange(35).reshape(5, 7) % 4 > 0),
    "combined": (Causal(2) & KeyLengths([7, 4])) | SlidingWindow(0, 0, 1),
}


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def normal(seed: int, *shape: int, dtype: Any = np.float64) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def inputs(dtype: Any = np.float64) -> tuple[jax.Array, jax.Array, jax.Array]:
    return normal(1, B, H, Q, D, dtype=dtype), normal(2, B, G, K, D, dtype=dtype), normal(3, B, G, K, V, dtype=dtype)


def projections(dtype: Any = np.float64) -> MultiHeadAttention:
    shapes = (6, H * D), (6, G * D), (6, G * V), (H * V, 6)
    return MultiHeadAttention(*(Linear(normal(i, *shape, dtype=dtype)) for i, shape in enumerate(shapes)))


def assert_close(got: Any, expected: Any) -> None:
    """Two orders of evaluating one formula in float64: the same structure, specials and numbers.

    No sum here has more than 100 terms, all of the order of 1, and no chain more than 20 roundings: 2^13 units in the
    last place are far above what they can add up to, and far below every mistake that a transformation could make.
    """
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert np.isfinite(one).tolist() == np.isfinite(other).tolist()
        magnitude = 1 + np.max(np.abs(other), where=np.isfinite(other), initial=0)
        assert np.all(~np.isfinite(one) | (np.abs(one - other) <= 2**13 * np.finfo(np.float64).eps * magnitude))


# --- masks as pytrees -------------------------------------------------------------------------------------------------


@pytest.mark.rule("MASK-2")
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_pass_through_jit(mask: Any) -> None:
    expected = jax_impl.materialize(mask, Q, K, batch=B)
    got = jax.jit(lambda mask: jax_impl.materialize(mask, Q, K, batch=B))(mask)
    assert isinstance(expected, jax.Array)
    assert got.tolist() == expected.tolist()


def test_masks_pass_through_vmap() -> None:
    offsets = jnp.arange(-2, 3)
    got = jax.vmap(lambda mask: jax_impl.materialize(mask, Q, K)[0, 0])(Causal(offsets))
    assert got.tolist() == jax_impl.materialize(Causal(offsets), Q, K)[:, 0].tolist()


def test_masks_are_rebuilt_from_any_leaves() -> None:
    """JAX puts placeholders where arrays were, so rebuilding must not check them."""
    mask = MASKS["combined"]
    marked = jax.tree.map(lambda _: object(), mask)
    assert jax.tree.structure(marked) == jax.tree.structure(mask)
    assert jax.tree.structure(Causal()) == jax.tree.structure(Causal(None))


@pytest.mark.rule("MASK-2")
def test_ids_are_never_narrowed_silently() -> None:
    ids = np.array([[1]]), np.array([[1 + 2**32]])
    assert not jax_impl.materialize(Segments(*ids), 1, 1).any()
    with jax.enable_x64(False), pytest.raises(OverflowError, match="32 bits"):
        jax_impl.materialize(Segments(*ids), 1, 1)


# --- attention under transformations ----------------------------------------------------------------------------------


def attention_and_gradients(mask: Any, bias: Any, sinks: Any, scale: Any, softcap: Any) -> Any:
    def loss(*arrays: Any) -> jax.Array:
        query, key, value, bias, sinks, scale, softcap = arrays
        options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        output = jax_impl.attention(query, key, value, **options)
        logsumexp = jax_impl.attention_logsumexp(query, key, **options)
        return jnp.sum(jnp.sin(output)) + jnp.sum(jnp.where(jnp.isfinite(logsumexp), logsumexp, 0))

    arguments = (*inputs(), bias, sinks, scale, softcap)
    return jax.value_and_grad(loss, argnums=tuple(range(len(arguments))))(*arguments)


@pytest.mark.parametrize("name", ["none", "causal per batch", "combined"])
@pytest.mark.rule("ATT-12")
def test_jit_equals_eager(name: str) -> None:
    mask = MASKS[name]
    bias, sinks = normal(4, 1, H, Q, K).at[..., 1].set(-jnp.inf), normal(5, H)
    eager = attention_and_gradients(mask, bias, sinks, 0.7, 3.0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eager))
    assert_close(jax.jit(attention_and_gradients)(mask, bias, sinks, 0.7, 3.0), eager)


def test_vmap_is_a_batch_of_calls() -> None:
    query, key, value = (jnp.stack([array, 2 * array]) for array in inputs())
    mask = Dense(jnp.stack([jnp.eye(Q, K, dtype=bool), jnp.ones((Q, K), bool)]))

    @jax.jit
    def gradients(*arrays: Any) -> Any:
        *arrays, mask = arrays
        return jax.grad(lambda *a: jnp.sum(jax_impl.attention(*a, mask=mask) ** 2), argnums=(0, 1, 2))(*arrays)

    got = jax.vmap(gradients)(query, key, value, mask)
    each = [gradients(query[i], key[i], value[i], Dense(mask.array[i])) for i in range(2)]
    assert_close(got, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))


def test_scan_and_checkpoint() -> None:
    """Layers under lax.scan, recomputed in the backward pass, give what a loop gives."""
    parameters = [projections(), jax.tree.map(lambda array: array / 2, projections())]
    x = normal(6, B, Q, 6)

    def layer(x: Any, parameters: Any) -> Any:
        return x + jax_impl.multi_head_attention(parameters, x, x, x, num_heads=H, mask=Causal())

    def looped(parameters: Any, x: Any) -> Any:
        for one in parameters:
            x = layer(x, one)
        return jnp.sum(x**2)

    def scanned(parameters: Any, x: Any) -> Any:
        step = jax.checkpoint(lambda x, one: (layer(x, one), None))
        return jnp.sum(jax.lax.scan(step, x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *parameters))[0] ** 2)

    assert_close(jax.jit(jax.grad(scanned))(parameters, x), jax.jit(jax.grad(looped))(parameters, x))


def test_gradient_of_a_gradient() -> None:
    """Reverse over reverse, compared with the plain formula, which JAX differentiates by its own rules."""
    query, key, value = inputs()
    mask = jax_impl.materialize(Causal(2), Q, K)

    def plain(query: Any, key: Any, value: Any) -> Any:
        key, value = jnp.repeat(key, H // G, axis=1), jnp.repeat(value, H // G, axis=1)
        scores = jnp.where(mask, query @ key.mT / D**0.5, -jnp.inf)
        return jax.nn.softmax(scores, axis=-1) @ value

    def gradient_norm(function: Any) -> Any:
        def norm(*arrays: Any) -> Any:
            gradients = jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), argnums=(0, 1, 2))(*arrays)
            return sum(jnp.sum(gradient**2) for gradient in gradients)

        return jax.jit(jax.grad(norm, argnums=(0, 1, 2)))(query, key, value)

    assert_close(gradient_norm(lambda *a: jax_impl.attention(*a, mask=mask)), gradient_norm(plain))


def test_forward_mode_is_refused() -> None:
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(jax_impl.attention, inputs(), inputs())


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.rule("MASK-7", "ATT-6", "ATT-12")
def test_what_is_masked_reaches_no_gradient(special: float) -> None:
    """Key 0 is masked for all; query 1 may attend to nothing, and its query and cotangent are special too."""
    allowed = jnp.ones((Q, K), bool).at[:, 0].set(False).at[1].set(False)
    clean, (query, key, value), cotangent = inputs(), inputs(), normal(7, B, H, Q, V)
    planted = query.at[:, :, 1].set(special), key.at[:, :, 0].set(special), value.at[:, :, 0].set(special)

    @jax.jit
    def results(arrays: Any, cotangent: Any) -> Any:
        output, pullback = jax.vjp(lambda *a: jax_impl.attention(*a, mask=allowed), *arrays)
        return output, pullback(cotangent)

    got = results(planted, cotangent.at[:, :, 1].set(special))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(results(clean, cotangent)), strict=True):
        assert np.array_equal(one, other)


# --- what cannot be read while tracing --------------------------------------------------------------------------------


def test_shapes_and_dtypes_are_refused_while_tracing() -> None:
    query, key, value = inputs()
    with pytest.raises(ValueError, match=r"key must have shape \[2, G, K, 3\]"):
        jax.jit(jax_impl.attention)(query, key[..., :2], value)
    with pytest.raises(TypeError, match="like query"):
        jax.jit(jax_impl.attention)(query, key.astype(np.float32), value)
    with pytest.raises(TypeError, match="mask must be boolean"):
        jax.jit(lambda mask: jax_impl.attention(query, key, value, mask=mask))(jnp.zeros((Q, K)))
    with pytest.raises(ValueError, match="Causal must have an offset"):
        jax.eval_shape(lambda *a: jax_impl.attention(*a, mask=Causal()), query, key, value)


def test_values_are_refused_where_they_can_be_read() -> None:
    with pytest.raises(ValueError, match="lengths must lie between"):
        jax_impl.materialize(KeyLengths(jnp.array([8])), Q, K)
    assert jax.jit(lambda n: jax_impl.materialize(KeyLengths(n), Q, K))(jnp.array([8])).all()
    with pytest.raises(ValueError, match="ids must lie in"):
        jax_impl.embedding(normal(1, 3, 2), jnp.array([-1]))


@pytest.mark.rule("EMB-1", "POS-2")
def test_traced_ids_outside_the_table_give_nan() -> None:
    table, ids = normal(1, 3, 2), jnp.array([0, 3, 2, -1])
    rows = jax.jit(jax_impl.embedding)(table, ids)
    assert np.isnan(rows).all(axis=1).tolist() == [False, True, False, True]
    assert np.array_equal(rows[::2], table[::2])
    gradient = jax.grad(lambda table: jnp.sum(jax.jit(jax_impl.embedding)(table, ids)))(table)
    assert gradient.tolist() == [[1, 1], [0, 0], [1, 1]]
    learned = jax.jit(lambda offset: jax_impl.learned_positions(table, 2, offset=offset))
    assert np.isnan(learned(2)).all(axis=1).tolist() == [False, True]


@pytest.mark.rule("LOSS-1", "LOSS-2")
def test_traced_targets_outside_the_classes_give_nan() -> None:
    rows, targets = normal(1, 4, 3), jnp.array([0, 3, 2, -1])
    for loss in (jax_impl.cross_entropy, jax_impl.nll_loss):
        losses = jax.jit(partial(loss, reduction="none"))(rows, targets)
        assert np.isnan(losses).tolist() == [False, True, False, True]
        counted = jax.jit(partial(loss, ignore=-1, reduction="none"))(rows, targets)
        assert np.isnan(counted).tolist() == [False, True, False, False]
        for far in (np.int64(2**32), np.uint32(2**32 - 1), np.int64(-(2**32))):
            assert np.isnan(jax.jit(loss)(rows[:1], far[None]))
        with pytest.raises(ValueError, match="targets must lie in"):
            loss(rows, targets)


@pytest.mark.rule("LOSS-1")
def test_vmap_over_targets() -> None:
    """Each batch element has a mean of its own, over its own number of targets that count."""
    logits, targets = normal(1, 3, 4, 5), jnp.array([[0, 1, 2, 3], [-1, 4, -1, 0], [-1, -1, -1, -1]])
    gradient = jax.grad(partial(jax_impl.cross_entropy, ignore=-1, label_smoothing=0.1))
    each = jnp.stack([gradient(logits[i], targets[i]) for i in range(3)])
    assert_close(jax.jit(jax.vmap(gradient))(logits, targets), each)


@pytest.mark.rule("MOE-4", "MOE-5")
def test_mixtures_of_experts_are_transformed() -> None:
    """Under jit and vmap, with a traced mask; an expert that no token chooses holds NaN."""
    router = normal(1, 3, 4).at[:, 3].set(-100.0)
    gate, inner, outer = (normal(i, *n).at[3].set(np.nan) for i, n in enumerate(((4, 3, 2), (4, 3, 2), (4, 2, 3))))
    networks = GatedFeedForward(Linear(gate), Linear(inner), Linear(outer))
    parameters = MixtureOfExperts(Linear(router), networks)
    x, masks = abs(normal(5, 2, 5, 3)), jnp.array([[True] * 5, [False, True, True, True, True]])

    def loss(parameters: Any, x: jax.Array, mask: jax.Array) -> Any:
        output = jax_impl.mixture_of_experts(parameters, x, chosen=2, capacity=2, token_mask=mask)
        balance = jax_impl.load_balancing_loss(x @ router, chosen=2, token_mask=mask)
        return jnp.sum(jnp.sin(output)) + balance * jax_impl.router_z_loss(x @ router, token_mask=mask)

    gradients = jax.grad(loss, (0, 1))
    pairs = zip(x, masks, strict=True)
    each = jax.tree.map(lambda *parts: jnp.stack(parts), *(gradients(parameters, *pair) for pair in pairs))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(each))
    assert_close(jax.jit(jax.vmap(gradients, (None, 0, 0)))(parameters, x, masks), each)


@pytest.mark.rule("POS-1")
def test_traced_offset_of_sinusoidal_positions() -> None:
    expected = jax_impl.sinusoidal_positions(6, 5, offset=9, dtype="float64")
    got = jax.jit(lambda offset: jax_impl.sinusoidal_positions(6, 5, offset=offset, dtype="float64"))(9)
    assert_close(got, expected)


# --- dtypes and precision ---------------------------------------------------------------------------------------------


def products(jaxpr: Jaxpr) -> Iterator[Any]:
    """Every dot_general, in the functions that a program calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda p: isinstance(p, ClosedJaxpr | Jaxpr)):
            if isinstance(parameter, ClosedJaxpr | Jaxpr):
                yield from products(parameter.jaxpr if isinstance(parameter, ClosedJaxpr) else parameter)


PROGRAMS = ("attention", "attention in blocks", "multi_head_attention", "feed_forward", "layer_norm", "cross_entropy")


def programs(dtype: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    x = normal(8, B, Q, 6, dtype=dtype)
    inner, outer = Linear(normal(9, 6, 8, dtype=dtype)), Linear(normal(10, 8, 6, dtype=dtype))

    def heads(parameters: Any, x: Any) -> Any:
        return jax_impl.multi_head_attention(parameters, x, x, x, num_heads=H, mask=Causal())

    return {
        "attention": (jax_impl.attention, inputs(dtype)),
        "attention in blocks": (partial(jax_impl.attention, engine="blocked"), inputs(dtype)),
        "multi_head_attention": (heads, (projections(dtype), x)),
        "feed_forward": (jax_impl.feed_forward, (FeedForward(inner, outer), x)),
        "layer_norm": (jax_impl.layer_norm, (x, x[0, 0], x[0, 1])),
        "cross_entropy": (lambda x: jax_impl.cross_entropy(x, np.zeros(x.shape[:-1], np.int32)), (x,)),
    }


@pytest.mark.rule("ATT-9")
@pytest.mark.parametrize("operation", [*PROGRAMS, "merge_attention"])
@pytest.mark.slow_where("in blocks")
def test_float64_is_never_narrowed_silently(operation: str) -> None:
    """NumPy's arrays can be in float64 where JAX's cannot."""
    parts = ([normal(1, B, H, Q, V)] * 2, [normal(2, B, H, Q)] * 2)
    function, arguments = {**programs(np.float64), "merge_attention": (jax_impl.merge_attention, parts)}[operation]
    wide = jax.tree.map(np.asarray, arguments)
    assert jax.tree.leaves(function(*wide))[0].dtype == np.float64
    with jax.enable_x64(False):
        with pytest.raises(TypeError, match="float64 needs"):
            function(*wide)
        narrow = jax.tree.leaves(function(*jax.tree.map(lambda array: array.astype(np.float32), wide)))[0]
    assert isinstance(narrow, jax.Array)
    assert narrow.dtype == np.float32


def test_what_is_no_array_of_jax_is_taken_as_jax_would() -> None:
    """By what is compiled as by what is not; and what is wrong is refused before it would be narrowed."""

    class Held:
        """As a tensor of another framework: an array only once it is asked for one."""

        def __init__(self, array: Any) -> None:
            self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return np.asarray(self.array)

    parameters, x = programs(np.float64)["feed_forward"][1]
    held = jax.tree.map(Held, parameters)
    assert np.array_equal(jax_impl.feed_forward(held, x), jax_impl.feed_forward(parameters, x))
    outputs, logsumexps = [normal(1, B, H, Q, V)] * 2, [normal(2, B, H, Q)] * 2
    expected = jax_impl.merge_attention(outputs, logsumexps)
    assert_close(jax_impl.merge_attention(deque(outputs), deque(logsumexps)), expected)
    with jax.enable_x64(False), pytest.raises(TypeError, match=r"outputs\[0\] must have one of"):
        jax_impl.merge_attention([np.ones((B, H, Q, V), np.int64)], [np.ones((B, H, Q), np.float32)])


def test_float64_is_not_made_where_jax_would_narrow_it() -> None:
    with jax.enable_x64(False), pytest.raises(TypeError, match="float64 needs"):
        jax_impl.sinusoidal_positions(2, 2, dtype="float64")


@pytest.mark.parametrize("operation", PROGRAMS)
@pytest.mark.slow_where(unless="layer_norm")
def test_nothing_is_converted_to_the_dtype_that_it_has(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    """Outside jax.jit, jax.vjp would compile and make a copy of every array, and of every gradient."""

    def conversions(dtype: Any) -> int:
        function, arguments = programs(dtype)[operation]
        jax.clear_caches()
        caplog.clear()
        with jax.log_compiles():
            output, pullback = jax.vjp(function, *arguments)
            pullback(output)
        assert "Compiling" in caplog.text
        of_arrays = r"Compiling jit\(convert_element_type\).*ShapedArray\(\w+\[\d"  # scalars are JAX's own affair
        return len(re.findall(of_arrays, caplog.text))

    assert conversions(jnp.float32) == 0 < conversions(jnp.bfloat16)


def test_an_array_in_a_dtype_of_its_own_stays_in_it() -> None:
    """A Python number's dtype gives way to that of an array beside it."""
    weak = jnp.asarray(2.0)
    assert weak.weak_type
    assert (cast(weak, weak.dtype) * jnp.ones(1, np.float16)).dtype == weak.dtype


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("operation", PROGRAMS)
@pytest.mark.rule("ATT-9")
def test_every_product_asks_for_full_precision(operation: str, dtype: Any) -> None:
    function, arguments = programs(dtype)[operation]

    def gradients(*arguments: Any) -> Any:
        output, pullback = jax.vjp(function, *arguments)
        return output, pullback(output)

    found = list(products(jax.make_jaxpr(gradients)(*arguments).jaxpr))
    assert bool(found) == (operation not in ("layer_norm", "cross_entropy"))
    highest = jax.lax.Precision.HIGHEST
    for product in found:
        assert product.params["precision"] == (highest, highest)
        assert {variable.aval.dtype for variable in product.invars} == {np.dtype(np.float32)}


def gpu() -> Any:
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no GPU that JAX can use")


@pytest.mark.rule("ATT-9", "NORM-2")
def test_float32_means_float32_on_a_gpu() -> None:
    """In TF32 1 + 2^-12 is 1, so that every score would be 0 instead of 1."""
    query = jnp.zeros((1, 1, 64, 64), np.float32).at[..., 0].set(1 + 2.0**-12).at[..., 1].set(-1)
    query, key = jax.device_put((query, jnp.ones((1, 1, 1, 64), np.float32)), gpu())
    assert (jax_impl.attention_logsumexp(query, key, scale=2.0**12) == 1).all()


# --- importing --------------------------------------------------------------------------------------------------------


def test_importing_changes_nothing_global() -> None:
    program = """
import jax
before = dict(jax.config.values)
import jax_impl, sys
assert dict(jax.config.values) == before
assert not {"torch", "reference_numpy", "torch_impl", "conformance"} & set(sys.modules)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)


def test_descriptions_have_structures_of_their_own() -> None:
    """Equal ones would share what jax.jit has compiled."""
    numbers = np.array([1, 2])
    masks = [
        Causal(numbers), KeyLengths(numbers), KeyPadding(numbers > 0), Dense(numbers), SlidingWindow(numbers, None),
        SlidingWindow(None, numbers), SlidingWindow(None, None, numbers), Segments(numbers, numbers),
        Causal(numbers) & Causal(numbers), Causal(numbers) | Causal(numbers), KeyLengths(numbers) | Causal(numbers),
    ]  # fmt: skip
    structures = [jax.tree.structure(mask) for mask in masks]
    assert [structures.count(structure) for structure in structures] == [1] * len(masks)
    for mask, structure in zip(masks, structures, strict=True):
        again = jax.tree.unflatten(structure, jax.tree.leaves(mask))
        assert type(again) is type(mask)
        assert jax.tree.structure(again) == structure
