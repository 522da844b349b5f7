"""Tokens one after another in JAX (rule GEN-1), as `reference_numpy/generation.py` defines them.

Choices are made in float64, but unless `jax.enable_x64` is on JAX has nothing wider than float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import dynamic_slice_in_dim, dynamic_update_slice_in_dim
from jaxtyping import Bool, Float, Integer

from jax_impl.decoding import decode_step, empty_cache, readable_length, select_rows
from jax_impl.masks import readable
from jax_impl.models import Model
from jax_impl.transformer import language_model, log_softmax, transformer
from specification import checks
from specification.caches import Cache, looks_ahead, outgrown
from specification.configuration import Configuration
from specification.masks import Causal
from specification.parameters import LanguageModel, Transformer

__all__ = ["beam_search", "choose", "greedy", "sample"]

# --- logits -----------------------------------------------------------------------------------------------------------


def all_logits(
    parameters: LanguageModel | Transformer,
    tokens: Integer[jax.Array, "B T"],
    *,
    configuration: Configuration,
    source: Integer[jax.Array, "B S"] | None = None,
) -> Float[jax.Array, "B T N"]:
    """The full forward pass; causal also where the configuration leaves that to its caller."""
    mask = Causal() if configuration.target_mask == "none" else None
    if isinstance(parameters, LanguageModel):
        return language_model(parameters, tokens, configuration=configuration, mask=mask)
    assert source is not None  # it is checked
    return transformer(parameters, source, tokens, configuration=configuration, target_mask=mask)


def next_logits(
    parameters: LanguageModel | Transformer,
    tokens: Integer[jax.Array, "B T"],
    length: int,
    cache: Cache | None,
    *,
    configuration: Configuration,
    source: Integer[jax.Array, "B S"] | None = None,
) -> tuple[Float[jax.Array, "B N"], Cache | None]:
    """Logits for what follows the first `length` tokens, and the cache that has them; None once there can be none."""
    if cache is not None:
        if cache.length and outgrown(configuration, cache.length, length - cache.length):
            cache = cache._replace(length=0)  # filled anew, with all keys turned by other angles
        # Sliced by a number that is an argument: a slice by numbers in the code would be compiled for each of them.
        new = dynamic_slice_in_dim(tokens, cache.length, length - cache.length, axis=1)
        if not looks_ahead(new, readable_length(cache), configuration, readable):
            logits, cache = decode_step(parameters, new, cache, configuration=configuration)
            return logits[:, -1], cache
    logits = all_logits(parameters, tokens[:, :length], configuration=configuration, source=source)
    return logits[:, -1], None


def widest() -> Any:
    """float64, or float32 where JAX has no wider dtype."""
    return jax.dtypes.canonicalize_dtype("float64")


@jax.jit
def wide_log_softmax(logits: Float[jax.Array, "B N"]) -> Float[jax.Array, "B N"]:
    """logits - log(sum(exp(logits))) in float64 whatever the model's dtype, for sums over many steps."""
    return log_softmax(logits.astype(widest()))


