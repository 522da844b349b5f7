"""A report as plain data, ready for strict JSON: one run of the judge on one subject or several.

`schema.json` describes every field. A number that JSON lacks is "NaN", "Infinity" or "-Infinity".
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from conformance.cases.arguments import expected_dtype
from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import UNSUPPORTED
from conformance.checks.findings import Raised
from conformance.checks.levels import EVERY_RULE, JUDGED, LEVELS, STRICT, highest_profile, is_required, lowest_levels
from conformance.checks.results import Cell, Violation
from conformance.reports.causes import list_tuples
from conformance.reports.replays import replay_command, replay_content
from conformance.reports.sentences import describe_finding
from conformance.reports.threshold_sentences import describe_thresholds
from conformance.reports.versions import versions
from conformance.subjects.callables import Target
from conformance.subjects.wrong_answers import OtherType, Returned, ReturnedGradients

SCHEMA = {"name": "transformer-conformance report", "version": 5}
PROJECT = "transformer-conformance"
ARRAYS = {"numpy": "NumPy arrays", "torch": "PyTorch tensors", "jax": "JAX arrays"}
UNPRINTABLE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Control characters for a terminal, and characters that XML or UTF-8 cannot hold."""

Content = dict[str, Any]


def document(
    command: str,
    subjects: list[Content],
    *,
    seed: int | None = None,
    effort: str | None = None,
    cases: int | None = None,
    runs: int = 1,
    seconds: float = 0.0,
    error: str | None = None,
) -> Content:
    """Return the whole report. cases: for each probe. error: why the judge could not finish."""
    found = versions()
    return {
        "schema": dict(SCHEMA),
        "project": found.pop(PROJECT, None),
        "command": command,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": found,
        "seed": seed,
        "effort": effort,
        "cases_per_probe": cases,
        "runs": runs,
        "seconds": round(seconds, 3),
        "conforms": error is None and all(subject["conforms"] for subject in subjects if not subject["peer"]),
        "error": None if error is None else clean_text(error),
        "subjects": subjects,
        "joined": [],
        "part": None,
    }


def subject_content(
    target: Target,
    declaration: Declaration | None,
    operations: Collection[str],
    rules: Iterable[str],
    cells: Mapping[str, Cell],
    violations: list[Content],
    untried: str = "",
    causes: Sequence[Content] = (),
    seconds: float | None = None,
    peer: bool = False,
    left_out: str = "",
    never_given: Sequence[str] = (),
    profile: str = STRICT,
    some: bool = False,
) -> Content:
    """Return the report's part about one subject.

    Args:
        rules: the rules of the operations.
        cells: results of the rules that were tried.
        untried: why the judge did not try everything.
        causes: what is behind the violations, by `cause_content`.
        peer: whether the subject stands there for comparison, and need not conform.
        left_out: what the judge skipped; it counts in no verdict.
        never_given: parameters of the function that the operation does not have.
        profile: decides whether the subject conforms.
        some: whether the caller chose some of the rules, which show no profile to be kept.
    """
    broken = lowest_levels((violation["rule"], violation["level"]) for violation in violations)
    listed = [rule for rule in JUDGED if rule in {*rules, *cells, *broken}]
    return {
        "name": clean_text(target.title),
        "peer": peer,
        "target": target.subject if isinstance(target.subject, str) else None,
        "operations": list(operations),
        "arrays": target.arrays,
        "arrays_guessed": clean_text(target.guessed) or None,
        "source": clean_text(target.source) or None,
        "device": target.device,
        "declaration": None if declaration is None else declaration_content(declaration),
        "profile": profile,
        "conforms": not untried and not any(is_required(level, profile) for level in broken.values()),
        "kept": None if untried or some else highest_profile(broken.values()),
        "levels": {level: [rule for rule in listed if broken.get(rule) == level] for level in LEVELS},
        "untried": clean_text(untried) or None,
        "left_out": clean_text(left_out) or None,
        "never_given": [clean_text(name) for name in never_given],
        "seconds": None if seconds is None else round(seconds, 3),
        "rules": [rule_content(rule, cells.get(rule), broken.get(rule)) for rule in listed],
        "violations": violations,
        "causes": list(causes),
        "model": None,
    }


