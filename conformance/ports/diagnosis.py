"""From wrong answers of a port to causes: the sublayer where it begins, and the known mistake that explains it.

1. Isolate. The port is asked about the failing case again with checkpoints in which one sublayer alone does anything,
   and none. So the first wrong sublayer shows from outside, whatever the framework.
2. Explain. Every known mistake, in every scope, is tried on the first failing one of these cases. Those that predict
   the answer are held against all other answers, right and wrong ones alike.
3. Go on with what is left, as there may be several mistakes: with those that are found already, one more is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from conformance.checks.findings import NotANumber
from conformance.ports.cases import ModelCase, isolate_sublayer, list_isolated, list_sublayers
from conformance.ports.checkpoints import Config
from conformance.ports.computation import Computation, Step
from conformance.ports.mistakes.attention import EMPTY_ROWS
from conformance.ports.mistakes.catalogue import list_mistakes
from conformance.ports.mistakes.constants import CONSTANTS, DIGITS, Constant, fit, list_starts, measure_largest
from conformance.ports.mistakes.mistake import ModelMistake, limit_mistakes
from conformance.ports.mistakes.models import list_ignored_options
from conformance.ports.noise import noise_bound
from conformance.ports.observation import MARGIN, TWICE, Observation
from specification.checkpoints import flatten
from specification.configuration import Configuration

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
FAR = 100.0
"""Bounds by which an answer must be wrong where a number is fitted to it: no other one then explains it by chance."""
PROBED = 1.5
"""Of what is due, a number that shows which steps a constant changes."""
FEW_RUNS = 16
"""Of the noisy definition, where a bound decides no verdict."""
NUDGE = 2.0**-7
"""Relative changes of weights that change every rounding to 16 bits, and little else."""
UNRELATED = 0.5
"""A correlation of two errors: of roundings it is near 0, of another formula near 1."""
PARALLEL = 0.999
"""A cosine: of vectors that differ by another embedding it is near 0, by roundings to 16 bits 1 - 2 ** -14 or more."""
IMPOSSIBLE = (ValueError, TypeError, LookupError, AttributeError)
"""What the definition raises where a mistake leaves nothing that can be computed."""
TINY = np.finfo(float).tiny
CHANGED = 1e-9
"""Of a step's largest number: what a step differs by that a mistake changes. Rounding in float64 changes 1e-12."""


