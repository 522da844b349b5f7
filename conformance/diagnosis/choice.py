"""Choosing the fewest known mistakes that explain all failing cases, by asking cases that tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, takewhile

from conformance.cases.case import Case
from conformance.cases.features import FEATURES
from conformance.diagnosis.evidence import Evidence
from conformance.diagnosis.experiments import take_turns
from conformance.diagnosis.explanation import (
    Explanation,
    find_conditions,
    is_consistent,
    learn_condition,
    screen,
    smallest_of_each_kind,
)
from conformance.mistakes.call import Call
from conformance.mistakes.condition import ALWAYS, Condition
from conformance.mistakes.mistake import Mistake

MOST = 4
"""Mistakes that are chosen; what is left after so many is told by its pattern."""
ASKED = 8
"""Experiments for one choice: each halves what is left, and no more than some dozens of mistakes ever fit."""
CONFIRMED = 2
"""Experiments that a mistake must explain: the first may have the numbers by which it agreed by chance."""
TRIED = 60
"""Cases that are drawn for them; on most, two mistakes that fit so far differ as little as on those before."""
WEIGHED, BATCH = 40, 10
"""Mistakes that are held against all evidence: those that explain most of the failing cases, ten at a time."""
ROUNDS = 4
"""How often conditions are learned anew: each round brings some cases more."""
CONTENDERS = 12
"""Mistakes that experiments tell apart; more only fit where few cases fail."""
VARIED = 3
"""Other conditions of the first of them; more of one clause only fit where few cases pass."""

SOURCES = 4
"""Explained cases, from the smallest, that others are drawn like."""

AskFresh = Callable[[Case], "Evidence | None"]
Draw = Callable[[Evidence], Iterator[Case]]
"""Draws cases like one that fails, whose features it has, in other sizes and with other numbers."""


class Chooser:
    """The evidence, and the search for mistakes in it.

    failing, passing: evidence, the smallest first; experiments add to it. draw, ask_fresh: for experiments. due: the
    failing cases that must be explained, those of violations; all unless given. uncovered: the failing cases that no
    chosen mistake explains. screened: the mistakes that explain a case, by the identity of its evidence.
    """

    def __init__(
        self,
        failing: Sequence[Evidence],
        passing: Sequence[Evidence],
        mistakes: Iterable[Mistake],
        draw: Draw,
        ask_fresh: AskFresh,
        due: Iterable[Evidence] | None = None,
        screened: dict[int, list[Mistake]] | None = None,
    ) -> None:
        self.failing, self.passing = [*failing], [*passing]
        self.mistakes, self.draw, self.ask_fresh = [*mistakes], draw, ask_fresh
        self.due = {id(one) for one in (failing if due is None else due)}
        self.uncovered: list[Evidence] = []
        self.screened = {} if screened is None else screened

    def choose(self) -> list[Explanation]:
        """Return explanations in the order of what they explain, each with its condition."""
        chosen: list[Explanation] = []
        self.uncovered = [*self.failing]
        while len(chosen) < MOST and self.missed:
            found = self.choose_one()
            if found is None:
                break
            others = leave_out(self.uncovered, found.explained)
            found.explained += [one for one in others if is_consistent(found.mistake, one)]
            chosen.append(found)
            self.uncovered = leave_out(others, found.explained)
        return chosen

    @property
    def missed(self) -> list[Evidence]:
        """The failing cases that must be explained, and are not."""
        return [one for one in self.uncovered if id(one) in self.due]

    def choose_one(self) -> Explanation | None:
        """The mistake that explains most of the uncovered cases, with nothing against it.

        It is looked for among those that explain the first case, and only where none of these fits all cases, among
        those that explain another one.
        """
        first = smallest_of_each_kind(self.uncovered)
        for count in sorted({1, len(first)}):
            explanations = [*map(Explanation, self.screen_all(first[:count]))]
            if count == len(first) or any(map(self.fits_all, explanations)):
                found = self.choose_among(explanations)
                if found is not None:
                    return found
        return None

    def screen_all(self, failing: Sequence[Evidence]) -> list[Mistake]:
        """The mistakes that explain one of the cases; of both passes, where one explains a wrong output."""
        found: dict[tuple[str, str, str], Mistake] = {}
        for evidence in failing:
            if id(evidence) not in self.screened:
                self.screened[id(evidence)] = screen(self.mistakes, evidence)
            found |= {(one.id, repr(one.values), one.condition.passes): one for one in self.screened[id(evidence)]}
        return [one for (*name, passes), one in found.items() if passes == "both" or (*name, "both") not in found]

    def choose_among(self, explanations: list[Explanation]) -> Explanation | None:
        """The explanation of most of the uncovered cases under its condition, told apart from others by experiments."""
        failing = [*self.failing]
        for start in range(0, len(failing), BATCH):  # the smallest first: most mistakes leave at once
            for explanation in explanations:
                for evidence in failing[start : start + BATCH]:
                    explanation.weigh(evidence)
            explanations.sort(key=self.count_gain, reverse=True)
            explanations = explanations[:WEIGHED]
        for _ in range(ROUNDS):
            contenders = self.find_contenders(explanations)
            if not contenders:
                return None
            known = len(self.failing) + len(self.passing)
            left = self.experiment([*contenders, *self.vary_condition(contenders[0])])
            if left:
                best = min(left, key=lambda one: one.mistake.condition.clauses)
                others = (one.mistake for one in left)
                best.alternatives = [one for one in others if one.limit(ALWAYS) != best.mistake.limit(ALWAYS)]
                return best
            # What was asked refutes all of them: conditions are learned anew, from more evidence.
            if len(self.failing) + len(self.passing) == known:
                refuted = {id(one.wider) for one in contenders}
                explanations = [one for one in explanations if id(one) not in refuted]
        return None

    def find_contenders(self, explanations: Sequence[Explanation]) -> list[Explanation]:
        """Those that explain most of the uncovered cases, less those that fail otherwise, under their conditions."""
        fitting: dict[int, Explanation] = {}
        most = 1 - len(self.failing)
        for explanation in sorted(explanations, key=self.count_covered, reverse=True):
            if self.count_covered(explanation) < max(most, 1):  # no condition makes it explain more
                break
            for evidence in (*self.failing, *self.passing):
                explanation.weigh(evidence)
            found = self.add_condition(explanation)
            if found is not None:
                fitting[id(explanation)] = found
                most = max(most, self.count_gain(found))
        in_order = (fitting[id(one)] for one in explanations if id(one) in fitting)
        best = [one for one in in_order if self.count_gain(one) == most]
        return sorted(best, key=lambda one: one.mistake.condition.clauses)[:CONTENDERS]

    def count_covered(self, explanation: Explanation) -> int:
        """How many of the uncovered cases it explains."""
        return len(self.uncovered) - len(leave_out(self.uncovered, explanation.explained))

    def count_gain(self, explanation: Explanation) -> int:
        """How many of them it explains, less all cases that fail otherwise."""
        return self.count_covered(explanation) - len(explanation.unlike)

    def fits_all(self, explanation: Explanation) -> bool:
        """Whether it explains most uncovered cases, and agrees with the others, too near to what is right to tell."""
        others = [one for one in self.uncovered if explanation.weigh(one) != "explains"]
        agrees = all(is_consistent(explanation.mistake, one) for one in others)
        return agrees and 2 * len(others) < len(self.uncovered)

    def add_condition(self, explanation: Explanation) -> Explanation | None:
        """The explanation under the simplest condition that leaves nothing against it; None if there is none.

        More cases must fail as the mistake predicts than otherwise. A condition may leave the others out too: if of
        these there are more than it has clauses more, as one may be wrong by another mistake as well. But a mistake
        that shows up to a size only, and leaves out as many cases as it explains, of which no other mistake is known,
        is one of chance.
        """
        if not explanation.explained:
            return None
        narrowed: Explanation | None = None
        for others in ([*explanation.against, *explanation.unlike], explanation.against):
            condition = learn_condition(explanation.explained, others)
            if condition is not None:
                found = explanation.limit(condition)
                unlike = [one for one in leave_out(explanation.unlike, found.unlike) if one in self.uncovered]
                by_chance = condition.up_to is not None and len(unlike) >= self.count_covered(found)
                if found.score > 0 and not by_chance and (narrowed is None or found.worth >= narrowed.worth):
                    narrowed = found
        return self.limit_to_feature(explanation) if narrowed is None else narrowed

    def limit_to_feature(self, explanation: Explanation) -> Explanation | None:
        """The explanation with a feature that most uncovered cases have, and none that is against it; None without one.

        Cases without the feature are wrong by another mistake, with which this one agrees there.
        """
        uncovered = leave_out(explanation.explained, leave_out(explanation.explained, self.uncovered))
        counts = Counter(name for one in uncovered for name in FEATURES.keys() & one.call.features)
        against = frozenset[str]().union(*(one.call.features for one in explanation.against))
        for name, count in counts.most_common():
            found = explanation.limit(Condition(features=(name,)))
            if 2 * count > len(uncovered) and name not in against and found.score > 0:
                return found
        return None

    def vary_condition(self, explanation: Explanation) -> Iterator[Explanation]:
        """The same under other conditions as simple as its own; experiments tell which is meant."""
        wider, own = explanation.wider, replace(explanation.mistake.condition, passes="both")
        if wider is None or own == ALWAYS:
            return
        others = [one for one in (*wider.against, *wider.unlike) if not own.holds(one.call)]
        found = (one for one in find_conditions(explanation.explained, others) if one != own)
        as_simple = takewhile(lambda one: one.clauses <= own.clauses, found)
        yield from map(wider.limit, islice(as_simple, VARIED))

    def change_condition(self, explanation: Explanation) -> list[Explanation]:
        """The same under other conditions that ask for no more things."""
        other = None if explanation.wider is None else self.add_condition(explanation.wider)
        most = max(explanation.mistake.condition.clauses, 1)
        if other is None or other.mistake.condition.clauses > most:
            return []
        return [other, *self.vary_condition(other)]

    def experiment(self, contenders: Sequence[Explanation]) -> list[Explanation]:
        """Ask cases on which the contenders differ from one another, or from what is right; keep those that fit.

        A contender that should show where a case passes gets another condition, if one as simple leaves that case out.
        """
        left, asked, answered = [*contenders], 0, 0
        confirmed, doubted = Counter[int](), Counter[int]()
        for case in self.cases_like(contenders[0].explained):
            sure = {one for one, count in confirmed.items() if count >= CONFIRMED}
            if asked == ASKED or (len(left) == 1 and id(left[0]) in sure):
                break
            if not worth_asking(case, left, sure):
                continue
            evidence, asked = self.ask_fresh(case), asked + 1
            if evidence is None:
                continue
            answered += 1
            (self.failing if evidence.wrong else self.passing).append(evidence)
            verdicts = {id(one): one.weigh(evidence) for one in left}
            confirmed.update(one for one, verdict in verdicts.items() if verdict == "explains")
            doubted.update(one for one, verdict in verdicts.items() if verdict == "against")
            for wider in (one.wider for one in left if one.wider is not None):
                wider.weigh(evidence)
            if not evidence.wrong or "explains" in verdicts.values():
                refuted = [one for one in left if verdicts[id(one)] == "against"]
                left = [one for one in left if verdicts[id(one)] != "against"]
                for one in refuted if not evidence.wrong else ():
                    known = [other.mistake for other in left]
                    others = [other for other in self.change_condition(one) if other.mistake not in known]
                    confirmed.update({id(other): confirmed[id(one)] for other in others})
                    left += others
            if not left:
                return []
        # Where no case was answered, one that was explained may be chance; two are not.
        found = [one for one in left if confirmed[id(one)] > doubted[id(one)]]
        return found if answered else [one for one in left if len(one.explained) > 1]

    def cases_like(self, explained: Sequence[Evidence]) -> Iterator[Case]:
        """Cases in turn like each of those explained; `TRIED` at most."""
        return islice(take_turns(self.draw(one) for one in explained[:SOURCES]), TRIED)


def leave_out(some: Sequence[Evidence], known: Sequence[Evidence]) -> list[Evidence]:
    """Those that are none of the known."""
    ids = {id(one) for one in known}
    return [one for one in some if id(one) not in ids]


def worth_asking(case: Case, left: Sequence[Explanation], confirmed: set[int]) -> bool:
    """Whether two predictions differ on the case, or that of an unconfirmed mistake from what is right."""
    call = Call(case)
    predictions = [one.mistake.predict(call)[:1] for one in left]
    shown = [bool(some) and some[0].is_apart(call.right, call.bounds) for some in predictions]
    if any(wrong and id(one) not in confirmed for one, wrong in zip(left, shown, strict=True)):
        return True
    return any(
        shown[i] != shown[j] or (shown[i] and predictions[i][0].is_apart(*predictions[j][0][:2]))
        for i, j in combinations(range(len(left)), 2)
    )
