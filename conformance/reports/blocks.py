"""A violation as a readable block: rule, probe, smallest case, sizes, numbers, diagnosis, replay command."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from conformance.cases.signatures import MASK_REQUIRED, parameters_never_given
from conformance.checks.judged_rules import CONTRACT
from conformance.checks.levels import within
from conformance.diagnosis.departures import LACKING
from conformance.reports.content import Content, real
from conformance.reports.sentences import CONVENTION, LAYOUT_FIRST, levels_line, title_of_another
from conformance.reports.subjects import rules_listed

DECLARE = "if it is not meant to support this, say so:"
REFUSE = "if it is not meant to support this, let it raise an error, and say so:"
INTENDED = "if this is meant to be so, say so:"
MEND = "let it raise an error for such a call, or take the argument out of its signature, where it has one of its own"
OTHER_LAYOUT = "its arrays seem to be [batch, length, heads, width]; if so, judge it again with:"


def heading(violation: Content) -> str:
    return f"{violation['rule']} {violation['title']}: {violation['statement']}"


def rows(violation: Content) -> list[tuple[str, str]]:
    """Return (label, text) for every fact about a violation; further lines of one fact have an empty label."""
    found = [("level", violation["level"])] if "level" in violation else []  # which older reports lack
    found.append(("found by", violation["probe"]))
    if violation["index"] is None:
        found.append(("found", violation["message"]))
    else:
        found += [("where", where(violation)), ("got", got(violation))]
        found += [("expected", expected(violation)), ("error", error(violation))]
        if violation["dtype"] is None:  # a message of its own beside the numbers
            found.append(("found", violation["message"]))
    if violation.get("called_with") is not None:
        found.append(("arrays", violation["called_with"]))
    if violation.get("raised_at") is not None:  # which older reports lack
        found.append(("raised at", violation["raised_at"]))
    if violation["case"] is not None:
        found.append(("smallest case", violation["case"]))
    if violation.get("threshold") is not None:  # which older reports lack
        found.append(("sizes", violation["threshold"]))
    found += under("diagnosis", violation["diagnosis"])
    found += under("worst", [line for one in violation.get("worst", ()) for line in worst_lines(one, violation)])
    if violation.get("declare") is not None:
        found += under("declare", [advice(violation), violation["declare"]])
    if violation.get("kind") == "unrefused":  # which older reports lack
        found.append(("mend", MEND))
    if violation["replay_command"] is not None:
        found.append(("replay", violation["replay_command"]))
    return found


def advice(violation: Content) -> str:
    """Say when the options of "declare" are right."""
    options = violation["declare"]
    if options == LAYOUT_FIRST:
        return OTHER_LAYOUT
    if options.startswith(CONVENTION):
        return INTENDED
    return REFUSE if any(name in LACKING for name in violation["diagnosis"]) else DECLARE


def under(label: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(label if number == 0 else "", line) for number, line in enumerate(lines)]


def worst_lines(worst: Content, violation: Content) -> list[str]:
    """Return the largest error in a dtype; of another mistake its smallest case and its names too."""
    level = "" if worst["level"] == violation["level"] else f" (level {worst['level']})"
    told = [worst["message"]]
    if worst["another_mistake"]:
        told = [f"{worst['message']}; {worst['case']}", *worst["diagnosis"]]
        ratio = real(worst["ratio"])
        up_to = f"up to {ratio:.3g} bounds" if math.isfinite(ratio) else "beyond any bound"
        title = title_of_another(worst["diagnosis"])
        told.insert(0, f"{up_to}, {title}: on the same numbers it gives other errors than the one above")
    return [f"{worst['dtype']}{level}: {line}" for line in told]


def block(violation: Content) -> str:
    """Return the block as plain text."""
    return "\n".join([heading(violation), *(f"  {label:<15}{text}" for label, text in rows(violation))])


# --- limits of a subject's verdict ------------------------------------------------------------------------------------


def guessed(subject: Content) -> str:
    """Name the arrays that the judge chose, and why; empty if the caller chose them."""
    why = subject.get("arrays_guessed")
    return f"arrays: {subject['arrays']}, a guess: {why}; --arrays names others" if why else ""


def never_given(subject: Content) -> str:
    """Name the parameters that no test case passed; empty if there are none, as in older reports."""
    names = subject.get("never_given") or ()
    return parameters_never_given(names, subject["operations"][0]) if names else ""


def levels(subject: Content) -> str:
    """Name by level the rules that are violated, and the highest profile that is kept; empty for an older report.

    Where only some rules were tried, no profile is said to be kept.
    """
    if "levels" not in subject:
        return ""
    told, untried = levels_line(subject["levels"]), subject["untried"]
    listed = {rule["rule"] for rule in subject["rules"]}
    chosen = any(not listed.issuperset(rules_listed(operation)) for operation in subject["operations"])
    if subject["kept"] is None and chosen:
        return f"Profile {subject['profile']}. {told}, of the rules that were chosen"
    told = f"Profile {subject['profile']}. {told}"
    return told if untried else f"{told}. Highest profile kept: {subject['kept'] or 'none'}"


def asked_for(violation: Content, subject: Content) -> bool:
    """Return whether the subject's profile asks for what is violated; older reports ask for everything."""
    return "profile" not in subject or within(violation["level"], subject["profile"])


