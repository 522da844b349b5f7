"""A cause as a readable block: what is wrong, evidence, numbers, smallest case, sizes, replay command."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.cases.case import numpy_dtype
from conformance.cases.signatures import MASK_REQUIRED, describe_never_given
from conformance.checks.findings import Finding
from conformance.checks.levels import CONTRACT, is_required
from conformance.checks.results import Violation
from conformance.reports import causes
from conformance.reports.content import Content, real
from conformance.reports.sentences import describe_finding, describe_violation, levels_line
from conformance.reports.subjects import checked_content, rules_of_operation

if TYPE_CHECKING:
    from conformance.diagnosis.cause import Cause
    from conformance.judge.report import Report

DECLARE = "if it is not meant to support this, say so:"
REFUSE = "if it is not meant to support this, let it raise an error, and say so:"
INTENDED = "if this is meant to be so, say so:"
FIX = "let it raise an error for such a call, or take the argument out of its signature, where it has one of its own"
OTHER_LAYOUT = "its arrays seem to be [batch, length, heads, width]; if so, judge it again with:"
ADVICE = {"supports": DECLARE, "lacks": REFUSE, "conventions": INTENDED, "layout": OTHER_LAYOUT}
"""When the options that a cause may be declared by are right, by what they are."""


def describe(fact: Finding | Violation | Cause) -> str:
    """Return a fact of a report in words.

    Args:
        fact: a cause, what is wrong; a violation, with its rule, smallest case and the sizes from which it shows; or
            a finding, what is wrong with one result.

    Returns:
        One line for a cause or a finding; a line for each of these for a violation.
    """
    if isinstance(fact, Violation):
        return describe_violation(fact)
    return describe_finding(fact) if isinstance(fact, Finding) else causes.describe_cause(causes.cause_content(fact))


def heading(cause: Content) -> str:
    """Return the rule that a cause is about, and what is wrong."""
    shown, rules = cause["violation"], cause["rules"]
    if cause["mistake"] is None and len(rules) == 1:
        return f"{rules[0]} {shown['title']}: {shown['statement']}"
    own = None if cause["mistake"] is None else cause["mistake"]["rule"]
    return f"{own if own in rules else shown['rule']}: {causes.describe_cause(cause)}"


def rows(cause: Content, subject: Content | None = None) -> list[tuple[str, str]]:
    """Return (label, text) for every fact about a cause; further lines of one fact have an empty label."""
    violation, numbers = cause["violation"], list[tuple[str, str]]()
    if violation["index"] is not None:
        numbers = [("where", format_place(violation)), ("got", got(violation))]
        numbers += [("expected", format_expected(violation)), ("error", error(violation))]
    declared = causes.describe_declaration(cause, subject)
    advice, options = (None, None) if declared is None else (ADVICE[declared[0]], declared[1])
    facts: list[tuple[str, str | None]] = [
        ("first wrong in", violation.get("step")),
        ("level", cause["level"]),
        ("breaks", ", ".join(cause["rules"]) if len(cause["rules"]) > 1 else None),
        ("evidence", causes.describe_evidence(cause)),
        ("or", causes.describe_alternatives(cause)),
        ("when", causes.describe_condition(cause["condition"])),
        ("found by", f"{violation['rule']} {violation['probe']}"),
        *numbers,
        # Beside numbers there may be a message of its own; of a port it says so where no known mistake explains them.
        ("found", violation["message"] if violation["dtype"] is None or is_unexplained(cause) else None),
        ("pattern", None if cause["mistake"] else causes.describe_pattern(cause["pattern"])),
        ("arrays", violation["called_with"]),
        ("raised at", violation["raised_at"]),
        ("smallest case", violation["case"]),
        ("sizes", violation["threshold"]),
        *(("" if number else "worst", worst_line(one, violation)) for number, one in enumerate(violation["worst"])),
        ("declare", advice),
        ("", options),
        ("fix", FIX if violation["kind"] == "unrefused" else None),
        ("replay", violation["replay_command"]),
    ]
    return [(label, text) for label, text in facts if text is not None]


def is_unexplained(cause: Content) -> bool:
    """Whether it is a port's, and no known mistake explains its numbers."""
    return "step" in cause["violation"] and cause["mistake"] is None


