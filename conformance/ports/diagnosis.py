"""From wrong answers of a port to causes: the sublayer where it begins, and the known mistake that explains it.

1. Isolate. The port is asked about the failing case again with checkpoints in which one sublayer alone does anything,
   and none. So the first wrong sublayer shows from outside, whatever the framework.
2. Explain. Every known mistake, in every scope, is tried on the first failing one of these cases. Those that predict
   the answer are held against all other answers, right and wrong ones alike.
3. Go on with what is left, as there may be several mistakes: with those that are found already, one more is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from conformance.ports.cases import ModelCase, list_isolated, list_sublayers
from conformance.ports.computation import Computation
from conformance.ports.mistakes.catalogue import list_mistakes
from conformance.ports.mistakes.mistake import ModelMistake
from conformance.ports.noise import noise_bound
from conformance.ports.observation import Observation

Ask = Callable[[Sequence[ModelCase]], list[Observation]]

MOST_CAUSES = 4
CLEAR = 1e3
"""An error of so many bounds tells any two mistakes apart that differ by a thousandth of it."""
MOST_PAIRS = 3000
"""Pairs of mistakes that are tried on a case that no single one explains: ten seconds of a small model."""
CHANGED = 1e-9
"""Of a step's largest number: what a step differs by that a mistake changes. Rounding in float64 changes 1e-12."""


@dataclass(frozen=True)
class PortCause:
    """One thing that is wrong with a port.

    Attributes:
        step: the first wrong sublayer, by the definition's path; "embedding", "norm" or "output" for what comes before
            and after the blocks; empty where it cannot be told.
        mistakes: the known ones that explain it together, one in most cases; none where none does.
        observations: failing cases that it explains, the one that shows it best first.
        against: how many right answers speak against it. passing: of how many.
        alternatives: other mistakes that no case told apart from the first.
        narrow: the 16-bit dtype whose arithmetic would explain the errors, where no mistake does.
    """

    step: str
    mistakes: tuple[ModelMistake, ...]
    observations: tuple[Observation, ...]
    against: int = 0
    passing: int = 0
    alternatives: tuple[ModelMistake, ...] = ()
    narrow: str = ""

    @property
    def rule(self) -> str:
        return self.mistakes[0].rule if self.mistakes else self.observations[0].case.rule


def find_causes(observations: Sequence[Observation], ask: Ask) -> tuple[list[PortCause], list[Observation]]:
    """Return the causes of failing observations, and what the port answered for the first failing one's sublayers.

    Args:
        observations: all of them, right and wrong ones.
        ask: asks the port about more cases.
    """
    evidence = [one for one in observations if one.has_numbers]
    causes: list[PortCause] = []
    found: list[ModelMistake] = []
    first: list[Observation] = []
    while len(causes) < MOST_CAUSES:
        remaining = [one for one in evidence if one.failed and not explains(found, one)]
        if not remaining:
            break
        shown = choose_case(remaining)
        isolated = ask(list_isolated(shown.case.checkpoint, shown.case)) if shown.case.sublayer is None else []
        isolated = [one for one in isolated if one.has_numbers]
        first = first or isolated
        evidence += isolated
        wrong = [one for one in (*isolated, shown) if one.failed and not explains(found, one)]
        chosen, rivals = choose_mistakes(wrong[0], evidence, found)
        if not chosen:
            causes.append(describe_unknown(wrong, remaining, isolated, shown, ask))
            break
        found = [*found, *chosen]
        explained = [one for one in remaining if explains(found, one)]
        passing = [one for one in evidence if not one.failed]
        against = sum(not explains(found, one) for one in passing)
        shows = tuple(explained or wrong[:1])
        causes.append(
            PortCause(find_step(chosen, shown.case), tuple(chosen), shows, against, len(passing), tuple(rivals))
        )
    return causes, first


def choose_case(failing: Sequence[Observation]) -> Observation:
    """The failing case to look into: of a whole model, clearly wrong, with small inputs."""

    def merit(one: Observation) -> tuple[bool, bool, float, int]:
        size = sum(array.size for array in one.case.call.inputs)
        return one.case.sublayer is not None, one.case.call.chunks != (), -min(one.finding.ratio, CLEAR), size

    return min(failing, key=merit)


