"""Causes as plain data for a report, and the sentences about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.cases.declaration import FEATURES
from conformance.diagnosis.cause import Cause
from conformance.diagnosis.pattern import Pattern
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Mistake
from conformance.reports.threshold_sentences import WORDS
from conformance.runner.dimensions import PRODUCTS

Content = dict[str, Any]
CONVENTIONS = "--conventions"
LAYOUT_FIRST = "--layout BTHD"
"""Options that declare a departure, and another layout."""

TITLES = {
    "arithmetic": "digits are lost in 16 bits, by no known mistake; arithmetic in 16 bits loses as many",
    "digits": "digits are lost, and no known mistake explains it",
    "numbers": "numbers are wrong, and no known mistake explains them",
    "error": "calls fail",
    "state": "results depend on earlier calls, or on chance",
    "memory": "results depend on how arrays lie in memory: in contiguous arrays the same numbers are right",
    "refusal": "calls are answered that must be refused",
}
"""What is said of a cause without a known mistake, by its kind."""


# --- data -------------------------------------------------------------------------------------------------------------


def cause_content(cause: Cause) -> Content:
    """Return a cause with its own fields; `cause_with_violation` adds the violation that shows it."""
    diagnosis, condition, pattern = cause.diagnosis, cause.condition, cause.pattern
    mistake = None
    if diagnosis is not None:
        mistake = mistake_content(diagnosis.mistake)
        mistake |= {name: getattr(diagnosis, name) for name in ("explained", "failing", "passing")}
        mistake["against"] = mistake["beside"] = 0
        mistake["alternatives"] = [mistake_content(one) for one in diagnosis.alternatives]
    return {
        "kind": cause.kind,
        "level": cause.level,
        "rules": list(cause.rules),
        "mistake": mistake,
        "condition": None if condition is None or condition.clauses == 0 else condition_content(condition),
        "pattern": None if pattern is None else pattern_content(pattern),
        "conventions": dict(cause.conventions),
        "lacks": list(cause.lacks),
        "limits": cause.limits,
        "layout": cause.has_other_layout,
    }


def pattern_content(pattern: Pattern) -> Content:
    places = [list_tuples(vars(one)) for one in pattern.places]
    return {"result": pattern.result, "share": pattern.share, "places": places}


def mistake_content(mistake: Mistake) -> Content:
    values = {
        name: value if isinstance(value, int | float | str) else getattr(value, "__name__", str(value))
        for name, value in mistake.values.items()
    }
    return {"id": mistake.id, "rule": mistake.rule, "says": mistake.says.format(**values), "parameters": values}


def condition_content(condition: Condition) -> Content:
    """Return the fields that ask for something."""
    requirements = list_tuples(condition.requirements)
    return requirements if requirements.keys() - {"axis"} else {}


def list_tuples(fields: Mapping[str, Any]) -> Content:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


# --- sentences --------------------------------------------------------------------------------------------------------


def describe_cause(cause: Content) -> str:
    if cause["mistake"] is None:
        return TITLES[cause["kind"]]
    backward = (cause["condition"] or {}).get("passes") == "backward"
    return f"{cause['mistake']['says']}{', in the backward pass only' if backward else ''}"


def describe_evidence(cause: Content) -> str | None:
    mistake = cause["mistake"]
    if mistake is None:
        return None
    passing = f"; nothing speaks against it in {mistake['passing']} that pass" if mistake["passing"] else ""
    if against := mistake.get("against"):
        contradict = "contradicts" if against == 1 else "contradict"
        passing = f"; of {against + mistake['passing']} that pass, {against} {contradict} it"
    beside = f"; {describe_beside(mistake['beside'])}" if mistake.get("beside") else ""
    return f"explains {mistake['explained']} of {mistake['failing']} failing cases{beside}{passing}"


def describe_beside(count: int) -> str:
    """Count the failing cases that a port's known mistake does not explain, in the sublayer of those that it does."""
    fails = "more fails" if count == 1 else "more fail"
    return f"{count} {fails} in the same sublayer, probably by the same mistake"


def describe_alternatives(cause: Content) -> str | None:
    """Name the mistakes that no case told apart from it."""
    alternatives = [] if cause["mistake"] is None else cause["mistake"]["alternatives"]
    others = [says for says in dict.fromkeys(one["says"] for one in alternatives) if says != cause["mistake"]["says"]]
    return "; ".join(others[:3]) or None