@dataclass(frozen=True)
class PortCause:
    """One thing that is wrong with a port.

    Attributes:
        step: the first wrong sublayer, by the definition's path; "embedding", "norm" or "output" for what comes before
            and after the blocks, "embedding or norm" where these are not told apart; empty where nothing is
            known.
        mistakes: the known ones that explain it together, one in most cases; none where none does.
        observations: failing cases that it explains, the one that shows it best first.
        failing: how many cases failed; with `step` not, where the whole pass is wrong.
        against: how many right answers speak against it. passing: of how many.
        alternatives: other mistakes that no case told apart from the first.
        narrow: the 16-bit dtypes whose arithmetic would explain the errors, where no mistake does.
        beside: fewer failing cases that nothing explains, with the same first wrong sublayer.
        settings: entries of the config that all its cases have, and no others, where no mistake explains them or a port
            makes it in these configs alone.
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
    asked = [one for one in observations if one.has_numbers]
    if any(one.failed and not one.case.call.chunks for one in asked):
        # What is wrong in the whole pass may show otherwise with a cache, or not at all.
        asked = [one for one in asked if not one.case.call.chunks]
    # A config in which nothing fails may have no place for the mistake, such as another activation.
    configs = [one.case.checkpoint.config for one in asked]
    configurations = [one.case.checkpoint.configuration for one in asked]
    wrong_configs = [one.case.checkpoint.config for one in asked if one.failed]
    right = [one for one in asked if one.case.checkpoint.config not in wrong_configs]
    asked = [one for one in asked if one.case.checkpoint.config in wrong_configs]
    alone: dict[int, list[Observation]] = {}
    """By config, what a case of it gives with each sublayer alone."""
    sets: list[MistakeSet] = []
    first: list[Observation] = []
    while len(sets) < MOST_CAUSES:
        remaining = list_unexplained(sets, asked)
        added, narrow = None, tuple[str, ...]()
        for shown in choose_cases(remaining):
            if shown.case.sublayer is None and config_of(shown) not in alone:
                alone[config_of(shown)] = ask_alone(shown, ask)
                first = first or alone[config_of(shown)]
            evidence = [*asked, *(one for answers in alone.values() for one in answers)]
            added = choose_mistakes(find_wrong(sets, shown, alone), evidence, sets, configurations)
            if added is not None:
                break
        if added is None and remaining:
            shown = choose_cases(remaining)[0]
            wrong = find_wrong(sets, shown, alone)
            if all(map(is_rotation_narrow, remaining)):
                return [name_rotation(find_place(wrong, shown, ask), remaining, asked)], first
            added = None if is_large(shown) else choose_constant(wrong, evidence, sets)
            if added is None:
                narrow = find_narrow(wrong, ask) or find_narrow(choose_ordinary(remaining), ask)
                added = None if narrow or is_large(shown) else choose_pair(wrong, evidence, sets)
        if added is None:
            break
        sets.append(added)
    remaining = list_unexplained(sets, asked)
    sets = keep_needed(sets, asked)
    if remaining:
        sets = keep_whole(sets, asked)
        remaining = list_unexplained(sets, asked)
    causes = [make_cause(chosen, sets, asked) for chosen in sets]
    causes = [replace(one, settings=find_condition(one, right, configs)) for one in causes]
    if remaining:
        shown = choose_cases(remaining)[0]
        place = find_place(find_wrong(sets, shown, alone), shown, ask)
        settings = list_settings([one.case.checkpoint.config for one in remaining], configs)
        causes = join_unexplained(causes, place, remaining, narrow, sum(one.failed for one in asked))
        causes = [one if one.mistakes else replace(one, settings=settings) for one in causes]
    return causes, first


@dataclass(frozen=True)
class MistakeSet:
    """Mistakes that explain a failing case together, one in most cases.

    Attributes:
        mistakes: the known ones.
        rivals: other mistakes that no case told apart from the first.
        shown: the case.
        configs: identities of the configs in which a port makes them: an entry of a config may be read wrong in some.
    """

    mistakes: tuple[ModelMistake, ...]
    rivals: tuple[ModelMistake, ...]
    shown: Observation
    configs: frozenset[int]


def config_of(one: Observation) -> int:
    return id(one.case.checkpoint.config)


def known_mistakes(sets: Sequence[MistakeSet], one: Observation) -> list[ModelMistake]:
    """Return those that a port makes in a case."""
    return [mistake for chosen in sets if config_of(one) in chosen.configs for mistake in chosen.mistakes]


def list_unexplained(sets: Sequence[MistakeSet], asked: Iterable[Observation]) -> list[Observation]:
    return [one for one in asked if one.failed and not explains(known_mistakes(sets, one), one)]


def find_wrong(
    sets: Sequence[MistakeSet], shown: Observation, alone: Mapping[int, Sequence[Observation]]
) -> Observation:
    """Return the first unexplained answer with a sublayer alone, or the case itself."""
    answers = alone.get(config_of(shown), ()) if shown.case.sublayer is None else ()
    # What is hardly wrong tells no mistake from the right result.
    return min(list_unexplained(sets, [*answers, shown]), key=lambda one: one.finding.ratio <= MARGIN)


def keep_needed(sets: Sequence[MistakeSet], asked: Sequence[Observation]) -> list[MistakeSet]:
    """Return the sets without which some case that was asked is not explained; the latest go first."""
    kept = [*sets]
    for chosen in reversed(sets):
        if not explains_alone(chosen, kept, asked):
            kept.remove(chosen)
    return kept


def explains_alone(
    chosen: MistakeSet, sets: Sequence[MistakeSet], asked: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return the failing cases that all sets explain, and all but the chosen one do not; those it explains first."""
    others = [one for one in sets if one is not chosen]
    left = [one for one in list_unexplained(others, asked) if explains(known_mistakes(sets, one), one)]
    return tuple(sorted(left, key=lambda one: not explains(chosen.mistakes, one)))


def keep_whole(sets: Sequence[MistakeSet], asked: Sequence[Observation]) -> list[MistakeSet]:
    """Return the first sets that explain most of what fails, or all of some config, where some is unexplained.

    What explains less was found for want of the right one. Nor do those after it hold, which count on it.
    """
    failing, kept = [one for one in asked if one.failed], list[MistakeSet]()
    unexplained = {config_of(one) for one in list_unexplained(sets, asked)}
    for chosen in sets:
        own = explains_alone(chosen, sets, asked)
        if 2 * len(own) <= len(failing) and unexplained >= {*map(config_of, own)}:
            break
        kept.append(chosen)
    return kept


