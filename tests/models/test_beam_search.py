"""Beam search, held to a list of all the sequences there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conformance.bounds.arithmetic import EXP, LOG, Approx, Precision, total
from conformance.checks.comparison import compare
from conformance.models.local import local_bound
from conformance.oracle.reference import Exact
from tests.support.helpers import REFERENCE, Implementation
from tests.support.small_models import EXAMPLES, Example, edited, generated, generation

SMALL = Example(replace(EXAMPLES["gpt2"].configuration, positions="sinusoidal"), shapes={"vocabulary": 4})
STEPS, END, PENALTY = 3, 2, 0.8
WIDE = {"steps": STEPS, "beams": 4**STEPS, "end": END, "length_penalty": PENALTY}
PROMPT = np.array([[1, 3, 0], [2, 0, 0]])


Scored = list[tuple[float, tuple[int, ...]]]


def exhaustively(
    log_probabilities: Callable[[tuple[int, ...]], np.ndarray], steps: int, end: int, length_penalty: float
) -> Scored:
    """All sequences of that many tokens, or fewer and then filled with `end`, and their scores; the best first.

    log_probabilities: of every token, after the beginning of a sequence.
    """
    scored = {}
    for sequence in itertools.product(range(4), repeat=steps):
        length = sequence.index(end) + 1 if end in sequence else steps
        summed = 0.0
        for n in range(length):
            summed += float(log_probabilities(sequence[:n])[sequence[n]])
        scored[sequence[:length] + (end,) * (steps - length)] = summed / length**length_penalty
    return sorted(((score, sequence) for sequence, score in scored.items()), reverse=True)


def exact_search(prompt: np.ndarray, penalty: float = PENALTY) -> Scored:
    """`exhaustively`, by full passes of the definition over one sequence at a time."""
    return exhaustively(lambda beginning: after((*prompt.tolist(), *beginning)), STEPS, END, penalty)


@cache
def after(tokens: tuple[int, ...]) -> np.ndarray:
    """The definition's log-probabilities of the token that follows these."""
    module = generation(REFERENCE)
    logits = module.all_logits(SMALL.parameters("float64"), np.array([tokens]), configuration=SMALL.configuration)
    return module.wide_log_softmax(logits[:, -1])[0]


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("penalty", [0.0, 0.8, -0.5])
@pytest.mark.slow_where("jax_impl")
def test_a_search_with_room_for_everything_finds_the_best(implementation: Implementation, penalty: float) -> None:
    options = WIDE | {"length_penalty": penalty}
    tokens, scores = generated(implementation, "beam_search", SMALL, prompt=PROMPT, **options)
    for row in range(2):
        expected = exact_search(PROMPT[row], penalty)
        count = len(expected)
        assert 30 < count < 64
        assert np.array_equal(tokens[row, :count, 3:], [sequence for _, sequence in expected])
        assert (tokens[row, :, :3] == PROMPT[row]).all()
        assert np.isfinite(scores[row, :count]).all()
        assert (np.diff(scores[row, :count]) <= 0).all()
        assert (scores[row, count:] == -np.inf).all()


def test_a_narrow_search_finds_less() -> None:
    """With one beam it is greedy; what it finds has the score that an exhaustive search gives to it."""
    (greedy,) = generated(REFERENCE, "greedy", SMALL, prompt=PROMPT, steps=3)
    one, _ = generated(REFERENCE, "beam_search", SMALL, prompt=PROMPT, steps=3, beams=1, length_penalty=0.0)
    assert np.array_equal(one[:, 0], greedy)
    options = WIDE | {"beams": 3}
    for cached in (True, False):
        tokens, _ = generated(REFERENCE, "beam_search", SMALL, prompt=PROMPT, **options, cached=cached)
        for row in range(2):
            everything = [sequence for _, sequence in exact_search(PROMPT[row])]
            places = [everything.index(tuple(found)) for found in tokens[row, :, 3:].tolist()]
            assert places == sorted(set(places))


TABLE = np.random.default_rng(4).normal(0, 2, (4, 4))
"""Logits of a model that looks at the last token alone."""


@pytest.mark.parametrize("penalty", [0.0, 0.8])
def test_scores(implementation: Implementation, penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model whose logits are exact, so that scores are judged by the bounds of log-softmax, sum and quotient.

    The scores that they are compared with are computed in float64 too, so twice the bound is allowed.
    """
    module, table = generation(implementation), implementation.convert(TABLE)

    def next_logits(parameters: Any, tokens: Any, length: int, cache: Any, **keywords: Any) -> Any:
        return table[tokens[:, length - 1]], cache

    monkeypatch.setattr(module, "next_logits", next_logits)
    options = WIDE | {"length_penalty": penalty, "prompt": PROMPT}
    tokens, scores = generated(implementation, "beam_search", SMALL, **options)
    p, exact = Precision.make("float64"), TABLE - np.log(np.exp(TABLE).sum(-1, keepdims=True))
    errors = local_bound("log_softmax", "float64", (TABLE,), {})
    for row, last in enumerate(PROMPT[:, -1]):
        expected = exhaustively(lambda beginning, last=last: exact[(last, *beginning)[-1]], STEPS, END, penalty)
        for (score, sequence), found, got in zip(expected, tokens[row], scores[row], strict=False):
            assert tuple(found[-STEPS:]) == sequence
            length = sequence.index(END) + 1 if END in sequence else STEPS
            pairs = [last, *sequence[: length - 1]], list(sequence[:length])
            summed = total(Approx(exact[pairs], errors[pairs]), 0, p)
            # The power is off by a few units in the last place, as `exp` and `log` are, and the quotient rounds once.
            error = 2 * (summed.error + (EXP + LOG + 1) * p.inner * summed.size) / length**penalty
            judged = compare("score", np.array(got), Exact(np.array(score), np.array(0.0)), np.array(error), "float64")
            assert judged.ratio <= 1


# --- planted faults ---------------------------------------------------------------------------------------------------


def caught(module: ModuleType) -> bool:
    results = module.beam_search(SMALL.parameters("float64"), PROMPT, configuration=SMALL.configuration, **WIDE)
    expected = [exact_search(row) for row in PROMPT]
    return any(
        results[0][row, : len(found), 3:].tolist() != [list(sequence) for _, sequence in found]
        for row, found in enumerate(expected)
    )


FAULTS = {
    "length penalty of the wrong sign": ("** length_penalty\n", "** -length_penalty\n"),
    "length counts on after the end": ("[..., None] + ~finished", "[..., None] + 1"),
    "finished sequences pay for their filling": ("== end, 0.0, -np.inf)", "== end, log_probabilities, -np.inf)"),
    "finished sequences go on": ("ended | (ids == end)", "ended"),
    "every beam begins with the prompt": ("np.zeros((B, 1)), -np.inf)", "np.zeros((B, 1)), 0.0)"),
    "tokens of other beams": ("tokens = tokens[rows]", "tokens = tokens.copy()"),
    "caches of other beams": ("else select_rows(cache, rows)", "else cache"),
    "batch elements mixed": ("[:, None] * beams + parents", "[:, None] * 0 + parents"),
}


@pytest.mark.rule("GEN-1")
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    assert not caught(generation(REFERENCE))
    assert caught(edited("reference_numpy.generation", *FAULTS[name]))
