"""What a check found: for every rule how many cases and how far off, and every violation with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conformance.cases.declaration import FEATURES, Declaration
from conformance.checks.findings import heads_swapped, same_error
from conformance.checks.judged_rules import JUDGED
from conformance.checks.levels import DEFAULT, LEVELS, kept, within
from conformance.checks.results import Cell, Results, Violation
from conformance.diagnosis.attention import LAYOUT
from conformance.diagnosis.departures import LACKING, departures
from conformance.diagnosis.following import in_order, separated
from conformance.diagnosis.matching import BACKWARD_ONLY
from conformance.diagnosis.naming import causes
from conformance.oracle.reference import balls_available
from conformance.reports.sentences import CONVENTION, LAYOUT_FIRST, describe_violation, levels_line
from conformance.reports.versions import versions
from conformance.subjects.targets import Target

if TYPE_CHECKING:
    from conformance.judge.judgement import Judgement

NO_ORACLE = "float64 is skipped: its oracle needs python-flint, which is not installed"


@dataclass(frozen=True)
class Report:
    """One subject's result.

    rules: for every rule that was tried, its cases and worst ratio. violations: those that stand for themselves first,
    the simplest before the others, and last the `following` ones, which follow from these. untried: why not everything
    was tried, or empty. left_out: what the subject declares and nobody can judge here, with the reason, or empty; it
    counts in no verdict.
    declaration: what the subject says of itself, without what is left out. never_given: parameters of the function that
    are none of the operation's, and that no case gave. profile: decides whether it conforms. chosen: the rules that
    alone were tried; empty for all.
    """

    target: Target
    effort: str
    seed: int
    rules: dict[str, Cell]
    violations: list[Violation]
    untried: str
    seconds: float
    versions: dict[str, str]
    left_out: str
    declaration: Declaration
    never_given: tuple[str, ...] = field(default=(), kw_only=True)
    profile: str = field(default=DEFAULT, kw_only=True)
    chosen: tuple[str, ...] = field(default=(), kw_only=True)

    def __str__(self) -> str:
        """What it violates, those that stand for themselves in full; for an assertion's message."""
        following = [violation.rule for violation in self.following]
        alone = [describe_violation(violation) for violation in self.violations if violation.rule not in following]
        left = [f"these follow: {', '.join(following)}"] if following else []
        untried = [f"not everything was tried: {self.untried}"] if self.untried else []
        count = sum(within(violation.level, self.profile) for violation in self.violations)
        guess = [f"arrays: {self.target.arrays}, a guess: {self.target.guessed}"] if self.target.guessed else []
        verdict = f"{self.subject} " + ("conforms" if self.conforms else f"violates {count} rule{'s' * (count != 1)}")
        verdict += f" ({self.profile}); {self.cases} cases, seed {self.seed}"
        return "\n".join([verdict, levels_line(self.levels), *guess, *alone, *left, *untried])

    @property
    def subject(self) -> str:
        return self.target.title

    @property
    def operation(self) -> str:
        return self.target.operation

    @property
    def cases(self) -> int:
        return sum(cell.cases for cell in self.rules.values())

    @property
    def worst(self) -> float:
        """The largest error ratio; where a rule is violated only beyond the profile, that of the cases that keep it."""
        beyond = {violation.rule for violation in self.violations if not within(violation.level, self.profile)}
        ratios = (cell.kept[0] if rule in beyond else cell.worst for rule, cell in self.rules.items())
        return max(ratios, default=0.0)

    @property
    def headline(self) -> str:
        """The known mistake that explains most violations; empty where none is known, or none explains most.

        It names those that it leaves, and of the others those that may follow.
        """
        known = Counter(cause for violation in self.violations for cause in in_order(violation))  # of equal, the first
        if not known:
            return ""
        (cause, count), total = known.most_common(1)[0], len(self.violations)
        name = next(name for violation in self.violations for name in violation.mistakes if cause in causes([name]))
        of_numbers = sum(violation.finding.kind == "value" for violation in self.violations)
        if 2 * count <= of_numbers:
            return ""
        if name.startswith(BACKWARD_ONLY):
            name = f"{name.removeprefix(BACKWARD_ONLY)}, in the backward pass only"
        if total == 1:
            return name
        following = {violation.rule for violation in self.following}
        rest = [violation.rule for violation in self.violations if cause not in causes(violation.mistakes)]
        others = [rule for rule in rest if rule not in following]
        named = {violation.rule for violation in self.violations if in_order(violation)}
        left = ""
        for what, rules in (("another diagnosis", [rule for rule in others if rule in named]),
                            ("no diagnosis", [rule for rule in others if rule not in named])):  # fmt: skip
            left += f"; {', '.join(rules)} {'have' if len(rules) > 1 else 'has'} {what}" if rules else ""
        follow = [rule for rule in rest if rule in following]
        left += f"; {', '.join(follow)} may follow" if follow else ""
        return f"{name}: this explains the smallest cases of {count} of {total} violations{left}"

    @property
    def following(self) -> list[Violation]:
        """Violations that are seen without what their rules are about, and follow from the others."""
        return separated(self.violations)[1]

    @property
    def levels(self) -> dict[str, list[str]]:
        """By level the rules that are violated there, in the specification's order."""
        order = [*JUDGED]
        broken = {level: [v.rule for v in self.violations if v.level == level] for level in LEVELS}
        return {level: sorted(rules, key=order.index) for level, rules in broken.items()}

    @property
    def kept(self) -> str | None:
        """The highest profile that is kept; None if there is none, or not everything was tried."""
        return None if self.untried or self.chosen else kept(violation.level for violation in self.violations)

    @property
    def conforms(self) -> bool:
        """Whether the report's profile is kept, and everything was tried."""
        return not self.untried and not any(within(violation.level, self.profile) for violation in self.violations)


