"""The results of a stored run of the judge for a page's rules: cases, the largest error ratio, violations."""

from __future__ import annotations

from typing import Any, NamedTuple

from conformance.reports.content import real
from conformance.reports.tables import ratio, worst_of
from conformance.side_by_side.rules import rule_texts
from conformance.side_by_side.sources import LABELS
from specification import MODEL_RULES
from study.grids import moment

Content = dict[str, Any]


class Entry(NamedTuple):
    """One rule of one implementation. worst: in words, float32 and float64 first and then all dtypes."""

    worst: tuple[str, ...]
    cases: int
    violated: bool


class Measured(NamedTuple):
    """rows: for each rule, what each implementation has of it, None where it was not judged.

    of_models: whether there are rules of whole models or of several ranks, which have no probes of their own.
    """

    rows: tuple[tuple[str, str, tuple[Entry | None, ...]], ...]  # rule, title
    without: tuple[str, ...]  # rules that no probe asks about
    largest: tuple[tuple[str, str], ...]  # label, in words
    violations: tuple[tuple[str, str, str, str], ...]  # label, rule, message, case
    of_models: bool

    @property
    def cases(self) -> int:
        """Of one implementation: the same cases are put to all."""
        return sum(max((one.cases for one in entries if one is not None), default=0) for _, _, entries in self.rows)


class Agreement(NamedTuple):
    """when, versions, drawn: under which circumstances the run ran. error: why it did not come to its end, or empty."""

    when: str
    versions: str
    drawn: str
    error: str
    rules: dict[tuple[str, str], Content]  # (package, rule)
    violations: tuple[tuple[str, str, str, str], ...]  # label, rule, message, case
    untried: tuple[tuple[str, str], ...]  # label, why

    def of(self, rules: tuple[str, ...]) -> Measured:
        tried = [rule for rule in rules if any((package, rule) in self.rules for package in LABELS)]
        rows = tuple((rule, title_of(rule), tuple(self.entry(one, rule) for one in LABELS)) for rule in tried)
        found = [(one, self.rules[one, rule]["worst"]) for one in LABELS for rule in tried if (one, rule) in self.rules]
        ratios = {one: [real(worst) for its, worst in found if its == one and worst is not None] for one in LABELS}
        largest = tuple((LABELS[one], ratio(max(worst)).plain) for one, worst in ratios.items() if worst)
        violations = tuple(one for one in self.violations if one[1] in rules)
        without = tuple(rule for rule in rules if rule not in tried)
        return Measured(rows, without, largest, violations, any(rule in MODEL_RULES for rule in without))

    def entry(self, package: str, rule: str) -> Entry | None:
        found = self.rules.get((package, rule))
        if found is None or found["status"] == "untried":
            return None
        return Entry(tuple(worst_of(found).plain.split("  ")), found["cases"], found["status"] == "violated")


def title_of(rule: str) -> str:
    return rule_texts()[rule].title


def agreement(report: Content) -> Agreement:
    """Of our three, whoever else stands in the report."""
    ours = [one for one in report["subjects"] if one["name"] in LABELS and not one["peer"]]
    rules = {(one["name"], rule["rule"]): rule for one in ours for rule in one["rules"]}
    for rule in rules.values():
        worst_of(rule), rule["cases"]  # understood now, so that no page is broken by it
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return Agreement(
        when(report), versions, drawn(report), report["error"] or "", rules,
        tuple((LABELS[one["name"]], found["rule"], found["message"], found["case"] or "")
              for one in ours for found in one["violations"]),
        tuple((LABELS[one["name"]], one["untried"]) for one in ours if one["untried"]),
    )  # fmt: skip


def when(report: Content) -> str:
    """When the run was written, and the later ones that added rules to it."""
    later = [f"{', '.join(one['rules'])}: {moment(one['written'])}" for one in report.get("joined", [])]
    return "; ".join([moment(report["written"]), *later])


def drawn(report: Content) -> str:
    """How the cases were drawn."""
    count = report["cases_per_probe"]
    each = f"{count} drawn for each probe" if count else f"effort {report['effort']}"
    runs = f", {report['runs']} runs" if report["runs"] > 1 else ""
    return f"{each}{runs}, seed {report['seed']}"