# --- choosing ---------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("top_k",))
def draw(
    logits: Float[jax.Array, "B N"],
    uniforms: Float[jax.Array, "B"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> Integer[jax.Array, "B"]:
    """`choose` without its checks."""
    wide = logits.astype(widest())
    order = jnp.argsort(-wide, axis=-1, stable=True)
    falling = jnp.take_along_axis(wide, order, axis=-1)
    # Probabilities are left undivided by their sum, which changes no comparison and saves a rounding.
    weights = jnp.exp((falling - falling[:, :1]) / temperature)
    kept = weights > 0
    if top_k is not None:
        kept &= jnp.arange(weights.shape[1]) < top_k
    if top_p is not None:
        reached = jnp.cumsum(jnp.where(kept, weights, 0), axis=-1)
        kept = kept.at[:, 1:].set(kept[:, 1:] & (reached[:, :-1] < top_p * reached[:, -1:]))
    reached = jnp.cumsum(jnp.where(kept, weights, 0), axis=-1)
    passed = jnp.sum(reached <= uniforms.astype(widest())[:, None] * reached[:, -1:], axis=-1)
    # A product that is rounded up passes all of them; and of NaN nothing is kept.
    place = jnp.clip(passed, 0, jnp.maximum(jnp.sum(kept, axis=-1) - 1, 0))
    return jnp.take_along_axis(order, place[:, None], axis=-1)[:, 0]


def choose(
    logits: Float[jax.Array, "B N"],
    uniforms: Float[jax.Array, "B"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Integer[jax.Array, "B"]:
    """Choose one token for each row, by a uniform random number u that is given (GEN-1).

    Tokens are put in the order of falling logits, of equal ones the lowest id first. With probabilities
    softmax(logits / temperature): keep the first top_k; of these, renormalised, the fewest first ones that together
    reach top_p; renormalise again, and take the first whose probability and those of all before it sum to more than u.
    A token whose probability is 0 in float64 is never taken.

    Everything is computed in float64. Implementations choose the same, unless u or top_p lies within a few roundings of
    a sum of probabilities; where the logits are an implementation's own, within what these are off by.

    Args:
        logits: [B, N].
        uniforms: [B], each u in [0, 1).
        temperature: Above 0.
        top_k: At least 1; None keeps all.
        top_p: In (0, 1]; None keeps all.

    Returns:
        Token ids [B].

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.choice(logits, uniforms)
    checks.sampling(temperature, top_k, top_p)
    checks.uniform_numbers("uniforms", readable(uniforms))
    return draw(jnp.asarray(logits), jnp.asarray(uniforms), temperature, top_k, top_p)


# --- one sequence -----------------------------------------------------------------------------------------------------


def generate(
    parameters: LanguageModel | Transformer,
    prompt: Integer[jax.Array, "B P"],
    steps: int,
    pick: Callable[[Float[jax.Array, "B N"], int], Integer[jax.Array, "B"]],
    *,
    configuration: Configuration,
    source: Integer[jax.Array, "B S"] | None = None,
    end: int | None = None,
    cached: bool = True,
) -> Integer[jax.Array, "B T"]:
    """The prompt and what `pick` chooses, given the logits and the number of the step, until all steps are done."""
    B, P = prompt.shape
    capacity = P + steps
    tokens = jnp.concatenate([jnp.asarray(prompt), jnp.zeros((B, steps), prompt.dtype)], axis=1)
    finished = jnp.zeros(B, bool)
    cache = empty_cache(parameters, B, capacity, configuration=configuration, source=source) if cached else None
    for length in range(P, capacity):
        logits, cache = next_logits(parameters, tokens, length, cache, configuration=configuration, source=source)
        chosen = pick(logits, length - P)
        if end is not None:
            chosen = jnp.where(finished, end, chosen)
            finished = finished | (chosen == end)
        tokens = dynamic_update_slice_in_dim(tokens, chosen[:, None].astype(tokens.dtype), length, axis=1)
    return tokens


def greedy(
    parameters: LanguageModel | Transformer | Model,
    prompt: Integer[jax.Array, "B P"],
    steps: int,
    *,
    configuration: Configuration | None = None,
    source: Integer[jax.Array, "B S"] | None = None,
    end: int | None = None,
    cached: bool = True,
) -> Integer[jax.Array, "B T"]:
    """Continue the prompt by the token with the largest logit, `steps` times; of equal ones the lowest id (GEN-1).

    Args:
        parameters: With their configuration, or a loaded model, which has its own.
        prompt: [B, P], integers, with P at least 1.
        steps: How many tokens are chosen.
        configuration: Of the parameters; None for a loaded model.
        source: Tokens [B, S], for a model with an encoder.
        end: The token that ends a sequence. Once it has been chosen for a row, the row is filled with it. In the prompt
            it ends nothing.
        cached: Whether keys and values of earlier positions are kept. The result is the same.

    Returns:
        Tokens [B, P + steps] in the dtype of prompt.

    Raises:
        TypeError, ValueError: Arguments that are not as described, and sequences longer than a learned table of
            positions.
    """
    own, configured = checks.held(parameters, configuration)
    checks.generation(own, prompt, steps, configured, source, end)

    def pick(logits: jax.Array, step: int) -> Any:
        return jnp.argmax(logits, axis=-1)

    options: Any = {"configuration": configured, "source": source, "end": end, "cached": cached}
    return generate(own, prompt, steps, pick, **options)


def sample(
    parameters: LanguageModel | Transformer | Model,
    prompt: Integer[jax.Array, "B P"],
    uniforms: Float[jax.Array, "B steps"],
    *,
    configuration: Configuration | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    source: Integer[jax.Array, "B S"] | None = None,
    end: int | None = None,
    cached: bool = True,
) -> Integer[jax.Array, "B T"]:
    """Continue the prompt by tokens that `choose` takes, one for each column of random numbers (GEN-1).

    Args:
        parameters: With their configuration, or a loaded model, which has its own.
        prompt: [B, P], integers, with P at least 1.
        uniforms: [B, steps], each in [0, 1).
        configuration: Of the parameters; None for a loaded model.
        temperature, top_k, top_p: As in `choose`.
        source: Tokens [B, S], for a model with an encoder.
        end: The token that ends a sequence. Once it has been chosen for a row, the row is filled with it. In the prompt
            it ends nothing.
        cached: Whether keys and values of earlier positions are kept. The result is the same.

    Returns:
        Tokens [B, P + steps] in the dtype of prompt.

    Raises:
        TypeError, ValueError: As in `greedy` and `choose`.
    """
    own, configured = checks.held(parameters, configuration)
    steps = checks.uniform_steps(prompt, uniforms)
    checks.generation(own, prompt, steps, configured, source, end)
    checks.sampling(temperature, top_k, top_p)
    checks.uniform_numbers("uniforms", readable(uniforms))

    uniforms = jnp.asarray(uniforms)

    def pick(logits: jax.Array, step: int) -> Any:
        return draw(logits, uniforms[:, step], temperature, top_k, top_p)

    options: Any = {"configuration": configured, "source": source, "end": end, "cached": cached}
    return generate(own, prompt, steps, pick, **options)


# --- several sequences ------------------------------------------------------------------------------------------------


class Hypotheses(NamedTuple):
    """The best sequences so far, W of them for each batch element."""

    totals: Float[jax.Array, "B W"]
    lengths: Integer[jax.Array, "B W"]
    finished: Bool[jax.Array, "B W"]


def penalized(
    totals: Float[jax.Array, "B W"], lengths: Integer[jax.Array, "B W"], length_penalty: float
) -> Float[jax.Array, "B W"]:
    """totals / lengths ** length_penalty, by which sequences are compared; 0 for those without a token."""
    return totals / jnp.maximum(lengths, 1).astype(totals.dtype) ** length_penalty


@partial(jax.jit, static_argnames=("end",))
def extend(
    hypotheses: Hypotheses,
    log_probabilities: Float[jax.Array, "B W N"],
    end: int | None,
    length_penalty: float,
) -> tuple[Hypotheses, Integer[jax.Array, "B W"], Integer[jax.Array, "B W"]]:
    """The W best of all continuations by one token, the beams that they continue, and their tokens."""
    W, N = log_probabilities.shape[1:]
    finished = hypotheses.finished[..., None]
    if end is not None:
        itself = jnp.where(jnp.arange(N) == end, 0.0, -jnp.inf)
        log_probabilities = jnp.where(finished, itself, log_probabilities)
    totals = hypotheses.totals[..., None] + log_probabilities
    lengths = jnp.broadcast_to(hypotheses.lengths[..., None] + ~finished, totals.shape)
    totals, lengths = totals.reshape(-1, W * N), lengths.reshape(-1, W * N)
    best = jnp.argsort(-penalized(totals, lengths, length_penalty), axis=-1, stable=True)[:, :W]
    beams, ids = best // N, best % N
    ended = jnp.take_along_axis(hypotheses.finished, beams, axis=-1)
    ended = ended if end is None else ended | (ids == end)
    totals, lengths = (jnp.take_along_axis(a, best, axis=-1) for a in (totals, lengths))
    return Hypotheses(totals, lengths, ended), beams, ids


def beam_search(
    parameters: LanguageModel | Transformer | Model,
    prompt: Integer[jax.Array, "B P"],
    steps: int,
    *,
    configuration: Configuration | None = None,
    beams: int,
    source: Integer[jax.Array, "B S"] | None = None,
    end: int | None = None,
    length_penalty: float = 0.0,
    cached: bool = True,
) -> tuple[Integer[jax.Array, "B beams T"], Float[jax.Array, "B beams"]]:
    """Search for the most probable sequences with a number of beams (GEN-1).

    A sequence's score is the sum of the log-probabilities of its chosen tokens, divided by their number to the power
    length_penalty; `end` is the last that counts. At every step each unfinished sequence is continued with every token,
    finished ones stay as they are, and the `beams` best of all are kept (see `extend`). With
    beams = vocabulary ** steps nothing is left out.

    Args:
        parameters: With their configuration, or a loaded model, which has its own.
        prompt: [B, P], integers, with P at least 1.
        steps: How many tokens are chosen.
        configuration: Of the parameters; None for a loaded model.
        beams: How many sequences are kept.
        source: Tokens [B, S], for a model with an encoder.
        end: The token that ends a sequence. Once it has been chosen for a row, the row is filled with it. In the prompt
            it ends nothing.
        length_penalty: 0 takes no account of the length.
        cached: Whether keys and values of earlier positions are kept. The result is the same.

    Returns:
        Tokens [B, beams, P + steps], best first, and their scores [B, beams] in float64. Where there are fewer
        sequences than beams, the rest have score -inf and tokens that mean nothing.

    Raises:
        TypeError, ValueError: As in `greedy`.
    """
    own, configured = checks.held(parameters, configuration)
    N = checks.generation(own, prompt, steps, configured, source, end)
    checks.beams(beams, length_penalty)
    (B, P), capacity = prompt.shape, prompt.shape[1] + steps
    cache = empty_cache(own, B, capacity, configuration=configured, source=source) if cached else None
    everyone = jnp.repeat(jnp.arange(B), beams)
    tokens = jnp.concatenate([jnp.asarray(prompt)[everyone], jnp.zeros((B * beams, steps), prompt.dtype)], axis=1)
    cache = None if cache is None else select_rows(cache, everyone)
    source = None if source is None else jnp.asarray(source)[everyone]
    # Of the equal sequences at the beginning only the first counts.
    totals = jnp.where(jnp.arange(beams) == 0, jnp.zeros((B, 1), widest()), -jnp.inf)
    hypotheses = Hypotheses(totals, jnp.zeros((B, beams), int), jnp.zeros((B, beams), bool))
    for length in range(P, capacity):
        logits, cache = next_logits(own, tokens, length, cache, configuration=configured, source=source)
        log_probabilities = wide_log_softmax(logits).reshape(B, beams, N)
        hypotheses, parents, ids = extend(hypotheses, log_probabilities, end, length_penalty)
        rows = (jnp.arange(B)[:, None] * beams + parents).reshape(-1)
        tokens = dynamic_update_slice_in_dim(tokens[rows], ids.reshape(-1, 1).astype(tokens.dtype), length, axis=1)
        cache = None if cache is None else select_rows(cache, rows)
    scores = penalized(hypotheses.totals, hypotheses.lengths, length_penalty)
    return tokens.reshape(B, beams, capacity), scores