def report_of(target: Target, judgement: Judgement, effort: str, seconds: float, profile: str = DEFAULT) -> Report:
    results: Results = judgement.results
    rules = {rule: results.rules[rule, target.title] for rule in JUDGED if (rule, target.title) in results.rules}
    limit = judgement.runner.time_limit
    violations = [replace(violation, target=target, time_limit=limit) for violation in results.violations.values()]
    violations.sort(key=lambda violation: list(JUDGED).index(violation.rule))
    alone, following = separated(violations)
    declaration, never_given = judgement.runner.declaration, judgement.runner.never_given
    layout = other_layout_seen(violations, declaration)
    alone = [replace(one, declare=declaring(one, following, declaration, layout)) for one in alone]
    found = (rules, [*alone, *following], judgement.untried, seconds, versions())
    left_out, declared = judged_here(declaration)
    told = "; ".join(filter(None, [left_out, not_reached(results, rules)])), declared
    chosen = tuple(judgement.rules or ())
    return Report(
        target, effort, judgement.seed, *found, *told, never_given=never_given, profile=profile, chosen=chosen
    )


def not_reached(results: Results, rules: Mapping[str, Cell]) -> str:
    """Name the rules all of whose cases count for other rules; empty if there are none."""
    names = [rule for rule in JUDGED if results.generated[rule] and rule not in rules]
    are = "is" if len(names) == 1 else "are"
    reason = "its calls fail without what it asks for, too, and count for other rules"
    return f"{', '.join(names)} {are} not reached: {reason}" if names else ""


def declaring(
    violation: Violation, following: Sequence[Violation], declaration: Declaration, other_layout: bool = False
) -> str:
    """The options under which the violation is none: a call that is not supported, or an intended departure."""
    conventions = ",".join(f"{name}={value}" for name, value in departures(violation, declaration).items())
    lacking = declared_without(violation, following, declaration, other_layout)
    return lacking or (f"{CONVENTION} {conventions}" if conventions else "")


def other_layout_seen(violations: Sequence[Violation], declaration: Declaration) -> bool:
    """Whether a wrong result is that of a function whose heads and positions have changed places."""
    swapped = any(
        heads_swapped(one.finding) or any(LAYOUT.name in line for line in one.diagnosis) for one in violations
    )
    return declaration.layout == "BHTD" and swapped


def declared_without(
    violation: Violation, following: Sequence[Violation], declaration: Declaration, other_layout: bool = False
) -> str:
    """The options that declare what raises the error of the violation unsupported; empty where that is no dtype or
    feature alone.

    Known mistakes may say that it takes no notice of a feature. other_layout: whether the arrays seem to have another
    layout. It is declared first: what a function does not support shows in its own layout only.
    """
    same = [violation, *(one for one in following if same_error(one.finding, violation.finding))]
    ignored = {LACKING[name] for name in violation.mistakes if name in LACKING} & declaration.features
    lacks = ignored.union(*(one.lacks for one in same))
    features = ",".join(f"no-{name}" for name in FEATURES if name in lacks)
    dtypes = ",".join(name for name in declaration.dtypes if name not in lacks)
    if other_layout and features:
        return LAYOUT_FIRST
    told = [f"--supports {features}"] if features else []
    return " ".join(told + ([f"--dtypes {dtypes}"] if lacks & set(declaration.dtypes) else []))


def judged_here(declaration: Declaration) -> tuple[str, Declaration]:
    """(what of it cannot be judged here and why, what can)."""
    if balls_available() or "float64" not in declaration.dtypes:
        return "", declaration
    others = tuple(dtype for dtype in declaration.dtypes if dtype != "float64")
    return NO_ORACLE, replace(declaration, dtypes=others)