def worst_line(worst: Content, violation: Content) -> str:
    level = "" if worst["level"] == violation["level"] else f" (level {worst['level']})"
    return f"{worst['dtype']}{level}: {worst['message']}"


def block(cause: Content, subject: Content | None = None) -> str:
    return "\n".join([heading(cause), *(f"  {label:<15}{text}" for label, text in rows(cause, subject))])


def describe_verdict(report: Report) -> str:
    count = len({violation.rule for violation in report.violations if is_required(violation.level, report.profile)})
    verdict = "conforms" if report.conforms else f"violates {count} rule{'s' * (count != 1)}"
    return f"{report.subject} {verdict} ({report.profile}); {report.cases} cases, seed {report.seed}"


def describe_report(report: Report) -> str:
    """Return verdict, levels and the block of every cause; for an assertion's message."""
    subject = checked_content(report, None)
    lines = [describe_verdict(report), levels_line(report.levels), describe_guess(subject)]
    lines += [block(cause, subject) for cause in subject["causes"]]
    lines += [f"not everything was tried: {report.untried}"] if report.untried else []
    return "\n".join(filter(None, lines))


def summary(subject: Content) -> str:
    """Say how many causes explain how many violations; empty where each violation is a cause of its own."""
    found = subject.get("causes") or []
    if not found or len(found) == len(subject["violations"]):
        return ""
    count = len({violation["rule"] for violation in subject["violations"]})
    known, one = sum(cause["mistake"] is not None for cause in found), len(found) == 1
    named = f", {known} of them known," if known and not one else ""
    return f"{len(found)} cause{'s' * (not one)}{named} explain{'s' * one} {count} violated rule{'s' * (count != 1)}"


NOTHING = "embedding and output alone"
EVERYWHERE = (
    "Every line is wrong: what is in all of them is the embedding, the last norm and the output layer, and whatever "
    "all norms share."
)


def draw_model(subject: Content) -> list[str]:
    """Draw a model: the error with each sublayer alone, in bounds, and the first wrong one marked.

    That is the line of the first cause's sublayer, or the first line for what no sublayer does.
    """
    sublayers = subject["model"]["sublayers"]
    if not sublayers:
        return []
    steps = [violation["step"] for violation in subject["violations"] if violation.get("step")]
    names = [one["name"] for one in sublayers]
    first = steps[0] if steps and steps[0] in names else ""
    width = max(len(name or NOTHING) for name in names)
    lines = ["error with each sublayer alone, in bounds:"]
    for one in sublayers:
        wrong = real(one["ratio"]) > 1
        mark = f"  <- {'the first that is ' * (one['name'] == first)}wrong" if wrong else ""
        lines.append(f"  {one['name'] or NOTHING:<{width}}  {real(one['ratio']):10.3g}{mark}")
    everywhere = all(real(one["ratio"]) > 1 for one in sublayers) and not (steps and "blocks." in steps[0])
    return [*lines, EVERYWHERE] if everywhere else lines


# --- limits of a subject's verdict ------------------------------------------------------------------------------------


def describe_source(subject: Content) -> str:
    """Name the file of the function's code, if it was imported from elsewhere than the target; else empty."""
    source = subject.get("source")
    return f"judged: {source}{', an installed copy' * ('site-packages' in source)}" if source else ""


def describe_guess(subject: Content) -> str:
    """Name the arrays that the judge chose, and why; empty if the caller chose them."""
    why = subject.get("arrays_guessed")
    return f"arrays: {subject['arrays']}, a guess: {why}; --arrays names others" if why else ""


def never_given_line(subject: Content) -> str:
    """Name the parameters that no test case passed; empty if there are none, as in older reports."""
    names = subject.get("never_given") or ()
    return describe_never_given(names, subject["operations"][0]) if names else ""