def describe_condition(condition: Content | None) -> str | None:
    """Say when a cause shows; None where it always does, or in one of the passes alone."""
    if not condition:
        return None
    axis, parts = condition.get("axis", ""), []
    if past := condition.get("past"):
        parts.append(f"past {past:,} {axis_words(axis, past)}")
    if (most := condition.get("up_to")) is not None:
        parts.append(f"up to {most:,} {axis_words(axis, most)}")
    for name, kind in (("partial", "no multiple"), ("whole", "a multiple")):
        if name in condition:
            parts.append(f"where the number of {axis_words(axis)} is {kind} of {condition[name]}")
    if "features" in condition:
        parts.append(f"with {join_words([feature_words(name) for name in condition['features']])}")
    if "lacks" in condition:
        parts.append(f"without {' or '.join(feature_words(name) for name in condition['lacks'])}")
    if "settings" in condition:
        parts.append(f"in configs with {', '.join(condition['settings'])}")
    if "dtypes" in condition:
        parts.append(f"in {join_words(condition['dtypes'])}")
    return f"only {', '.join(parts)}" if parts else None


def describe_declaration(cause: Content, subject: Content | None) -> tuple[str, str] | None:
    """Return what kind of options declare that a cause is meant, and the options; None where there are none.

    The layout comes first: what a function does not support shows in its own layout only.
    """
    features = ",".join(f"no-{name}" for name in FEATURES if name in cause["lacks"])
    if cause["layout"] or (features and any(one["layout"] for one in (subject or {}).get("causes", ()))):
        return "layout", LAYOUT_FIRST
    if cause["limits"]:
        return "supports", f"--limits {','.join(f'{name}={size}' for name, size in cause['limits'].items())}"
    declared = (subject or {}).get("declaration") or {}
    dtypes = [name for name in declared.get("dtypes", ()) if name not in cause["lacks"]]
    options = [f"--supports {features}"] if features else []
    if dtypes and len(dtypes) < len(declared["dtypes"]):
        options.append(f"--dtypes {','.join(dtypes)}")
    scalings = [name for name in declared.get("scalings", ()) if name not in cause["lacks"]]
    if scalings and len(scalings) < len(declared["scalings"]):
        options.append(f"--scalings {','.join(scalings)}")
    if options:
        return "supports" if cause["mistake"] is None else "lacks", " ".join(options)
    if cause["conventions"]:
        return "conventions", f"{CONVENTIONS} {','.join(f'{n}={v}' for n, v in cause['conventions'].items())}"
    return None


def feature_words(name: str) -> str:
    return FEATURE_WORDS.get(name, name.replace("_", " "))


FEATURE_WORDS = {
    "cross": "other numbers of queries than of keys",
    "gqa": "grouped heads",
    "value_width": "values of another width than keys",
    "causal": "a causal mask",
    "window": "a window",
    "dense": "a mask as an array",
    "lengths": "key lengths",
    "padding": "key padding",
    "empty": "lengths of 0",
    "empty_rows": "a convention for empty rows",
    "hidden_rows": "rows that allow nothing",
    "bias": "a bias",
    "offset": "an offset",
}


def describe_pattern(pattern: Content | None) -> str | None:
    """Say where the first wrong result is wrong; None where it is so everywhere."""
    if pattern is None:
        return None
    parts = [part for part in map(describe_places, pattern["places"]) if part]
    return f"{pattern['result']} is wrong {', '.join(parts)}" if parts else None


def describe_places(places: Content) -> str | None:
    """Say which places along an axis are wrong, counted from 0; None for all of them."""
    axis = tuple(places["axis"])
    name = axis_words(PRODUCTS.get(axis, " ".join(axis)))
    start, size, stride = places["start"], places["size"], places["stride"]
    told = {
        "from": f"in {name} from {start} on (of {size})",
        "up to": f"in {name} up to {start} (of {size})",
        "range": f"in {name} {start} to {start + places['count'] - 1} (of {size})",
        "one": f"in one of {size} {name}: {start}",
        "every": f"in {name} {start}, {start + stride}, ... (one in {stride})",
        "some": f"in {places['count']} of {size} {name}",
    }
    return told.get(places["kind"])


def axis_words(axis: str, count: int = 2) -> str:
    """The words for an axis, whose name may have a number: "rows 1" is the second axis of rows."""
    words = WORDS.get(axis) or WORDS.get(axis.partition(" ")[0], (axis, axis))
    return words[count != 1]


def join_words(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
