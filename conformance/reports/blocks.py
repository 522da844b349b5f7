"""A violation as a readable block: rule, probe, smallest case, sizes, numbers, diagnosis, replay command."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from conformance.cases.signatures import parameters_never_given
from conformance.judge.judged_rules import CONTRACT
from conformance.reports.content import Content, real


def heading(violation: Content) -> str:
    return f"{violation['rule']} {violation['title']}: {violation['statement']}"


def rows(violation: Content) -> list[tuple[str, str]]:
    """(label, text) of everything that is known of a violation; a list of several lines repeats no label."""
    found = [("found by", violation["probe"])]
    if violation["index"] is None:
        found.append(("found", violation["message"]))
    else:
        found += [("where", where(violation)), ("got", got(violation))]
        found += [("expected", expected(violation)), ("error", error(violation))]
        if violation["dtype"] is None:  # a message of its own beside the numbers
            found.append(("found", violation["message"]))
    if violation.get("called_with") is not None:
        found.append(("arrays", violation["called_with"]))
    if violation["case"] is not None:
        found.append(("smallest case", violation["case"]))
    if violation.get("threshold") is not None:  # which older reports lack
        found.append(("sizes", violation["threshold"]))
    found += [("diagnosis" if i == 0 else "", line) for i, line in enumerate(violation["diagnosis"])]
    if violation["replay_command"] is not None:
        found.append(("replay", violation["replay_command"]))
    return found


def block(violation: Content) -> str:
    """The same as plain text."""
    return "\n".join([heading(violation), *(f"  {label:<15}{text}" for label, text in rows(violation))])


# --- what a subject's verdict leaves open -----------------------------------------------------------------------------


def never_given(subject: Content) -> str:
    """Parameters that no case gave; empty where there are none, as in older reports."""
    names = subject.get("never_given") or ()
    return parameters_never_given(names, subject["operations"][0]) if names else ""


def rules_not_tried(subject: Content) -> str:
    """How many rules of those that speak of the operation, and which; empty where all were tried."""
    rules = [rule for rule in subject["rules"] if rule["rule"] != CONTRACT.id]
    untried = [rule["rule"] for rule in rules if rule["status"] == "untried"]
    return f"{len(untried)} of {len(rules)} rules not tried: {', '.join(untried)}" if untried else ""


def follow(subject: Content) -> str:
    """Which violations follow from the others, where there are any."""
    rules = [violation["rule"] for violation in subject["violations"] if violation.get("follows")]
    several = len(rules) > 1
    fail = "fail by the same mistakes, or on cases that use nothing these rules speak of: they follow"
    fails = "fails by the same mistake, or on a case that uses nothing this rule speaks of: it follows"
    return f"{', '.join(rules)} {fail if several else fails} from the above." if rules else ""


def only_refused(rule: Content) -> bool:
    """Whether all that was asked of the rule was what the subject does not support, and it refused that."""
    return rule["status"] == "conforms" and rule.get("refused", 0) == rule["cases"]


# --- numbers ----------------------------------------------------------------------------------------------------------


def where(violation: Content) -> str:
    return f"{violation['result']}{violation['index']}"


def got(violation: Content) -> str:
    """With as many digits as tell it from its neighbours in its dtype."""
    value, dtype = real(violation["got"]), violation["dtype"]
    return repr(value) if dtype in (None, "float64") else str(narrowed(value, dtype))


def expected(violation: Content) -> str:
    """With digits enough to see how far off a number of that dtype is."""
    value = real(violation["expected"])
    return repr(value) if violation["dtype"] in (None, "float64") else repr(float(f"{value:.12g}"))


def narrowed(value: float, dtype: str) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)[()]


def error(violation: Content) -> str:
    """The error in units of its bound and in units in the last place."""
    came, due, bound = (real(violation[name]) for name in ("got", "expected", "bound"))
    if not math.isfinite(came) or not math.isfinite(due):
        return "no bound allows it"
    ratio, ulp = real(violation["ratio"]), real(violation["ulp"])
    exactly = "where only the exact number will do"
    off = f"{abs(came - due):.3g}, " + (f"{ratio:.3g} times its bound of {bound:.3g}" if bound else exactly)
    return f"{off}, {ulp:.3g} ULP of {violation['dtype']}" if math.isfinite(ulp) else off
