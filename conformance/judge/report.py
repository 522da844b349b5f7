"""What a check found: for every rule how many cases and how far off, and every violation with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conformance.cases.declaration import Declaration
from conformance.checks.levels import DEFAULT, JUDGED, LEVELS, highest_profile, is_required, lowest_levels
from conformance.checks.results import Cell, Results, Violation
from conformance.oracle.reference import balls_available
from conformance.reports.versions import versions
from conformance.subjects.callables import Target

if TYPE_CHECKING:
    from conformance.diagnosis.cause import Cause
    from conformance.judge.executor import Executor

NO_ORACLE = "float64 is skipped: its oracle needs python-flint, which is not installed"


@dataclass(frozen=True, repr=False)
class Report:
    """One subject's result.

    Attributes:
        target: What was judged.
        effort: How many cases each probe got.
        seed: What generates the same cases again.
        rules: For every rule that was tried, its cases and worst ratio.
        violations: For each rule that is violated wrong numbers, what else is wrong (an error, a dtype), or both, in
            the specification's order.
        untried: Why not everything was tried, or empty.
        seconds: How long it took.
        versions: Of the judge, of Python and of the packages that count.
        left_out: What the subject declares and nobody can judge here, with the reason, or empty; it counts in no
            verdict.
        declaration: What the subject says of itself, without what is left out, and without what a signature that takes
            any keyword has room for and refuses.
        never_given: Parameters of the function that are none of the operation's, and that no case gave.
        profile: Decides whether it conforms.
        chosen: The rules that alone were tried; empty for all.
        causes: What is behind the violations, those of the lowest level first; the first violation of each shows it by
            its smallest case.
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
    causes: list[Cause] = field(default_factory=list, kw_only=True)

    def __repr__(self) -> str:
        from conformance.reports.blocks import describe_verdict

        return f"<Report: {describe_verdict(self)}>"

    def __str__(self) -> str:
        """Verdict, levels, and every cause with its smallest case; for an assertion's message."""
        from conformance.reports.blocks import describe_report

        return describe_report(self)

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
        beyond = {violation.rule for violation in self.violations if not is_required(violation.level, self.profile)}
        ratios = (cell.kept[0] if rule in beyond else cell.worst for rule, cell in self.rules.items())
        return max(ratios, default=0.0)

    @property
    def following(self) -> list[Violation]:
        """Violations that another one shows better, which has the same cause."""
        leads = {id(cause.lead) for cause in self.causes}
        return [violation for violation in self.violations if id(violation) not in leads]

    @property
    def levels(self) -> dict[str, list[str]]:
        """By level the rules that are violated there, in the specification's order."""
        order = [*JUDGED]
        lowest = lowest_levels((violation.rule, violation.level) for violation in self.violations)
        return {level: sorted((r for r in lowest if lowest[r] == level), key=order.index) for level in LEVELS}

    @property
    def kept(self) -> str | None:
        """The highest profile that is kept; None if there is none, or not everything was tried."""
        return (
            None if self.untried or self.chosen else highest_profile(violation.level for violation in self.violations)
        )

    @property
    def conforms(self) -> bool:
        """Whether the report's profile is kept, and everything was tried."""
        return not self.untried and not any(is_required(violation.level, self.profile) for violation in self.violations)


def report_of(target: Target, executor: Executor, effort: str, seconds: float, profile: str = DEFAULT) -> Report:
    results: Results = executor.results
    rules = {rule: results.rules[rule, target.title] for rule in JUDGED if (rule, target.title) in results.rules}
    limit = executor.runner.time_limit
    found = results.violations.values()
    by_identity = {id(one): replace(one, target=target, time_limit=limit) for one in found}
    violations = [*by_identity.values()]
    causes = []
    for cause in executor.causes:  # with the report's own violations, which name the target
        own = (by_identity.get(id(one)) or replace(one, target=target, time_limit=limit) for one in cause.violations)
        causes.append(replace(cause, violations=tuple(own)))
    violations.sort(key=lambda violation: (list(JUDGED).index(violation.rule), violation.key[2]))
    declaration, left_out = executor.stated_declaration, [describe_unreached(results, rules)]
    if "float64" in declaration.dtypes and not balls_available():
        others = tuple(dtype for dtype in declaration.dtypes if dtype != "float64")
        declaration, left_out = replace(declaration, dtypes=others), [NO_ORACLE, *left_out]
    return Report(
        target,
        effort,
        executor.seed,
        rules,
        violations,
        executor.untried,
        seconds,
        versions(),
        "; ".join(filter(None, left_out)),
        declaration,
        never_given=executor.runner.never_given,
        profile=profile,
        chosen=tuple(executor.rules or ()),
        causes=causes,
    )


def describe_unreached(results: Results, rules: Mapping[str, Cell]) -> str:
    """Name the rules all of whose cases count for other rules; empty if there are none."""
    names = [rule for rule in JUDGED if results.generated[rule] and rule not in rules]
    are = "is" if len(names) == 1 else "are"
    reason = "its calls fail without what it asks for, too, and count for other rules"
    return f"{', '.join(names)} {are} not reached: {reason}" if names else ""
