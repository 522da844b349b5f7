"""From wrong answers of a port to causes: the sublayer where it begins, and the known mistake that explains it.

1. Isolate. The port is asked about the failing case again with checkpoints in which one sublayer alone does anything,
   and none. So the first wrong sublayer shows from outside, whatever the framework.
2. Explain. Every known mistake, in every scope, is tried on the first failing one of these cases. Those that predict
   the answer are held against all other answers, right and wrong ones alike.
3. Go on with what is left, as there may be several mistakes: with those that are found already, one more is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from conformance.checks.findings import NotANumber
from conformance.ports.cases import ModelCase, list_isolated, list_sublayers
from conformance.ports.checkpoints import Config
from conformance.ports.computation import Computation
from conformance.ports.mistakes.attention import EMPTY_ROWS
from conformance.ports.mistakes.catalogue import list_mistakes
from conformance.ports.mistakes.mistake import ModelMistake
from conformance.ports.noise import noise_bound
from conformance.ports.observation import MARGIN, TWICE, Observation
from specification.checkpoints import flatten

Ask = Callable[[Sequence[ModelCase]], list[Observation]]

MOST_CAUSES = 4
LARGE = 2**20
"""Numbers of a checkpoint from which on a prediction takes a second: real ones have more, and small ones 10,000."""
CLEAR = 1e3
"""An error of so many bounds tells any two mistakes apart that differ by a thousandth of it."""
MOST_PAIRS = 2000
"""Pairs of mistakes that are tried on a case that no single one explains: ten seconds of a small model."""
NEAR = 1e4
"""A prediction so many bounds away is told by no noise of its own: that of a computation with a mistake is rarely more
than a hundred times the right one's."""
FEW_RUNS = 16
"""Of the noisy definition, where a bound decides no verdict."""
NUDGE = 2.0**-7
"""Relative changes of weights that change every rounding to 16 bits, and little else."""
UNRELATED = 0.5
"""A correlation of two errors: of roundings it is near 0, of another formula near 1."""
IMPOSSIBLE = (ValueError, TypeError, IndexError, AttributeError)
"""What the definition raises where a mistake leaves nothing that can be computed."""
TINY = np.finfo(float).tiny
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
        failing: how many cases failed; with `step` not, where the whole pass is wrong.
        against: how many right answers speak against it. passing: of how many.
        alternatives: other mistakes that no case told apart from the first.
        narrow: the 16-bit dtypes whose arithmetic would explain the errors, where no mistake does.
        beside: fewer failing cases that nothing explains, with the same first wrong sublayer.
        settings: entries of the config that all failing cases have, and no others, where no mistake explains them.
    """

    step: str
    mistakes: tuple[ModelMistake, ...]
    observations: tuple[Observation, ...]
    failing: int = 0
    against: int = 0
    passing: int = 0
    alternatives: tuple[ModelMistake, ...] = ()
    narrow: tuple[str, ...] = ()
    beside: tuple[Observation, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

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
    if any(one.failed and not one.case.call.chunks for one in evidence):
        # What is wrong in the whole pass may show otherwise with a cache, or not at all.
        evidence = [one for one in evidence if not one.case.call.chunks]
    # A config in which nothing fails may have no place for the mistake, such as another activation.
    wrong_configs = [one.case.checkpoint.config for one in evidence if one.failed]
    other_configs = [one.case.checkpoint.config for one in evidence if one.case.checkpoint.config not in wrong_configs]
    evidence = [one for one in evidence if one.case.checkpoint.config in wrong_configs]
    asked = {*evidence}
    causes: list[PortCause] = []
    found: list[ModelMistake] = []
    first: list[Observation] = []
    while len(causes) < MOST_CAUSES:
        remaining = [one for one in evidence if one.failed and not explains(found, one)]
        if not remaining:
            break
        shown = choose_case(remaining)
        isolated = ask_alone(shown, ask) if shown.case.sublayer is None else []
        first = first or isolated
        evidence += isolated
        wrong = [one for one in (*isolated, shown) if one.failed and not explains(found, one)]
        # What is hardly wrong tells no mistake from the right result.
        wrong.sort(key=lambda one: one.finding.ratio <= MARGIN)
        chosen, rivals, effective = choose_mistakes(wrong[0], evidence, found)
        if not chosen and all(map(is_rotation_narrow, remaining)):
            passing = [one for one in asked if not one.failed]
            step, failing = find_place(wrong[0], shown, ask), len(asked) - len(passing)
            causes.append(PortCause(step, (NARROW_ROTATION,), tuple(remaining), failing, 0, len(passing)))
            break
        narrow = () if chosen else find_narrow(wrong[0], ask)
        if not chosen and not narrow and not is_large(shown):
            chosen, rivals = choose_pair(effective, wrong[0], evidence, found)
        if not chosen:
            causes = keep_whole(causes, asked)
            known = [one for cause in causes for one in cause.mistakes]
            remaining = [
                one for one in evidence if one in asked and one.failed and not explains(known, one)
            ] or remaining
            first_wrong = next(one for one in (*first, shown) if one.failed)
            place = find_place(wrong[0] if causes else first_wrong, shown, ask)
            causes = join_unexplained(causes, place, remaining, narrow, sum(one.failed for one in asked))
            settings = list_settings(wrong_configs, other_configs)
            causes = [one if one.mistakes else replace(one, settings=settings) for one in causes]
            break
        found = [*found, *chosen]
        explained = [one for one in evidence if one.failed and explains(found, one) and one not in known_cases(causes)]
        # Cases with a sublayer alone are asked for here, and count where nothing else shows the cause.
        shows = [one for one in explained if one in asked] or explained or wrong[:1]
        counted = [one for one in evidence if one in asked or shows[0] not in asked]
        passing = [one for one in counted if not one.failed]
        against = sum(not explains(found, one) for one in passing)
        failing = len(counted) - len(passing)
        step = find_step(chosen, shown.case)
        named, other = (tuple(shorten_scope(one, shown.case) for one in some) for some in (chosen, rivals))
        causes.append(PortCause(step, named, tuple(shows), failing, against, len(passing), other))
    return causes, first


def known_cases(causes: Sequence[PortCause]) -> set[Observation]:
    return {one for cause in causes for one in cause.observations}


def keep_whole(causes: Sequence[PortCause], asked: Collection[Observation]) -> list[PortCause]:
    """Return the first causes that explain most of what fails, or all of some config, where some is unexplained.

    What explains less was found for want of the right one. Nor do those after it hold, which count on it.
    """
    failing = [one for one in asked if one.failed]
    kept: list[PortCause] = []
    for cause in causes:
        own, before = {*cause.observations}, known_cases(kept)
        configs = [one.case.checkpoint.config for one in failing if one not in own and one not in before]
        whole = any(one.case.checkpoint.config not in configs for one in own)
        if not own <= {*failing} or not (whole or 2 * len(own) > len(failing)):
            break
        kept.append(cause)
    return kept


def join_unexplained(
    causes: Sequence[PortCause],
    place: str,
    remaining: Sequence[Observation],
    narrow: tuple[str, ...],
    failing: int,
) -> list[PortCause]:
    """Return the causes with failing cases that none explains.

    Few of them in a known cause's sublayer are probably the same mistake. Those that are most come first.
    """
    for number, cause in enumerate(causes):
        if cause.step == place and len(remaining) < len(cause.observations):
            return [*causes[:number], replace(cause, beside=tuple(remaining)), *causes[number + 1 :]]
    unexplained = PortCause(place, (), tuple(remaining), failing, narrow=narrow)
    return sorted([*causes, unexplained], key=lambda cause: -len(cause.observations))


def list_settings(wrong: Sequence[Config], others: Sequence[Config]) -> tuple[tuple[str, Any], ...]:
    """Return the entries that all configs with failing cases have in common, and that no other config has."""
    if not others:
        return ()
    return tuple(
        (key, value)
        for key, value in wrong[0].items()
        if all(config.get(key) == value for config in wrong) and not any(config.get(key) == value for config in others)
    )


def ask_alone(shown: Observation, ask: Ask) -> list[Observation]:
    """The answers with each sublayer alone; of a large checkpoint, up to the first that is wrong."""
    found: list[Observation] = []
    for case in list_isolated(shown.case.checkpoint, shown.case):
        found += [one for one in ask([case]) if one.has_numbers]
        if is_large(shown) and found and found[-1].failed:
            break
    return found


def is_large(one: Observation) -> bool:
    return len(one.case.checkpoint.values) > LARGE


def choose_case(failing: Sequence[Observation]) -> Observation:
    """The failing case to look into: of a small whole model, clearly wrong, with small inputs."""

    def merit(one: Observation) -> tuple[bool, bool, float, int]:
        size = sum(array.size for array in one.case.call.inputs)
        return is_large(one), one.case.sublayer is not None, -min(one.finding.ratio, CLEAR), size

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
    except IMPOSSIBLE:
        return None


def explains(mistakes: Sequence[ModelMistake], one: Observation) -> bool:
    """Whether the answer is what a port with these mistakes gives; with none, whether it is right."""
    if not mistakes:
        return not one.failed
    predicted = predict(mistakes, one.case)
    return predicted is not None and agrees(mistakes, one, predicted)


def agrees(mistakes: Sequence[ModelMistake], one: Observation, predicted: np.ndarray) -> bool:
    """Whether the answer is within the bound of a prediction; where it is near, that is the bound of its own noise."""
    distance = one.distance(predicted)
    if distance <= TWICE or not distance <= NEAR:
        return distance <= TWICE
    try:
        change = partial(apply_all, mistakes)
        right, bound = noise_bound(one.case.computation, one.case.dtype, runs=FEW_RUNS, change=change)
    except IMPOSSIBLE:
        return False
    got = np.asarray(one.answer.result).astype(float)
    return bool(np.all(one.case.select(np.abs(got - right) <= TWICE * bound)))


Effective = list[tuple[ModelMistake, np.ndarray]]
"""Mistakes that change an answer, with what they predict."""


def choose_mistakes(
    shown: Observation, evidence: Sequence[Observation], found: Sequence[ModelMistake]
) -> tuple[list[ModelMistake], list[ModelMistake], Effective]:
    """Return the mistake that explains this answer and most others, beside those found, as a list; rivals of equal
    merit; and all mistakes that change the answer.
    """
    able: list[list[ModelMistake]] = []
    effective: Effective = []
    without_effect: set[str] = set()
    for one in list_mistakes(apply_all(found, shown.case.computation)):
        # What changes nothing everywhere changes nothing in a part; nor does what is made in another sublayer than the
        # only one.
        if one.scope and (one.id in without_effect or not is_reached(one.scope, shown.case.sublayer)):
            continue
        predicted = predict([*found, one], shown.case)
        if predicted is None:
            continue
        if not shown.tells_apart(predicted):
            without_effect |= {one.id} if not one.scope else set()
            continue
        effective.append((one, predicted))
        if agrees([*found, one], shown, predicted):
            able.append([one])
    return *(rank(able, shown, evidence, found) if able else ([], [])), effective


def is_reached(scope: Sequence[str], sublayer: str | None) -> bool:
    """Whether a mistake in a scope may change a model with that sublayer alone."""
    if not sublayer:
        return True
    return any("blocks." not in part or sublayer.startswith(part) or part.startswith(sublayer) for part in scope)


def choose_pair(
    effective: Effective, shown: Observation, evidence: Sequence[Observation], found: Sequence[ModelMistake]
) -> tuple[list[ModelMistake], list[ModelMistake]]:
    """Return two mistakes that explain this answer together, which none does alone."""
    able: list[list[ModelMistake]] = []
    for pair in list_pairs(effective):
        predicted = predict([*found, *pair], shown.case)
        if predicted is not None and shown.distance(predicted) <= TWICE and shown.tells_apart(predicted):
            able.append([*pair])
    return rank(able, shown, evidence, found) if able else ([], [])


def list_pairs(effective: Effective) -> list[tuple[ModelMistake, ModelMistake]]:
    """Pairs of mistakes that change an answer, each in its largest scope."""
    distinct: dict[bytes, ModelMistake] = {}
    for one, predicted in effective:
        if np.isfinite(predicted).all():
            distinct.setdefault(np.round(predicted, 9).tobytes(), one)
    return [*combinations(distinct.values(), 2)][:MOST_PAIRS]


def rank(
    sets: Sequence[list[ModelMistake]],
    shown: Observation,
    evidence: Sequence[Observation],
    found: Sequence[ModelMistake],
) -> tuple[list[ModelMistake], list[ModelMistake]]:
    """The set that explains most failing cases with least against it; the first of equal ones has the largest scope."""
    scores = []
    for chosen in sets:
        agreed = [explains([*found, *chosen], one) for one in evidence]
        explained = sum(fits and one.failed for fits, one in zip(agreed, evidence, strict=True))
        against = sum(not fits and not one.failed for fits, one in zip(agreed, evidence, strict=True))
        scores.append((against - explained, against))
    best = min(scores)
    equal = [chosen for chosen, score in zip(sets, scores, strict=True) if score == best]
    names, rivals = {equal[0][0].id}, []
    chosen_result = predict([*found, *equal[0]], shown.case)
    for other in equal[1:]:
        predicted = predict([*found, *other], shown.case)
        # What predicts the same numbers is the same mistake in this model, in other words.
        if other[0].id not in names and not np.array_equal(predicted, chosen_result):  # type: ignore[arg-type]
            names.add(other[0].id)
            rivals.append(other[0])
    return equal[0], rivals


def explain_empty_rows(observations: Iterable[Observation]) -> PortCause | None:
    """Return the cause of NaN where it is at all positions to which rows without keys bring it."""
    mistake = EMPTY_ROWS.limit_to(())
    wrong = [one for one in observations if isinstance(one.detail, NotANumber)]
    explained = []
    for one in wrong:
        predicted, got = predict([mistake], one.case), np.asarray(one.answer.result).astype(float)
        if predicted is not None and np.array_equal(*(np.isnan(one.case.select(array)) for array in (predicted, got))):
            explained.append(one)
    if not explained:
        return None
    return PortCause(find_step([mistake], explained[0].case), (mistake,), tuple(explained), len(wrong))


# --- where ------------------------------------------------------------------------------------------------------------


def find_step(mistakes: Sequence[ModelMistake], case: ModelCase) -> str:
    """Return the first sublayer in which the definition with these mistakes computes something else, or nothing."""
    right: dict[str, np.ndarray] = {}
    wrong: dict[str, np.ndarray] = {}
    case.computation.run(watch=lambda name, result: right.setdefault(name, np.asarray(result)))
    try:
        computation = apply_all(mistakes, case.computation)
        computation.run(watch=lambda name, result: wrong.setdefault(name, np.asarray(result)))
    except IMPOSSIBLE:
        return ""
    for name, due in right.items():
        array = wrong.get(name)
        if array is None and ": " in name:  # a sum may have another name in another order
            continue
        scale = CHANGED * np.nanmax(np.abs(due), initial=0)
        if array is None or array.shape != due.shape or not np.all(np.abs(array - due) <= scale):
            return name_sublayer(name, case)
    return ""


def name_sublayer(step: str, case: ModelCase) -> str:
    """Return the sublayer that a step belongs to: "blocks.0.attention_norm" belongs to "blocks.0.attention"."""
    path, _, kind = step.partition(": ")
    if kind.partition(" ")[0] in ("shrink", "squeeze"):  # what stands around the output layer
        return "output"
    if "relative_position_bias" in step:  # it is a part of all attentions, and the first is wrong
        stack = path.rpartition("relative_positions")[0] or ("decoder." if path.startswith("decoder.") else "")
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


def shorten_scope(mistake: ModelMistake, case: ModelCase) -> ModelMistake:
    return replace(mistake, scope=tuple(shorten(part, case) for part in mistake.scope))


# --- where no known mistake explains it -------------------------------------------------------------------------------


def find_place(first: Observation, shown: Observation, ask: Ask) -> str:
    """Return the sublayer in which the first wrong case, of those with one sublayer alone, is wrong."""
    if first.case.sublayer:
        return shorten(first.case.sublayer, first.case)
    return find_cut(first, ask) if first.case.sublayer == "" else find_prefix(shown, ask)


def find_narrow(one: Observation, ask: Ask) -> tuple[str, ...]:
    """Return the 16-bit dtypes whose rounding explains an error: bfloat16 alone where it is too large for float16."""
    if is_narrow(one, "float16", ask):
        return "float16", "bfloat16"
    return ("bfloat16",) if is_narrow(one, "bfloat16", ask) else ()


NARROW_ROTATION = ModelMistake(
    "attention.rotary-in-float32", "POS-3", "angles, or their sines and cosines, are computed in float32", lambda c: c
)
"""Of a model in float64. It has no one prediction, as libraries differ in their last bits: its noise is what fits."""


def is_rotation_narrow(one: Observation) -> bool:
    """Whether an answer in float64 is as far off as rotation in float32 explains, and nothing else does."""
    if one.case.dtype != "float64" or not one.has_numbers:
        return False
    operations = ("rotary_table", "rotate")
    right, bound = noise_bound(one.case.computation, "float32", runs=FEW_RUNS, operations=operations)
    error = np.abs(np.asarray(one.answer.result).astype(float) - right)
    return bool(np.all(one.case.select(error <= bound + one.case.bound)))


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


def find_cut(first: Observation, ask: Ask) -> str:
    """Return where a model without sublayers is wrong: what comes before a norm, or after it.

    A norm whose weight is 0 gives its bias, whatever comes before it. If the port is wrong all the same, then it is so
    after that norm. Norms that follow one another in the residual stream are tried from the last to the first.
    """
    case, norms = first.case, list[str]()
    case.computation.run(watch=lambda name, _: norms.append(name))
    after = case.checkpoint.configuration.norm_order == "post"
    norms = [name for name in norms if is_norm(name) and (after or "blocks." not in name)]
    cut = -0.0 if not case.checkpoint.configuration.norm.endswith("_plus_one") else -1.0
    place = -1
    for number in reversed(range(len(norms))):
        changed = case.checkpoint.change({f"{norms[number]}.weight": cut})
        (answer,) = ask([replace(case, checkpoint=changed)])
        if answer.failed:
            place = number
            break
    if place + 1 >= len(norms):
        return "output" if norms else "embedding"
    if not after:  # a wrong last norm is a known mistake, nearly always
        return "output" if norms and is_output_wrong(case, norms[-1], cut, ask) else "embedding"
    following = name_sublayer(norms[place + 1], case)
    return following if "blocks." not in following else first_of_kind(following, case)


def is_output_wrong(case: ModelCase, norm: str, cut: float, ask: Ask) -> bool:
    """Whether the output layer is wrong after a norm without bias, which gives 0 where its weight is 0.

    If the norm lets one column through, the logits are that column's weights times a number, whatever comes before.
    """
    places = flatten(case.checkpoint.places).get(f"{norm}.weight")
    if places is None:
        return False
    weight = np.full(places.shape, cut)
    weight[0] += 1
    (answer,) = ask([replace(case, checkpoint=case.checkpoint.change({f"{norm}.weight": weight}))])
    if not answer.failed or not answer.has_numbers:
        return False
    got, due = np.asarray(answer.answer.result).astype(float), answer.case.exact
    factor = np.sum(got * due, axis=-1, keepdims=True) / np.maximum(np.sum(due**2, axis=-1, keepdims=True), TINY)
    return not np.all(np.abs(got - factor * due) <= TWICE * answer.case.bound * np.maximum(np.abs(factor), 1))


def is_norm(name: str) -> bool:
    return name.rpartition(".")[2].endswith("norm") or name == "norm"


def first_of_kind(sublayer: str, case: ModelCase) -> str:
    """Return the same sublayer of the first block: most mistakes are made in all blocks, and the last hides others."""
    words = sublayer.split(".")
    words[words.index("blocks") + 1] = "0"
    return ".".join(words)


def is_narrow(one: Observation, dtype: str, ask: Ask) -> bool:
    """Whether the error is one of rounding to 16 bits: as large, and another one for weights that differ by as much.

    An error that is no rounding hardly changes with the weights.
    """
    if one.case.dtype not in ("float32", "float64"):
        return False
    right, bound = noise_bound(one.case.computation, dtype, runs=FEW_RUNS)
    error = np.asarray(one.answer.result).astype(float) - right
    if not np.all(one.case.select(np.abs(error) <= bound)):
        return False
    checkpoint = one.case.checkpoint
    factors = 1 + NUDGE * np.random.default_rng(0).standard_normal(checkpoint.values.shape)
    nudged = replace(checkpoint, values=checkpoint.values * factors).round(one.case.dtype)
    (answer,) = ask([replace(one.case, checkpoint=nudged)])
    if not answer.has_numbers:
        return False
    other = np.asarray(answer.answer.result).astype(float) - answer.case.exact
    errors = one.case.select(error).ravel(), one.case.select(other).ravel()
    return abs(float(np.corrcoef(*errors)[0, 1])) < UNRELATED