def declaration_content(declaration: Declaration) -> Content:
    contents = declaration.contents()
    return {
        "features": contents.pop("features"),
        "refused_dtypes": list(declaration.refused_dtypes),
        "mask_required": declaration.mask_required,
        **contents,
        "own_gradients": declaration.vjp is not None,
    }


def rule_content(rule: str, cell: Cell | None, broken: str | None) -> Content:
    """Return the report's part about a rule. broken: the lowest level at which it is violated."""
    judged = EVERY_RULE[rule]
    cell = Cell(wide=-1.0) if cell is None else cell
    tried = "conforms" if cell.cases else "untried"
    return {
        "rule": rule,
        "title": judged.title,
        "statement": judged.statement,
        "status": "violated" if broken is not None or cell.worst > 1 else tried,
        "level": broken,
        "cases": cell.cases,
        "worst": number(cell.worst) if cell.cases else None,
        "worst_wide": number(cell.wide) if cell.wide >= 0 else None,
        "refused": cell.refused,
    }


def violation_content(violation: Violation, replay_file: str | None = None, cause: int | None = None) -> Content:
    """Return a violation with all its evidence.

    cause: the number of its cause, if that shows another violation; it then needs no replay.
    """
    rule, finding = JUDGED[violation.rule], violation.finding
    unrefused, is_value = violation.check == UNSUPPORTED, finding.kind == "value"
    has_place = is_value or bool(finding.index)
    return {
        "rule": rule.id,
        "title": violation.title if unrefused else rule.title,
        "statement": TO_BE_REFUSED if unrefused else rule.statement,
        "level": violation.level,
        "probe": violation.title,
        "kind": finding.kind,
        "message": clean_text(describe_finding(finding)),
        "ratio": number(finding.ratio),
        "result": clean_text(finding.name),
        "dtype": expected_dtype(finding.name, violation.case) if is_value else None,
        "index": list(finding.index) if has_place else None,
        **{name: number(getattr(finding, name)) if has_place else None for name in ("got", "expected", "bound")},
        "ulp": number(violation.ulp) if is_value else None,
        "raised_at": clean_text(finding.raised_at) or None,
        "case": None if violation.case is None else clean_text(repr(violation.case)),
        "worst": [
            {
                "dtype": largest.case.dtype,
                "ratio": number(largest.ratio),
                "level": largest.level,
                "message": clean_text(describe_finding(largest.finding)),
                "case": clean_text(repr(largest.case)),
            }
            for largest in violation.larger
        ],
        "threshold": clean_text(describe_thresholds(violation.threshold)) or None,
        "thresholds": [list_tuples(vars(threshold)) for threshold in violation.threshold],
        "replay": None if cause is not None else replay_content(violation),
        "replay_file": replay_file,
        "replay_command": None if replay_file is None else replay_command(violation, replay_file),
        "called_with": passed_arrays(violation),
        "cause": cause,
        "step": None,
    }


TO_BE_REFUSED = "A call beyond what is supported must raise an error, or be answered rightly."


OF_ARRAYS = re.compile(r"ndarray|tensor|\bjax|\bnumpy\b|\btorch\b", re.IGNORECASE)
"""Words in the text of an error that arrays of the wrong kind cause."""
UNCALLED = ("SystemExit", "ModuleNotFoundError", "ImportError")
"""Errors that other arrays would not prevent."""


def passed_arrays(violation: Violation) -> str | None:
    """Return which arrays the judge passed, if the plainest call fails and its error speaks of arrays of some kind."""
    match violation.finding.detail:
        case Raised(error, text) if error not in UNCALLED:
            words = f"{error}: {text}"
        case Returned(words) | OtherType(words) | ReturnedGradients(words):
            pass
        case _:
            return None
    if violation.rule != "CALL" or violation.case is None or violation.target is None or not OF_ARRAYS.search(words):
        return None
    own = violation.target.arrays or "numpy"
    others = [arrays for arrays in ARRAYS if arrays != own]
    return f"the judge called it with {ARRAYS.get(own, own)}; --arrays {' or '.join(others)} for others"


def clean_text(text: str) -> str:
    """Return the text without characters that a terminal or a file cannot show."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def number(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def real(value: float | str | None) -> float:
    """Return a number of a report as a float; NaN for null."""
    return float("nan") if value is None else float(value)
