"""Tokens one after another in PyTorch (rule GEN-1), as `reference_numpy/generation.py` defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer

from specification import checks
from specification.caches import Cache, looks_ahead, outgrown
from specification.configuration import Configuration
from specification.masks import Causal
from specification.parameters import LanguageModel, Transformer
from torch_impl.decoding import decode_step, empty_cache, select_rows
from torch_impl.masks import readable
from torch_impl.models import Model
from torch_impl.transformer import language_model, log_softmax, transformer

__all__ = ["beam_search", "choose", "greedy", "sample"]

# --- logits -----------------------------------------------------------------------------------------------------------


def all_logits(
    parameters: LanguageModel | Transformer,
    tokens: Integer[torch.Tensor, "B T"],
    *,
    configuration: Configuration,
    source: Integer[torch.Tensor, "B S"] | None = None,
) -> Float[torch.Tensor, "B T N"]:
    """The full forward pass; causal also where the configuration leaves that to its caller."""
    mask = Causal() if configuration.target_mask == "none" else None
    if isinstance(parameters, LanguageModel):
        return language_model(parameters, tokens, configuration=configuration, mask=mask)
    assert source is not None  # it is checked
    return transformer(parameters, source, tokens, configuration=configuration, target_mask=mask)


def next_logits(
    parameters: LanguageModel | Transformer,
    tokens: Integer[torch.Tensor, "B T"],
    length: int,
    cache: Cache | None,
    *,
    configuration: Configuration,
    source: Integer[torch.Tensor, "B S"] | None = None,
) -> tuple[Float[torch.Tensor, "B N"], Cache | None]:
    """Logits for what follows the first `length` tokens, and the cache that has them; None once there can be none."""
    if cache is not None:
        if cache.length and outgrown(configuration, cache.length, length - cache.length):
            cache = cache._replace(length=0)  # filled anew, with all keys turned by other angles
        new = tokens[:, cache.length : length]
        if not looks_ahead(new, cache.length, configuration, readable):
            logits, cache = decode_step(parameters, new, cache, configuration=configuration)
            return logits[:, -1], cache
    logits = all_logits(parameters, tokens[:, :length], configuration=configuration, source=source)
    return logits[:, -1], None


def wide_log_softmax(logits: Float[torch.Tensor, "B N"]) -> Float[torch.Tensor, "B N"]:
    """logits - log(sum(exp(logits))) in float64 whatever the model's dtype, for sums over many steps."""
    return log_softmax(logits.to(torch.float64))


# --- choosing ---------------------------------------------------------------------------------------------------------