def make_cause(chosen: MistakeSet, sets: Sequence[MistakeSet], asked: Sequence[Observation]) -> PortCause:
    case, others = chosen.shown.case, [one for one in sets if one is not chosen]
    named, other = (tuple(shorten_scope(one, case) for one in some) for some in (chosen.mistakes, chosen.rivals))
    passing = [one for one in asked if not one.failed]
    against = [one for one in passing if not explains(known_mistakes(sets, one), one)]
    against = [one for one in against if explains(known_mistakes(others, one), one)]
    own, failing = explains_alone(chosen, sets, asked), len(asked) - len(passing)
    whole = next((one.case for one in own if one.case.sublayer is None), case)  # where the first one is heard too
    return PortCause(find_step(chosen.mistakes, whole), named, own, failing, len(against), len(passing), other)


def name_rotation(place: str, remaining: Sequence[Observation], asked: Sequence[Observation]) -> PortCause:
    failing = sum(one.failed for one in asked)
    return PortCause(place, (NARROW_ROTATION,), tuple(remaining), failing, 0, len(asked) - failing)


def join_unexplained(
    causes: Sequence[PortCause],
    place: str,
    remaining: Sequence[Observation],
    narrow: tuple[str, ...],
    failing: int,
) -> list[PortCause]:
    """Return the causes with failing cases that none explains.

    Few of them in a known cause's sublayer are probably the same mistake. Where they are most there, the name fits by
    chance. Those that are most come first.
    """
    doubtful = [one for one in causes if one.step == place and len(one.observations) <= len(remaining)]
    causes = [one for one in causes if one not in doubtful]
    remaining = [*remaining, *(shown for one in doubtful for shown in one.observations)]
    for number, cause in enumerate(causes):
        if cause.step == place and len(remaining) < len(cause.observations):
            return [*causes[:number], replace(cause, beside=tuple(remaining)), *causes[number + 1 :]]
    unexplained = PortCause(place, (), tuple(remaining), failing, narrow=narrow)
    return sorted([*causes, unexplained], key=lambda cause: -len(cause.observations))


def find_condition(
    cause: PortCause, right: Iterable[Observation], configs: Sequence[Config]
) -> tuple[tuple[str, Any], ...]:
    """Return the entries of the configs of a cause, where a port that makes the mistake in others fails there too."""
    if all(explains(cause.mistakes, one) for one in right):
        return ()
    return list_settings([one.case.checkpoint.config for one in cause.observations], configs)


def list_settings(wrong: Sequence[Config], configs: Sequence[Config]) -> tuple[tuple[str, Any], ...]:
    """Return the entries that all wrong configs have in common, and that no other config has."""
    others = [config for config in configs if config not in wrong]
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


def choose_cases(failing: Sequence[Observation]) -> list[Observation]:
    """Return the failing case of each config to look into: of a small whole model, clearly wrong, with small inputs."""

    def merit(one: Observation) -> tuple[bool, bool, float, int]:
        size = sum(array.size for array in one.case.call.inputs)
        return is_large(one), one.case.sublayer is not None, -min(one.finding.ratio, CLEAR), size

    found: dict[int, Observation] = {}
    for one in sorted(failing, key=merit):
        found.setdefault(config_of(one), one)
    return [*found.values()]


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


def choose_mistakes(
    shown: Observation,
    evidence: Sequence[Observation],
    sets: Sequence[MistakeSet],
    configurations: Sequence[Configuration],
) -> MistakeSet | None:
    """Return the mistake that explains this answer and most others, beside those of the sets; None where none does.

    Args:
        shown: the answer.
        evidence: all answers.
        sets: what is known.
        configurations: of all configs, also those in which nothing fails.
    """
    found = known_mistakes(sets, shown)
    options = [*list_ignored_options(shown.case.checkpoint.configuration, configurations)]
    effective = list_effective(shown, found, options)
    able = [[one] for one, predicted in effective if agrees([*found, one], shown, predicted)]
    return rank(able, shown, evidence, sets) if able else None


