"""Key/value caches: what they hold, what is refused, and what is particular to the ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from specification.caches import BlockCache, Cache
from tests.support.helpers import IMPLEMENTATIONS, Implementation, error_of
from tests.support.small_models import BATCH, EXAMPLES, LENGTH, LONGEST, decoding

CAPACITY = LENGTH + 2


def begun(implementation: Implementation, name: str = "dawn", **options: Any) -> tuple[Any, Any, Cache, dict[str, Any]]:
    """Module, parameters, a cache of three positions, and the keywords of a step."""
    example, module = EXAMPLES[name], decoding(implementation)
    parameters, tokens, source = map(
        implementation.convert, (example.parameters("float32"), example.target(), example.source())
    )
    keywords = {"configuration": example.configuration}
    options = {"capacity": CAPACITY, "source": source} | options
    _, cache = module.start(parameters, tokens[:, :3], **keywords, **options)
    return module, parameters, cache, keywords


def arrays(implementation: Implementation, cache: Cache) -> list[np.ndarray]:
    parts = [*(array for block in cache.blocks for array in block), cache.real, cache.memory_real]
    return [np.array(implementation.subject.framework.numpy(part)) for part in parts if part is not None]


@pytest.mark.parametrize("name", ["dawn", "lists of heads"])
@pytest.mark.slow_where("jax_impl", unless="lists")
def test_what_a_cache_holds(implementation: Implementation, name: str) -> None:
    example = EXAMPLES[name]
    G, D, V = example.shapes.get("key_heads", 4), 4, example.shapes.get("value_width", 4)
    _, _, cache, _ = begun(implementation, name)
    assert (cache.length, cache.capacity) == (3, CAPACITY)
    for block in cache.blocks:
        assert tuple(block.keys.shape) == (BATCH, G, CAPACITY, D)
        assert tuple(block.values.shape) == (BATCH, G, CAPACITY, V)
        memory = [None if part is None else tuple(part.shape) for part in (block.memory_keys, block.memory_values)]
        assert memory == ([(BATCH, G, 5, D), (BATCH, G, 5, V)] if example.encoder else [None, None])
    for array in arrays(implementation, cache)[:2]:
        assert (array[:, :, :3] != 0).all()
        assert (array[:, :, 3:] == 0).all()


@pytest.mark.rule("GEN-1")
@pytest.mark.slow_where("jax_impl")
def test_a_step_leaves_its_cache_as_it_is(implementation: Implementation) -> None:
    module, parameters, cache, keywords = begun(implementation)
    before = arrays(implementation, cache)
    tokens = [implementation.convert(np.full((BATCH, 1), id)) for id in (5, 7, 5)]
    logits = [module.decode_step(parameters, piece, cache, **keywords)[0] for piece in tokens]
    first, other, again = map(implementation.subject.framework.numpy, logits)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert all(map(np.array_equal, before, arrays(implementation, cache)))


def test_rows_of_a_cache(implementation: Implementation) -> None:
    module, _, cache, _ = begun(implementation)
    rows = np.array([2, 0, 0, 1])
    selected = module.select_rows(cache, implementation.convert(rows))
    assert selected.length == 3
    for whole, part in zip(arrays(implementation, cache), arrays(implementation, selected), strict=True):
        assert np.array_equal(whole[rows], part)


# --- what is refused --------------------------------------------------------------------------------------------------


def tokens_of(*shape: int, dtype: Any = np.int64) -> np.ndarray:
    return np.ones(shape, dtype)


HEADLESS = (
    "parameters must be a LanguageModel or a Transformer, got Decoder, which has no output layer; load_pretrained "
    "leaves it out where architectures names no language model"
)
WRONG = "the cache's blocks[0].{} must have shape {}, got {}"
KEYS = "the cache's blocks[0].keys"
STEP_REFUSALS: dict[str, tuple[Any, str]] = {
    "no positions": (tokens_of(BATCH, 0), "tokens must have at least one position, got [3, 0]"),
    "one axis": (tokens_of(BATCH), "tokens must have shape [B, T], got [3]"),
    "floating": (tokens_of(BATCH, 1, dtype=np.float32), "tokens must have an integer dtype, got float32"),
    "another batch": (tokens_of(2, 1), "tokens must have the cache's batch size 3, got [2, 1]"),
    "no room": (tokens_of(BATCH, 7), "tokens must fit in the cache, where 3 of 9 positions are taken, got 7 positions"),
    "unknown ids": (tokens_of(BATCH, 1) * 11, "ids must lie in [0, 11), got values from 11 to 11"),
}


@pytest.mark.parametrize("mistake", STEP_REFUSALS)
def test_steps_that_are_refused(implementation: Implementation, mistake: str) -> None:
    tokens, words = STEP_REFUSALS[mistake]
    module, parameters, cache, keywords = begun(implementation)
    kind, message = error_of(module.decode_step, parameters, implementation.convert(tokens), cache, **keywords)
    assert (kind, message) == (TypeError if mistake == "floating" else ValueError, words)


def test_caches_that_are_refused(implementation: Implementation) -> None:
    module, parameters, cache, keywords = begun(implementation)
    tokens = implementation.convert(tokens_of(BATCH, 1))
    source = implementation.convert(EXAMPLES["dawn"].source())
    alone = implementation.convert(EXAMPLES["gpt2"].parameters("float32"))
    bare = parameters._replace(decoder=parameters.decoder._replace(embedding=None))

    first = cache.blocks[0]

    def kept(**changed: Any) -> Cache:
        return cache._replace(blocks=[first._replace(**changed), *cache.blocks[1:]])

    def made(of: Any, batch: Any = BATCH, capacity: Any = 9, source: Any = source) -> Callable[[], Any]:
        return lambda: module.empty_cache(of, batch, capacity, **keywords, source=source)

    def step(of: Any, cache: Any) -> Callable[[], Any]:
        return lambda: module.decode_step(of, tokens, cache, **keywords)

    assert [
        error_of(call)
        for call in (
            made(parameters, source=None), made(alone), made(parameters.encoder), made(bare),
            made(parameters._replace(output=None)), made(parameters, batch=2), made(parameters, capacity=-1),
            made(parameters, capacity=2.5), step(parameters, None), step(parameters.decoder, cache),
            step(parameters, cache._replace(blocks=cache.blocks[:1])), step(parameters, cache._replace(length=-1)),
            step(parameters, kept(keys=first.keys[:2])), step(parameters, kept(values=first.values[:, :, :4])),
            step(parameters, kept(values=first.values[..., :3])), step(parameters, kept(keys=first.keys[0])),
            step(parameters, kept(memory_keys=first.memory_keys[:1])), step(parameters, kept(memory_values=None)),
            step(parameters, cache._replace(blocks=[None, *cache.blocks[1:]])),
        )
    ] == [
        (ValueError, "source must be given for a Transformer, got None"),
        (ValueError, "source must be None for a LanguageModel, got int64 array of shape [3, 5]"),
        (TypeError, "parameters must be a LanguageModel or a Transformer, got Encoder"),
        (ValueError, "parameters must have an embedding of tokens, for generation, got none"),
        (ValueError, "parameters must have an output layer, for generation, got none"),
        (ValueError, "source must have the batch size 2 of the tokens, got shape [3, 5]"),
        (ValueError, "capacity must not be negative, got -1"),
        (TypeError, "capacity must be an integer, got float"),
        (TypeError, "cache must be a Cache, got NoneType"),
        (TypeError, HEADLESS),
        (ValueError, "the cache must have 2 blocks like the decoder, got 1"),
        (ValueError, "the cache's length must not be negative, got -1"),
        (ValueError, WRONG.format("keys", "[3, G, 9, D]", "[2, 4, 9, 4]")),
        (ValueError, WRONG.format("values", f"[3, 4, 9, V] beside {KEYS} [3, 4, 9, 4]", "[3, 4, 4, 4]")),
        (ValueError, "the cache's blocks[0].values must have 16 columns in all heads, got [3, 4, 9, 3]"),
        (ValueError, WRONG.format("keys", "[3, G, 9, D]", "[4, 9, 4]")),
        (ValueError, WRONG.format("memory_keys", "[3, G, S, D]", "[1, 4, 5, 4]")),
        (TypeError, "the cache's blocks[0].memory_values must be an array, got NoneType"),
        (TypeError, "the cache's blocks[0] must be a BlockCache, got NoneType"),
    ]  # fmt: skip


@pytest.mark.slow_where("jax_impl")
def test_positions_past_a_learned_table_are_refused(implementation: Implementation) -> None:
    module, parameters, cache, keywords = begun(implementation, "gpt2", capacity=LONGEST + 1)
    for count in (LONGEST - 4, 1):
        tokens = implementation.convert(tokens_of(BATCH, count))
        _, cache = module.decode_step(parameters, tokens, cache, **keywords)
    with pytest.raises(ValueError, match="table must have 25 rows for 1 positions from 24 on, got 24"):
        module.decode_step(parameters, implementation.convert(tokens_of(BATCH, 1)), cache, **keywords)


# --- what is particular to the ports ----------------------------------------------------------------------------------


def test_steps_in_jax_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, parameters, cache, keywords = begun(IMPLEMENTATIONS[2], capacity=13)
    traced: list[int] = []
    transform = module.transform
    monkeypatch.setattr(module, "transform", lambda *arguments: traced.append(1) or transform(*arguments))
    counts = []
    for _ in range(4):
        _, cache = module.decode_step(parameters, jnp.ones((BATCH, 1), int), cache, **keywords)
        counts.append(len(traced))
    assert counts == [1, 1, 1, 1]  # both blocks, in all steps


def test_a_step_in_jax_may_be_compiled_as_a_whole() -> None:
    """Where the length is traced, what finds no room is NaN."""
    module, parameters, cache, keywords = begun(IMPLEMENTATIONS[2])
    step = jax.jit(lambda tokens, cache: module.decode_step(parameters, tokens, cache, **keywords))
    plain, finite = cache, []
    for id in range(1, 8):
        tokens = jnp.full((BATCH, 1), id)
        logits, cache = step(tokens, cache)
        finite.append(bool(jnp.isfinite(logits).all()))
        if id <= CAPACITY - 3:
            expected, plain = module.decode_step(parameters, tokens, plain, **keywords)
            assert jnp.array_equal(jnp.argmax(logits, axis=-1), jnp.argmax(expected, axis=-1))
    assert finite == [True] * 6 + [False]
    assert jnp.isnan(logits).all()


def test_gradients_in_torch_reach_the_prompt() -> None:
    """Through the cache: logits of the second step depend on weights by way of the first one's keys too."""
    module, parameters, _, keywords = begun(IMPLEMENTATIONS[1], "gpt2")
    weight = parameters.decoder.blocks[0].self_attention.key.weight.requires_grad_()
    _, cache = module.start(parameters, torch.ones(1, 3, dtype=torch.int64), **keywords, capacity=4)
    kept = cache._replace(blocks=[BlockCache(*(a.detach() if a is not None else a for a in b)) for b in cache.blocks])
    tokens = torch.full((1, 1), 2)
    whole, cut = (
        torch.autograd.grad(module.decode_step(parameters, tokens, c, **keywords)[0].sum(), weight)[0]
        for c in (cache, kept)
    )
    assert not torch.equal(whole, cut)