def apply_all(mistakes: Iterable[ModelMistake], computation: Computation) -> Computation:
    for mistake in mistakes:
        computation = mistake.apply(computation)
    return computation


def predict(mistakes: Sequence[ModelMistake], case: ModelCase) -> np.ndarray | None:
    """What a port with these mistakes returns; None where it can compute nothing."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(apply_all(mistakes, case.computation).run())
    except (ValueError, TypeError, IndexError, AttributeError):
        return None


def explains(mistakes: Sequence[ModelMistake], one: Observation) -> bool:
    """Whether the answer is what a port with these mistakes gives; with none, whether it is right."""
    if not mistakes:
        return not one.failed
    predicted = predict(mistakes, one.case)
    return predicted is not None and one.agrees(predicted)


def choose_mistakes(
    shown: Observation, evidence: Sequence[Observation], found: Sequence[ModelMistake]
) -> tuple[list[ModelMistake], list[ModelMistake]]:
    """Return the mistakes that explain this answer and most others, beside those found; and rivals of the same merit."""
    base = apply_all(found, shown.case.computation)
    candidates = [*list_mistakes(base)]
    predictions = [(one, predict([*found, one], shown.case)) for one in candidates]
    able = [one for one, predicted in predictions
            if predicted is not None and shown.agrees(predicted) and shown.tells_apart(predicted)]  # fmt: skip
    if able:
        return rank([[one] for one in able], shown, evidence, found)
    pairs = list_pairs(predictions, shown)
    able_pairs = []
    for pair in pairs:
        predicted = predict([*found, *pair], shown.case)
        if predicted is not None and shown.agrees(predicted):
            able_pairs.append([*pair])
    return rank(able_pairs, shown, evidence, found) if able_pairs else ([], [])


def list_pairs(
    predictions: Sequence[tuple[ModelMistake, np.ndarray | None]], shown: Observation
) -> list[tuple[ModelMistake, ModelMistake]]:
    """Pairs of mistakes that change this answer, each in its largest scope."""
    distinct: dict[bytes, ModelMistake] = {}
    for one, predicted in predictions:
        if predicted is not None and np.isfinite(predicted).all() and shown.tells_apart(predicted):
            distinct.setdefault(np.round(predicted, 9).tobytes(), one)
    return [*combinations(distinct.values(), 2)][:MOST_PAIRS]


def rank(
    sets: Sequence[list[ModelMistake]], shown: Observation, evidence: Sequence[Observation],
    found: Sequence[ModelMistake],
) -> tuple[list[ModelMistake], list[ModelMistake]]:  # fmt: skip
    """The set that explains most failing cases with least against it; the first of equal ones has the largest scope."""
    scores = []
    for chosen in sets:
        explained, against = 0, 0
        for one in evidence:
            predicted = predict([*found, *chosen], one.case)
            agrees = predicted is not None and one.agrees(predicted)
            explained += agrees and one.failed
            against += not agrees and not one.failed
        scores.append((against - explained, against))
    best = min(scores)
    equal = [chosen for chosen, score in zip(sets, scores, strict=True) if score == best]
    names, rivals = {equal[0][0].id}, []
    chosen = predict([*found, *equal[0]], shown.case)
    for other in equal[1:]:
        predicted = predict([*found, *other], shown.case)
        # What predicts the same numbers is the same mistake in this model, in other words.
        if other[0].id not in names and not np.array_equal(predicted, chosen):  # type: ignore[arg-type]
            names.add(other[0].id)
            rivals.append(other[0])
    return equal[0], rivals


# --- where ------------------------------------------------------------------------------------------------------------


def find_step(mistakes: Sequence[ModelMistake], case: ModelCase) -> str:
    """Return the first sublayer in which the definition with these mistakes computes something else."""
    right: dict[str, np.ndarray] = {}
    case.computation.run(watch=lambda name, result: right.setdefault(name, np.asarray(result)))
    wrong: list[str] = []

    def watch(name: str, result: object) -> None:
        array, due = np.asarray(result), right.get(name)
        scale = CHANGED if due is None or due.size == 0 else CHANGED * np.nanmax(np.abs(due))
        if not wrong and (due is None or array.shape != due.shape or not np.all(np.abs(array - due) <= scale)):
            wrong.append(name)

    try:
        apply_all(mistakes, case.computation).run(watch=watch)
    except (ValueError, TypeError, IndexError, AttributeError):
        return ""
    if not wrong:  # a step is not taken
        scope = mistakes[0].scope
        return name_sublayer(scope[0] if scope else "norm", case)
    return name_sublayer(wrong[0], case)


def name_sublayer(step: str, case: ModelCase) -> str:
    """Return the sublayer that a step belongs to: "blocks.0.attention_norm" belongs to "blocks.0.attention"."""
    path = step.partition(":")[0].strip()
    if "relative_position_bias" in step:  # it is a part of all attentions, and the first is wrong
        stack = path.rpartition("relative_positions")[0] or ("decoder." if path.startswith("decoder") else "")
        first = [name for name in list_sublayers(case.checkpoint) if name.startswith(stack)]
        return shorten(first[0] if first else path, case)
    if "blocks." not in path:
        words = path.split(".")
        part = next((word for word in words if word in ("embedding", "norm", "output")), words[0])
        stack = f"{words[0]}." if words[0] in ("encoder", "decoder") else ""
        part = "output" if not path or part in ("squeeze", "shrink") else part
        return shorten(f"{stack}{part}", case)
    words = path.split(".")
    at = words.index("blocks")
    names = [name for name in list_sublayers(case.checkpoint) if path.startswith(name)]
    if names:
        return shorten(names[0], case)
    sublayer = words[at + 2] if len(words) > at + 2 else ""
    known = ("self_attention", "cross_attention", "attention", "feed_forward")
    part = next((name for name in known if sublayer.startswith(name)), known[2])
    full = ".".join([*words[: at + 2], part])
    every = [name for name in list_sublayers(case.checkpoint) if name.startswith(".".join(words[: at + 2]) + ".")]
    return shorten(full if full in every else every[0] if every else full, case)


def shorten(path: str, case: ModelCase) -> str:
    """Leave out the name of a model's only stack."""
    stacks = {word for word in ("encoder", "decoder") if hasattr(case.checkpoint.places, word)}
    if len(stacks) == 1:
        return path.removeprefix(f"{stacks.pop()}.")
    return path