def list_effective(
    shown: Observation, found: Sequence[ModelMistake], options: Sequence[ModelMistake] = ()
) -> Iterator[tuple[ModelMistake, np.ndarray]]:
    """Give the mistakes that change an answer beside those found, with what they predict; options are the last."""
    without_effect: set[str] = set()
    try:
        computation = apply_all(found, shown.case.computation)
    except IMPOSSIBLE:  # what is found in another config may leave nothing that can be computed here
        return
    for one in (*list_mistakes(computation), *options):
        # What changes nothing everywhere changes nothing in a part; nor does what is made in another sublayer than the
        # only one.
        if one.scope and (one.id in without_effect or not is_reached(one.scope, shown.case.sublayer)):
            continue
        predicted = predict([*found, one], shown.case)
        if predicted is None:
            continue
        # What alone changes nothing is right: beside a mistake, it takes that back.
        if not shown.tells_apart(predicted) or (found and is_right(predict([one], shown.case), shown)):
            without_effect |= {one.id} if not one.scope else set()
            continue
        yield one, predicted


def is_right(predicted: np.ndarray | None, one: Observation) -> bool:
    return predicted is not None and not one.tells_apart(predicted)


def is_reached(scope: Sequence[str], sublayer: str | None) -> bool:
    """Whether a mistake in a scope may change a model with that sublayer alone."""
    if not sublayer:
        return True
    return any("blocks." not in part or sublayer.startswith(part) or part.startswith(sublayer) for part in scope)


def choose_constant(
    shown: Observation, evidence: Sequence[Observation], sets: Sequence[MistakeSet]
) -> MistakeSet | None:
    """Return a number with which the definition explains all that is left, where an answer is far from right, or None.

    What explains less would be one of many numbers that come near.
    """
    if not shown.finding.ratio > FAR:
        return None
    found = known_mistakes(sets, shown)
    failing = list_unexplained(sets, evidence)
    fitted = (one for constant in CONSTANTS for one in fit_constant(constant, shown, found))
    able = [[one] for one in fitted if all(explains([*known_mistakes(sets, other), one], other) for other in failing)]
    return rank(able, shown, evidence, sets) if able else None


def fit_constant(constant: Constant, shown: Observation, found: Sequence[ModelMistake]) -> Iterator[ModelMistake]:
    """Give the number in every scope in which it explains an answer beside the mistakes found, with few digits."""
    due = [value for step in list_steps(shown.case, constant.kinds) if (value := constant.due(step)) is not None]
    if not due:
        return
    values: dict[bytes, float | None] = {}
    """By what a scope predicts: scopes may change this answer alike, and others not."""
    for scoped in limit_mistakes(shown.case.computation, (constant.make(PROBED * due[0]),)):
        predicted = predict([*found, scoped], shown.case)
        if predicted is None or not shown.tells_apart(predicted):
            continue

        def make(value: float, scope: Sequence[str] = scoped.scope) -> ModelMistake:
            return constant.make(value).limit_to(tuple(scope))

        def leave(value: float, make: Callable[[float], ModelMistake] = make) -> np.ndarray | None:
            predicted = predict([*found, make(value)], shown.case)
            return None if predicted is None else shown.errors(predicted)

        key = predicted.tobytes()
        if key not in values:
            value = fit(leave, list_starts(constant, due[0]), bool(constant.values))
            candidates = () if value is None else (*(float(f"{value:.{digits}g}") for digits in DIGITS), value)
            # With a wrong number, a computation may be noisier, which would explain anything.
            values[key] = next((one for one in candidates if measure_largest(leave(one)) <= TWICE), None)
        fitting = values[key]
        if fitting is not None:
            yield make(fitting)


def list_steps(case: ModelCase, kinds: Sequence[str]) -> list[Step]:
    """Return the steps of these kinds, in order."""
    steps: list[Step] = []

    def note(step: Step) -> Step:
        if step.kind in kinds:
            steps.append(step)
        return step

    case.computation.rewrite(note).run()
    return steps


def choose_pair(shown: Observation, evidence: Sequence[Observation], sets: Sequence[MistakeSet]) -> MistakeSet | None:
    """Return two mistakes that explain all that fails in the config of this answer together, as none does alone."""
    found = known_mistakes(sets, shown)
    failing = [one for one in evidence if one.failed and config_of(one) == config_of(shown)]
    able: list[list[ModelMistake]] = []
    for pair in list_pairs(list_effective(shown, found)):
        predicted = predict([*found, *pair], shown.case)
        if predicted is not None and shown.distance(predicted) <= TWICE and shown.tells_apart(predicted):
            able += [[*pair]] * all(explains([*found, *pair], one) for one in failing)
    return rank(able, shown, evidence, sets) if able else None