def levels(subject: Content) -> str:
    """Name by level the rules that are violated, and the highest profile that is kept; empty for an older report.

    Where only some rules were tried, no profile is said to be kept.
    """
    if "levels" not in subject:
        return ""
    told, untried = levels_line(subject["levels"]), subject["untried"]
    listed = {rule["rule"] for rule in subject["rules"]}
    chosen = any(not listed.issuperset(rules_of_operation(operation)) for operation in subject["operations"])
    if subject["kept"] is None and chosen:
        return f"Profile {subject['profile']}. {told}, of the rules that were chosen"
    told = f"Profile {subject['profile']}. {told}"
    return told if untried else f"{told}. Highest profile kept: {subject['kept'] or 'none'}"


def requires_rule(violation: Content, subject: Content) -> bool:
    """Return whether the subject's profile asks for what is violated; older reports ask for everything."""
    return "profile" not in subject or is_required(violation["level"], subject["profile"])


def count_violated_rules(subject: Content) -> int:
    """Return how many rules are violated that the subject's profile asks for."""
    return len({violation["rule"] for violation in subject["violations"] if requires_rule(violation, subject)})


def exceeds_profile(rule: Content, subject: Content) -> bool:
    """Return whether a rule is violated at levels only that the subject's profile does not ask for."""
    violated = rule["status"] == "violated" and rule.get("level") is not None
    return violated and not is_required(rule["level"], subject["profile"])


def describe_untried_rules(subject: Content) -> str:
    """Count and name the rules of the operation that were not tried; empty if all were."""
    rules = [rule for rule in subject["rules"] if rule["rule"] != CONTRACT.id]
    untried = [rule["rule"] for rule in rules if rule["status"] == "untried"]
    return f"{len(untried)} of {len(rules)} rules not tried: {', '.join(untried)}" if untried else ""


class Note(NamedTuple):
    """A sentence below the violations. kind: what it is about."""

    kind: str
    text: str


def notes(subject: Content) -> list[Note]:
    """Return what a report says of a subject after its violations, in order."""
    untried = subject["untried"]
    told = {
        "headline": summary(subject),
        "guess": describe_guess(subject),
        "source": describe_source(subject),
        "skipped": never_given_line(subject),
        "masked": MASK_REQUIRED if (subject["declaration"] or {}).get("mask_required") else "",
        "left-out": subject["left_out"],
        "message": untried and f"The judge could not try everything: {untried}",
        "levels": levels(subject),
    }
    return [Note(kind, f"{text}.") for kind, text in told.items() if text]


def refuses_all(rule: Content) -> bool:
    """Return whether the subject supports none of the rule's cases and refused them all."""
    return rule["status"] == "conforms" and rule.get("refused", 0) == rule["cases"]


# --- numbers ----------------------------------------------------------------------------------------------------------


def format_place(violation: Content) -> str:
    return f"{violation['result']}{violation['index']}"


def got(violation: Content) -> str:
    """Return the number with enough digits to distinguish it from its neighbours in its dtype."""
    value, dtype = real(violation["got"]), violation["dtype"]
    if dtype in (None, "float64"):
        return repr(value)
    with np.errstate(all="ignore"):
        return str(np.asarray(value).astype(numpy_dtype(dtype))[()])


def format_expected(violation: Content) -> str:
    """Return the number with enough digits to show an error of that dtype."""
    value = real(violation["expected"])
    return repr(value) if violation["dtype"] in (None, "float64") else repr(float(f"{value:.12g}"))


def error(violation: Content) -> str:
    """Return the error, also in units of its bound and in units in the last place."""
    came, due, bound = (real(violation[name]) for name in ("got", "expected", "bound"))
    if not math.isfinite(came) or not math.isfinite(due):
        return "no bound allows it"
    ratio, ulp = real(violation["ratio"]), real(violation["ulp"])
    exactly = "where only the exact value conforms"
    off = f"{abs(came - due):.3g}, " + (f"{ratio:.3g} times its bound of {bound:.3g}" if bound else exactly)
    return f"{off}, {ulp:.3g} ULP of {violation['dtype']}" if math.isfinite(ulp) else off
