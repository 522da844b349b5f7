"""How far known mistakes explain evidence, and under which condition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations
from typing import Literal

from conformance.cases.arguments import is_gradient
from conformance.diagnosis.evidence import Evidence
from conformance.mistakes.condition import ALWAYS, Condition
from conformance.mistakes.mistake import Mistake, Prediction

TILES = (2, 4, 8, 16, 32, 64, 128, 256)
SCREENED = 6
"""Failing cases on which every mistake is tried, the smallest of each kind; most explain none of them."""
SCREENED_NUMBERS = 2**15
"""Numbers in all of these together, where the first has fewer: every mistake on so many takes some seconds."""

Verdict = Literal["explains", "against", "silent"]


@dataclass
class Explanation:
    """A mistake with the evidence that it explains, and that speaks against it.

    against: cases that pass, where it should show. unlike: cases that fail otherwise than it predicts; there another
    mistake may be at work as well. alternatives: mistakes that explain the same cases, and that no experiment told
    apart. wider: the explanation without a condition. weighed: verdicts by the identity of the evidence.
    """

    mistake: Mistake
    explained: list[Evidence] = field(default_factory=list)
    against: list[Evidence] = field(default_factory=list)
    unlike: list[Evidence] = field(default_factory=list)
    alternatives: list[Mistake] = field(default_factory=list)
    wider: Explanation | None = None
    weighed: dict[int, Verdict] = field(default_factory=dict)

    def weigh(self, evidence: Evidence) -> Verdict:
        """Add a piece of evidence, once."""
        if id(evidence) in self.weighed:
            return self.weighed[id(evidence)]
        verdict = self.weighed[id(evidence)] = judge_mistake(self.mistake, evidence)
        if verdict == "explains":
            self.explained.append(evidence)
        elif verdict == "against":
            (self.unlike if evidence.wrong else self.against).append(evidence)
        return verdict

    def limit(self, condition: Condition) -> Explanation:
        """The same mistake where a condition holds, in the pass that it is of."""
        mistake = self.mistake.limit(replace(condition, passes=self.mistake.condition.passes))
        explained, unlike = (
            [one for one in some if condition.holds(one.call)] for some in (self.explained, self.unlike)
        )
        return Explanation(mistake, explained, unlike=unlike, wider=self)

    @property
    def score(self) -> int:
        """How many cases fail as it predicts, less those that fail otherwise."""
        return len(self.explained) - len(self.unlike)

    @property
    def worth(self) -> int:
        """The score, less the clauses of the condition."""
        return self.score - self.mistake.condition.clauses


def judge_mistake(mistake: Mistake, evidence: Evidence) -> Verdict:
    """Say what a case's answers tell of a mistake.

    It explains them if every predicted result agrees with them, one is predicted to be wrong, and all that is wrong is
    predicted, or follows from a wrong output. They speak against it if it predicts a wrong result, and not theirs.
    """
    verdict: Verdict = "silent"
    agrees_unseen = False
    right, bounds = evidence.call.right, evidence.call.bounds
    for prediction in evidence.predict(mistake):
        names, covers = covered_names(prediction, evidence)
        if not any(prediction.differs(name, right[name], bounds[name]) for name in names):
            agrees_unseen = True  # made in this way, it does not show
        elif not all(prediction.agrees(name, evidence.answers[name]) for name in names):
            verdict = "against"
        else:  # where it does not explain, it is too near to what is right, or something else is wrong as well
            return "explains" if evidence.wrong and covers and shows_in_numbers(mistake, evidence) else "silent"
    return "silent" if agrees_unseen else verdict


def shows_in_numbers(mistake: Mistake, evidence: Evidence) -> bool:
    """Whether a mistake shows, however it is made, also where the mask hides numbers; or is about NaN and infinity.

    Whatever multiplies hidden NaN by a weight of 0 has NaN. A mistake that does nothing else there is not to blame.
    """
    clean = None if mistake.of_special_values else evidence.clean_call
    if clean is None:
        return True
    predictions = mistake.predict(clean)
    return bool(predictions) and all(one.is_apart(clean.right, clean.bounds) for one in predictions)


def is_consistent(mistake: Mistake, evidence: Evidence) -> bool:
    """Whether wrong answers agree with a mistake's prediction, however near that is to what is right.

    Too little to choose a mistake by, where few digits are left; enough to leave the case to one that is chosen.
    """
    for prediction in evidence.predict(mistake):
        names, covers = covered_names(prediction, evidence)
        if covers and all(prediction.agrees(name, evidence.answers[name]) for name in names):
            return True
    return False


def covered_names(prediction: Prediction, evidence: Evidence) -> tuple[list[str], bool]:
    """The predicted results that can be compared, and whether all that is wrong is among them or follows from them."""
    names = [name for name in prediction.results if name in evidence.answers and name in evidence.call.right]
    return names, evidence.wrong <= {*names} or ("output" in names and "output" in evidence.wrong)


def screen(mistakes: Iterable[Mistake], evidence: Evidence) -> list[Mistake]:
    """The mistakes that explain one failing case; where gradients alone are wrong, in the backward pass alone."""
    variants = (variant for mistake in mistakes for variant in mistake.variants())
    if all(map(is_gradient, evidence.wrong)):
        alone = Condition(passes="backward")
        variants = (one if one.of_gradients else one.limit(alone) for one in variants)
    else:
        variants = (one for one in variants if not one.of_gradients)
    return [one for one in variants if judge_mistake(one, evidence) == "explains"]


def smallest_of_each_kind(failing: Sequence[Evidence]) -> list[Evidence]:
    """The smallest case for each set of features and wrong results; `SCREENED` at most, and `SCREENED_NUMBERS`."""
    kinds: dict[object, Evidence] = {}
    for evidence in failing:
        kinds.setdefault((evidence.call.features, evidence.wrong, evidence.case.dtype), evidence)
    chosen = [*kinds.values()][:SCREENED]
    sizes = accumulate(one.size for one in chosen)
    return [one for one, size in zip(chosen, sizes, strict=True) if one is chosen[0] or size <= SCREENED_NUMBERS]


def learn_condition(explained: Sequence[Evidence], others: Sequence[Evidence]) -> Condition | None:
    """The simplest condition that holds for all explained cases, and for none of the others; None if there is none."""
    return next(find_conditions(explained, others), None)


def find_conditions(explained: Sequence[Evidence], others: Sequence[Evidence]) -> Iterator[Condition]:
    """The conditions that hold for all explained cases, and for none of the others, the simplest first."""
    for condition in conditions(explained, others) if others else (ALWAYS,):
        if all(condition.holds(one.call) for one in explained) and not any(condition.holds(o.call) for o in others):
            yield condition


def conditions(explained: Sequence[Evidence], others: Sequence[Evidence]) -> Iterator[Condition]:
    """Conditions of one clause, a feature, a dtype or a size, the likelier first; then pairs of these."""
    features = [one.call.features for one in explained]
    other_features = [one.call.features for one in others]
    common, anywhere = frozenset.intersection(*features), frozenset.union(*features)
    present = [Condition(features=(name,)) for name in sorted(common - frozenset.intersection(*other_features))]
    absent = [Condition(lacks=(name,)) for name in sorted(frozenset.union(*other_features) - anywhere)]
    dtypes = tuple(sorted({one.case.dtype for one in explained}))
    of_dtype = [Condition(dtypes=dtypes)]
    sizes = [*size_conditions(explained, others)]
    # Masks often happen to hide a row; what is declared, an option, or a size is the likelier reason.
    by_chance = [one for one in present if one.features == ("hidden_rows",)]
    present = [one for one in present if one not in by_chance]
    yield from (*present, *of_dtype, *sizes, *absent, *by_chance)
    present = [*by_chance, *present]
    for one in (*present, *sizes, *absent):
        yield Condition(**{**vars(one), "dtypes": dtypes})
    for one, other in combinations((*present, *absent), 2):
        yield Condition(features=one.features + other.features, lacks=one.lacks + other.lacks)
    for one in (*present, *absent):
        for size in sizes:
            yield Condition(**{**vars(size), "features": one.features, "lacks": one.lacks})


def size_conditions(explained: Sequence[Evidence], others: Sequence[Evidence]) -> Iterator[Condition]:
    """Past a size, up to a size, partial and whole tiles, along each axis that all cases have."""
    rows = [one.call.sizes for one in explained]
    other_rows = [one.call.sizes for one in others]
    axes = [axis for axis in rows[0] if all(axis in row for row in (*rows, *other_rows))]
    for axis in axes:
        wrong, right = [row[axis] for row in rows], [row[axis] for row in other_rows]
        below = [size for size in right if size < min(wrong)]
        past = max(below, default=0)
        if past:
            yield Condition(axis, past=past)
        if max(wrong) < max(right):
            yield Condition(axis, up_to=max(wrong))
        for tile in TILES:
            if all(size % tile for size in wrong):
                yield Condition(axis, past=tile if min(wrong) > tile else 0, partial=tile)
            elif not any(size % tile for size in wrong):
                yield Condition(axis, whole=tile)