def list_pairs(effective: Iterable[tuple[ModelMistake, np.ndarray]]) -> list[tuple[ModelMistake, ModelMistake]]:
    """Pairs of mistakes that change an answer, each in its largest scope."""
    distinct: dict[bytes, ModelMistake] = {}
    for one, predicted in effective:
        if np.isfinite(predicted).all():
            distinct.setdefault(np.round(predicted, 9).tobytes(), one)
    return [*combinations(distinct.values(), 2)][:MOST_PAIRS]


def rank(
    candidates: Sequence[list[ModelMistake]],
    shown: Observation,
    evidence: Sequence[Observation],
    sets: Sequence[MistakeSet],
) -> MistakeSet:
    """Return the candidate that explains most more cases, with least against it; of equal ones the largest scope."""
    explained = [explains(known_mistakes(sets, one), one) for one in evidence]
    scores, configs = list[tuple[int, int]](), list[frozenset[int]]()
    for chosen in candidates:
        agreed = [explains([*known_mistakes(sets, one), *chosen], one) for one in evidence]
        gains: dict[int, int] = {}
        for one, now, before in zip(evidence, agreed, explained, strict=True):
            gains[config_of(one)] = gains.get(config_of(one), 0) + now - before
        against = sum(not fits and not one.failed for fits, one in zip(agreed, evidence, strict=True))
        scores.append((-sum(max(gain, 0) for gain in gains.values()), against))
        # A config in which it explains less than nothing is read right.
        configs.append(frozenset(config for config, gain in gains.items() if gain >= 0))
    best = scores.index(min(scores))
    names, rivals = {candidates[best][0].id}, []
    found = known_mistakes(sets, shown)
    chosen_result = predict([*found, *candidates[best]], shown.case)
    for other, score in zip(candidates, scores, strict=True):
        if score != scores[best] or other[0].id in names:
            continue
        predicted = predict([*found, *other], shown.case)
        # What predicts the same numbers is the same mistake in this model, in other words.
        if not np.array_equal(predicted, chosen_result):  # type: ignore[arg-type]
            names.add(other[0].id)
            rivals.append(other[0])
    return MistakeSet(tuple(candidates[best]), tuple(rivals), shown, configs[best])


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
    plain = case.computation
    for mistake in mistakes:
        plain = mistake.fill(plain)
    plain.run(watch=lambda name, result: right.setdefault(name, np.asarray(result)))
    try:
        computation = apply_all(mistakes, case.computation)
        computation.run(watch=lambda name, result: wrong.setdefault(name, np.asarray(result)))
    except IMPOSSIBLE:
        return ""
    taken = [*wrong]
    added = next((number for number, name in enumerate(taken) if name not in right and ": " not in name), len(taken))
    for name, due in right.items():
        array = wrong.get(name)
        if array is None and ": " in name:  # a sum may have another name in another order
            continue
        scale = CHANGED * np.nanmax(np.abs(due), initial=0)
        if array is None or array.shape != due.shape or not np.all(np.abs(array - due) <= scale):
            is_later = added < len(taken) and name not in taken[:added]
            return name_sublayer(taken[added] if is_later else name, case)
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
    if path == "patches":  # of an image, before anything that has parameters
        return shorten("embedding", case)
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
    if first.case.sublayer is None:
        return find_prefix(shown, ask)
    place = find_cut(first.case, ask)
    if place != "embedding or norm":
        return place
    # What is wrong in an embedding may hardly turn it where there is little in the stream.
    plain = replace(first.case, checkpoint=isolate_sublayer(shown.case.checkpoint, ""))
    return "embedding" if find_cut(plain, ask) == "embedding" else place