def above_profile(rule: Content, subject: Content) -> bool:
    """Return whether a rule is violated at levels only that the subject's profile does not ask for."""
    violated = rule["status"] == "violated" and rule.get("level") is not None
    return violated and not within(rule["level"], subject["profile"])


def rules_not_tried(subject: Content) -> str:
    """Count and name the rules of the operation that were not tried; empty if all were."""
    rules = [rule for rule in subject["rules"] if rule["rule"] != CONTRACT.id]
    untried = [rule["rule"] for rule in rules if rule["status"] == "untried"]
    return f"{len(untried)} of {len(rules)} rules not tried: {', '.join(untried)}" if untried else ""


def follow(subject: Content) -> str:
    """Name the violations that may follow from the others; empty if there are none."""
    rules = [violation["rule"] for violation in subject["violations"] if violation.get("follows")]
    return (
        f"{', '.join(rules)} may follow from the violations above: mend these first, and check again." if rules else ""
    )


class Note(NamedTuple):
    """A sentence below the violations. kind: what it is about."""

    kind: str
    text: str


def notes(subject: Content) -> list[Note]:
    """Return what a report says of a subject after its violations, in order."""
    headline, untried = subject["headline"], subject["untried"]
    told = {
        "headline": headline and f"It looks as if {headline}",
        "guess": guessed(subject),
        "skipped": never_given(subject),
        "masked": MASK_REQUIRED if (subject["declaration"] or {}).get("mask_required") else "",
        "left-out": subject["left_out"],
        "message": untried and f"The judge could not try everything: {untried}",
        "levels": levels(subject),
    }
    return [Note(kind, f"{text}.") for kind, text in told.items() if text]


def only_refused(rule: Content) -> bool:
    """Return whether the subject supports none of the rule's cases and refused them all."""
    return rule["status"] == "conforms" and rule.get("refused", 0) == rule["cases"]


# --- numbers ----------------------------------------------------------------------------------------------------------


def where(violation: Content) -> str:
    return f"{violation['result']}{violation['index']}"


def got(violation: Content) -> str:
    """Return the number with enough digits to distinguish it from its neighbours in its dtype."""
    value, dtype = real(violation["got"]), violation["dtype"]
    return repr(value) if dtype in (None, "float64") else str(narrowed(value, dtype))


def expected(violation: Content) -> str:
    """Return the number with enough digits to show an error of that dtype."""
    value = real(violation["expected"])
    return repr(value) if violation["dtype"] in (None, "float64") else repr(float(f"{value:.12g}"))


def narrowed(value: float, dtype: str) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)[()]


def error(violation: Content) -> str:
    """Return the error, also in units of its bound and in units in the last place."""
    came, due, bound = (real(violation[name]) for name in ("got", "expected", "bound"))
    if not math.isfinite(came) or not math.isfinite(due):
        return "no bound allows it"
    ratio, ulp = real(violation["ratio"]), real(violation["ulp"])
    exactly = "where only the exact value conforms"
    off = f"{abs(came - due):.3g}, " + (f"{ratio:.3g} times its bound of {bound:.3g}" if bound else exactly)
    return f"{off}, {ulp:.3g} ULP of {violation['dtype']}" if math.isfinite(ulp) else off
