"""Beam search on the same tiny model: the beams after every step, and the continuations they were chosen from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.side_by_side.sources import PACKAGES
from study.examples.generation import CONFIGURATION, END, PROMPT, STEPS, TOKENS, chosen, folded, given, judged, runs_of
from study.examples.parts import Part, Shown, Table, counted

if TYPE_CHECKING:
    from specification.parameters import LanguageModel

BEAMS, PENALTY = 3, 0.7


def beam_search() -> Part:
    runs = runs_of("beam_search", "extend", steps=STEPS, beams=BEAMS, end=END, length_penalty=PENALTY)
    scores = {package: run.answer[1] for package, run in runs.items()}
    tokens = runs[PACKAGES[0]].answer[0][0]

    def run(functions: SimpleNamespace, wide: LanguageModel) -> np.ndarray:
        logits = functions.language_model(wide, tokens[:, :-1], configuration=CONFIGURATION)
        return penalized_sums(functions.log_softmax(logits), tokens)[None]

    return Part(
        "Beam search",
        f"The search keeps the {BEAMS} best sequences. It continues each with every token, and keeps the best of all "
        f"continuations. A sequence that has ended with {END} stays as it is. A score is the sum of the "
        f"log-probabilities, divided by the length to the power {PENALTY}. Greedy search takes the most probable first "
        "token; here the best sequence begins with another one.",
        f"beam_search(parameters, prompt, steps={STEPS}, beams={BEAMS}, end={END}, length_penalty={PENALTY})",
        given(),
        tuple(continuations(number, call) for number, call in enumerate(runs[PACKAGES[0]].calls)),
        (table_of_beams(runs[PACKAGES[0]].calls), chosen(runs)),
        judged("the scores", scores, run),
        folded(),
    )


def penalized_sums(log_probabilities: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The score of each sequence [W, T], of the log-probabilities [W, T - 1, N] of what comes next."""
    lengths = np.array([list(line[1:]).index(END) + 1 if END in line[1:] else len(line) - 1 for line in tokens])
    each = np.take_along_axis(log_probabilities, tokens[:, 1:, None], axis=-1)[..., 0]
    counts = np.arange(each.shape[1]) < lengths[:, None]
    return np.sum(np.where(counts, each, 0), axis=1) / lengths**PENALTY


def continuations(number: int, call: dict[str, Any]) -> Shown:
    """What every continuation of every beam comes to, in log-probability; outlined, those that are kept."""
    _, parents, ids = call["result"]
    before = call["hypotheses"][0]
    totals = before[..., None] + call["log_probabilities"]
    taken = np.zeros(totals.shape, bool)
    taken[0, parents[0], ids[0]] = True
    return Shown(f"step {number}: sums of log-probabilities", totals, counted("beam", BEAMS), TOKENS, taken)


def table_of_beams(calls: list[dict[str, Any]]) -> Table:
    """After every step the sequences that are kept, best first."""
    sequences, rows = [[int(PROMPT[0, 0])]] * BEAMS, []
    for number, call in enumerate(calls):
        (totals, lengths, finished), parents, ids = call["result"]
        sequences = [[*sequences[parent], int(token)] for parent, token in zip(parents[0], ids[0], strict=True)]
        for beam, sequence in enumerate(sequences):
            score = totals[0, beam] / lengths[0, beam] ** PENALTY
            ended = "yes" if finished[0, beam] else "no"
            told = (" ".join(map(str, sequence)), str(parents[0, beam]), f"{totals[0, beam]:.4f}", f"{score:.4f}")
            rows.append((f"{number}, beam {beam}", *told, ended))
    heads = ("step", "sequence", "continues beam", "sum of log-probabilities", "score", "ended")
    return Table("The beams after every step, best first", heads, tuple(rows))