# --- where no known mistake explains it -------------------------------------------------------------------------------


def describe_unknown(
    wrong: Sequence[Observation], remaining: Sequence[Observation], isolated: Sequence[Observation],
    shown: Observation, ask: Ask,
) -> PortCause:  # fmt: skip
    """Return a cause by its place alone."""
    first = wrong[0]
    if first.case.sublayer:
        step = shorten(first.case.sublayer, first.case)
    elif first.case.sublayer == "":
        step = "embedding"
    else:
        step = find_prefix(shown, ask)
    narrow = next((dtype for dtype in ("float16", "bfloat16") if all(is_narrow(one, dtype) for one in wrong)), "")
    return PortCause(step, (), tuple(remaining), narrow=narrow)


def find_prefix(shown: Observation, ask: Ask) -> str:
    """Return the sublayer with which the model becomes wrong, when one after the other is let in."""
    names = [*list_sublayers(shown.case.checkpoint)]
    low, high = 0, len(names)  # right with the first `low`, wrong with the first `high`
    while high - low > 1:
        middle = (low + high) // 2
        paths = list_sublayers(shown.case.checkpoint)
        silent = [path for name in names[middle:] for path in paths[name]]
        checkpoint = shown.case.checkpoint.change(dict.fromkeys(silent, 0.0))
        (answer,) = ask([replace(shown.case, checkpoint=checkpoint, sublayer="")])
        low, high = (low, middle) if answer.failed else (middle, high)
    return shorten(names[high - 1], shown.case) if names else ""


def is_narrow(one: Observation, dtype: str) -> bool:
    """Whether the error is one that arithmetic in 16 bits makes, and no larger."""
    if one.case.dtype not in ("float32", "float64"):
        return False
    right, bound = noise_bound(one.case.computation, dtype, runs=16)
    got = np.asarray(one.answer.result).astype(float)
    return bool(np.all(one.case.select(np.abs(got - right) <= bound)))