def draw(
    logits: Float[torch.Tensor, "B N"],
    uniforms: Float[torch.Tensor, "B"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> Integer[torch.Tensor, "B"]:
    """`choose` without its checks."""
    wide = logits.to(torch.float64)
    order = torch.argsort(-wide, dim=-1, stable=True)
    falling = torch.take_along_dim(wide, order, dim=-1)
    # Probabilities are left undivided by their sum, which changes no comparison and saves a rounding.
    weights = torch.exp((falling - falling[:, :1]) / temperature)
    kept = weights > 0
    if top_k is not None:
        kept = kept & (torch.arange(weights.shape[1], device=logits.device) < top_k)
    if top_p is not None:
        reached = torch.cumsum(torch.where(kept, weights, 0), dim=-1)
        kept[:, 1:] &= reached[:, :-1] < top_p * reached[:, -1:]
    reached = torch.cumsum(torch.where(kept, weights, 0), dim=-1)
    passed = torch.sum(reached <= uniforms.to(reached)[:, None] * reached[:, -1:], dim=-1)
    # A product that is rounded up passes all of them; and of NaN nothing is kept.
    place = torch.minimum(passed, (torch.sum(kept, dim=-1) - 1).clamp(min=0))
    return torch.take_along_dim(order, place[:, None], dim=-1)[:, 0]


def choose(
    logits: Float[torch.Tensor, "B N"],
    uniforms: Float[torch.Tensor, "B"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Integer[torch.Tensor, "B"]:
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
    return draw(logits, uniforms, temperature, top_k, top_p)


# --- one sequence -----------------------------------------------------------------------------------------------------


def generate(
    parameters: LanguageModel | Transformer,
    prompt: Integer[torch.Tensor, "B P"],
    steps: int,
    pick: Callable[[Float[torch.Tensor, "B N"], int], Integer[torch.Tensor, "B"]],
    *,
    configuration: Configuration,
    source: Integer[torch.Tensor, "B S"] | None = None,
    end: int | None = None,
    cached: bool = True,
) -> Integer[torch.Tensor, "B T"]:
    """The prompt and what `pick` chooses, given the logits and the number of the step, until all steps are done."""
    B, P = prompt.shape
    capacity = P + steps
    tokens = torch.cat([prompt, prompt.new_zeros(B, steps)], dim=1)
    finished = torch.zeros(B, dtype=torch.bool, device=prompt.device)
    cache = empty_cache(parameters, B, capacity, configuration=configuration, source=source) if cached else None
    for length in range(P, capacity):
        logits, cache = next_logits(parameters, tokens, length, cache, configuration=configuration, source=source)
        chosen = pick(logits, length - P)
        if end is not None:
            chosen = torch.where(finished, end, chosen)
            finished = finished | (chosen == end)
        tokens[:, length] = chosen
    return tokens


@torch.no_grad()
def greedy(
    parameters: LanguageModel | Transformer | Model,
    prompt: Integer[torch.Tensor, "B P"],
    steps: int,
    *,
    configuration: Configuration | None = None,
    source: Integer[torch.Tensor, "B S"] | None = None,
    end: int | None = None,
    cached: bool = True,
) -> Integer[torch.Tensor, "B T"]:
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

    def pick(logits: torch.Tensor, step: int) -> Any:
        return torch.argmax(logits, dim=-1)

    options: Any = {"configuration": configured, "source": source, "end": end, "cached": cached}
    return generate(own, prompt, steps, pick, **options)


@torch.no_grad()
def sample(
    parameters: LanguageModel | Transformer | Model,
    prompt: Integer[torch.Tensor, "B P"],
    uniforms: Float[torch.Tensor, "B steps"],
    *,
    configuration: Configuration | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    source: Integer[torch.Tensor, "B S"] | None = None,
    end: int | None = None,
    cached: bool = True,
) -> Integer[torch.Tensor, "B T"]:
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

    def pick(logits: torch.Tensor, step: int) -> Any:
        return draw(logits, uniforms[:, step], temperature, top_k, top_p)

    options: Any = {"configuration": configured, "source": source, "end": end, "cached": cached}
    return generate(own, prompt, steps, pick, **options)


# --- several sequences ------------------------------------------------------------------------------------------------


class Hypotheses(NamedTuple):
    """The best sequences so far, W of them for each batch element."""

    totals: Float[torch.Tensor, "B W"]
    lengths: Integer[torch.Tensor, "B W"]
    finished: Bool[torch.Tensor, "B W"]


def penalized(
    totals: Float[torch.Tensor, "B W"], lengths: Integer[torch.Tensor, "B W"], length_penalty: float
) -> Float[torch.Tensor, "B W"]:
    """totals / lengths ** length_penalty, by which sequences are compared; 0 for those without a token."""
    return totals / lengths.clamp(min=1).to(totals.dtype) ** length_penalty


def extend(
    hypotheses: Hypotheses,
    log_probabilities: Float[torch.Tensor, "B W N"],
    end: int | None,
    length_penalty: float,
) -> tuple[Hypotheses, Integer[torch.Tensor, "B W"], Integer[torch.Tensor, "B W"]]:
    """The W best of all continuations by one token, the beams that they continue, and their tokens."""
    W, N = log_probabilities.shape[1:]
    finished = hypotheses.finished[..., None]
    if end is not None:
        itself = torch.full_like(log_probabilities, -torch.inf)
        itself[..., end] = 0
        log_probabilities = torch.where(finished, itself, log_probabilities)
    totals = hypotheses.totals[..., None] + log_probabilities
    lengths = (hypotheses.lengths[..., None] + ~finished).expand(totals.shape)
    totals, lengths = totals.reshape(-1, W * N), lengths.reshape(-1, W * N)
    best = torch.argsort(-penalized(totals, lengths, length_penalty), dim=-1, stable=True)[:, :W]
    beams, ids = best // N, best % N
    ended = torch.take_along_dim(hypotheses.finished, beams, dim=-1)
    ended = ended if end is None else ended | (ids == end)
    totals, lengths = (torch.take_along_dim(a, best, dim=-1) for a in (totals, lengths))
    return Hypotheses(totals, lengths, ended), beams, ids


@torch.no_grad()
def beam_search(
    parameters: LanguageModel | Transformer | Model,
    prompt: Integer[torch.Tensor, "B P"],
    steps: int,
    *,
    configuration: Configuration | None = None,
    beams: int,
    source: Integer[torch.Tensor, "B S"] | None = None,
    end: int | None = None,
    length_penalty: float = 0.0,
    cached: bool = True,
) -> tuple[Integer[torch.Tensor, "B beams T"], Float[torch.Tensor, "B beams"]]:
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
    batch = torch.arange(B, device=prompt.device)
    everyone = batch.repeat_interleave(beams)
    tokens = torch.cat([prompt[everyone], prompt.new_zeros(B * beams, steps)], dim=1)
    cache = None if cache is None else select_rows(cache, everyone)
    source = None if source is None else source[everyone]
    # Of the equal sequences at the beginning only the first counts.
    totals = torch.full((B, beams), -torch.inf, dtype=torch.float64, device=prompt.device)
    totals[:, 0] = 0
    nothing = torch.zeros_like(totals, dtype=torch.int64)
    hypotheses = Hypotheses(totals, nothing, nothing > 0)
    for length in range(P, capacity):
        logits, cache = next_logits(own, tokens, length, cache, configuration=configured, source=source)
        log_probabilities = wide_log_softmax(logits).reshape(B, beams, N)
        hypotheses, parents, ids = extend(hypotheses, log_probabilities, end, length_penalty)
        rows = (batch[:, None] * beams + parents).reshape(-1)
        tokens = tokens[rows]
        tokens[:, length] = ids.reshape(-1)
        cache = None if cache is None else select_rows(cache, rows)
    scores = penalized(hypotheses.totals, hypotheses.lengths, length_penalty)
    return tokens.reshape(B, beams, capacity), scores