def choose_ordinary(failing: Sequence[Observation]) -> Observation:
    """Return a failing case whose error is neither among the largest nor among the smallest."""
    return sorted(failing, key=lambda one: one.finding.ratio)[len(failing) // 2]


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


def find_cut(case: ModelCase, ask: Ask) -> str:
    """Return where a model without sublayers is wrong, as far as it can be told: "embedding or norm".

    A norm whose weight is 0 gives its bias, whatever comes before it. If the port is wrong all the same, then it is so
    at that norm or after it. Norms that follow one another in the residual stream are tried from the last to the first.
    """
    norms: list[str] = []
    case.computation.run(watch=lambda name, _: norms.append(name))
    after = case.checkpoint.configuration.norm_order == "post"
    norms = list(filter(is_norm, norms))
    if not after and norms and (inside := find_norm_in_stream(case, norms, ask)):
        return inside
    norms = [name for name in norms if after or "blocks." not in name]
    has_output = "output.weight" in flatten(case.checkpoint.places)
    if not norms:
        return "embedding or output" if has_output else "embedding"
    if not after:
        return find_around_norm(case, norms[-1], ask)
    place = -1
    for number in reversed(range(len(norms))):
        changed = case.checkpoint.change({f"{norms[number]}.weight": 0.0})
        (answer,) = ask([replace(case, checkpoint=changed)])
        if answer.failed:
            place = number
            break
    if place + 1 == len(norms) and has_output:
        return "output"
    following = name_sublayer(norms[min(place + 1, len(norms) - 1)], case)
    return following if "blocks." not in following else first_of_kind(following, case)


def find_norm_in_stream(case: ModelCase, norms: Sequence[str], ask: Ask) -> str:
    """Return the first sublayer whose norm stands in the residual stream, where none should; empty if none does.

    Where all sublayers give 0, what their norms give has no part in the result. But a last norm that has the weight of
    one of them moves with it, and not with its own: then it is the last norm that is wrong.
    """
    inner = [name for name in norms if "blocks." in name]
    silent = [case.checkpoint.change({f"{name}.weight": 0.0}) for name in (*inner, norms[-1])]
    asked = ask([case, *(replace(case, checkpoint=checkpoint) for checkpoint in silent)])
    if not all(one.has_numbers for one in asked):
        return ""
    answer, *others, last = (np.asarray(one.answer.result) for one in asked)
    moved = [name for name, other in zip(inner, others, strict=True) if not np.array_equal(other, answer)]
    name = moved[0] if moved else ""
    if len(moved) == 1 and norms[-1] not in inner and np.array_equal(last, answer):
        name = norms[-1]
    return name and name_sublayer(name, case)


def find_around_norm(case: ModelCase, norm: str, ask: Ask) -> str:
    """Return what is wrong of embedding, last norm and output layer.

    The norm is given the weight 1 and no bias. As a vocabulary is larger than E, the logits then say what the output
    layer is given; none of that explains those of a wrong one. What a norm gives has the direction of its input.
    """
    plus_one = case.checkpoint.configuration.norm.endswith("_plus_one")
    weight, bias, parameters = f"{norm}.weight", f"{norm}.bias", flatten(case.checkpoint.parameters)
    output = parameters.get("output.weight")
    plain, silent = (
        replace(case, checkpoint=case.checkpoint.change({weight: number - plus_one, bias: 0.0})) for number in (1, 0)
    )
    (answer, cut) = (ask([one])[0] for one in (plain, silent))
    if not answer.has_numbers or not cut.has_numbers:
        return "embedding, norm or output" if output is not None else "embedding or norm"
    got, due = (plain.select(np.asarray(array).astype(float)) for array in (answer.answer.result, plain.exact))
    if output is not None:
        if plain.checkpoint.configuration.output_softcap is not None:
            return "embedding, norm or output"
        if has_wrong_output_layer(answer):
            return "output"
        got, due = ((array - parameters.get("output.bias", 0)) @ np.linalg.pinv(output) for array in (got, due))
    if cut.failed or not answer.failed:
        return "norm"
    lengths = np.linalg.norm(got, axis=-1), np.linalg.norm(due, axis=-1)
    cosines = np.sum(got * due, axis=-1) / np.maximum(lengths[0] * lengths[1], TINY)
    return "embedding" if np.min(cosines) < PARALLEL else "embedding or norm"


def has_wrong_output_layer(one: Observation) -> bool:
    """Return whether no input of the output layer gives these logits; False for E logits or fewer."""
    parameters = flatten(one.case.checkpoint.parameters)
    output, bias = parameters.get("output.weight"), parameters.get("output.bias", 0)
    if output is None or one.case.checkpoint.configuration.output_softcap is not None:
        return False
    got, due = (one.case.select(np.asarray(array).astype(float)) for array in (one.answer.result, one.case.exact))
    growth = max(1.0, float(np.max(np.abs(got))) / max(float(np.max(np.abs(due))), TINY))
    allowed = TWICE * growth * np.sqrt(got.shape[-1]) * np.max(one.case.select(one.case.bound))
    got = got - bias
    return bool(np.max(np.abs(got - got @ np.linalg.pinv(output) @ output)) > allowed)


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
