"""Comparison of a trained model in two reports: a line for each new verdict, one for larger and one for smaller errors.

A model has dozens of steps, and another version of a framework changes most of their errors a little.
"""

from __future__ import annotations

import numpy as np

from conformance.reports.change import Change, describe_worst, factor, is_change, size, status_change
from conformance.reports.content import Content, real
from conformance.reports.real import EMBEDDINGS, smallest_cosine, violations_of

ABSENT: Content = {"left_out": None, "implementations": []}
UNTAKEN = {"status": "untried", "worst": None}


def model_changes(before: Content, after: Content) -> list[Change]:
    """Return the changes in all models. A larger error is worse only if the model and the sentences are the same."""
    olds, news = ({model["name"]: model for model in report["models"]} for report in (before, after))
    found = []
    for name in dict.fromkeys([*olds, *news]):
        old, new = olds.get(name, ABSENT), news.get(name, ABSENT)
        if old["implementations"] and not new["implementations"]:
            reason = f": {new['left_out']}" if new["left_out"] else ""
            found.append(Change("worse", name, "", f"no longer judged{reason}"))
            continue
        same = before["project"] == after["project"] and same_text(old, new)
        parts = [{one["name"]: one for one in model["implementations"]} for model in (old, new)]
        for one in dict.fromkeys([*parts[0], *parts[1]]):
            found += implementation_changes(f"{one}, {name}", parts[0].get(one), parts[1].get(one), same)
    return found


def same_text(old: Content, new: Content) -> bool:
    return all(old.get(name) == new.get(name) for name in ("version", "sentences"))


def implementation_changes(name: str, old: Content | None, new: Content | None, same: bool) -> list[Change]:
    if new is None:
        return [Change("worse", name, "", "no longer judged")]
    if old is None:
        count = len(violations_of(new))
        told = f"judged now, {count} violation{'s' * (count != 1)}"
        return [Change("other" if new["conforms"] else "worse", name, "", told)]
    return verdict_changes(name, old, new) + error_changes(name, old, new, same) + cosine_changes(name, old, new, same)


def verdict_changes(name: str, old: Content, new: Content) -> list[Change]:
    """Return the steps whose verdict changed."""
    olds, news = steps(old), steps(new)
    pairs = {step: (olds.get(step, UNTAKEN), news.get(step, UNTAKEN)) for step in (*olds, *news)}
    differing = {step: pair for step, pair in pairs.items() if pair[0]["status"] != pair[1]["status"]}
    coming = [step for step, pair in differing.items() if pair[0] is UNTAKEN and pair[1]["status"] == "conforms"]
    found = []
    if len(coming) > 1:  # one line for all: another version of the judge may add dozens
        found.append(
            Change("other", name, coming[0], f"tried now for the first time, and {len(coming) - 1} more; they conform")
        )
        differing = {step: pair for step, pair in differing.items() if step not in coming}
    for step, pair in differing.items():
        kind, text = status_change(*pair)
        found.append(Change(kind, name, step, text))
    return found


def error_changes(name: str, old: Content, new: Content, same: bool) -> list[Change]:
    """Count the steps whose errors grew or shrank under the same verdict, with the largest change."""
    olds, news = steps(old), steps(new)
    factors = {
        step: factor(real(olds[step]["worst"]), real(news[step]["worst"]))
        for step in news
        if step in olds and olds[step]["status"] == news[step]["status"]
    }
    moved = {step: by for step, by in factors.items() if is_change(by)}
    ways = {"worse": [s for s, by in moved.items() if by > 1], "better": [s for s, by in moved.items() if by < 1]}
    found = []
    for kind, there in ways.items():
        if there:
            most = max(there, key=lambda step: size(moved[step]))
            told = f"{'larger' if kind == 'worse' else 'smaller'} errors in {len(there)} of {len(news)} steps, "
            told += f"most of all in this one: {describe_worst(olds[most])} -> {describe_worst(news[most])}"
            found.append(mark_other_text(Change(kind, name, most, told), same))
    return found


def cosine_changes(name: str, old: Content, new: Content, same: bool) -> list[Change]:
    """Return the change of the sentence embeddings: another verdict, or another smallest cosine."""
    text = f"smallest cosine {smallest_cosine(old)} -> {smallest_cosine(new)}"
    status = old["embeddings"]["status"], new["embeddings"]["status"]
    if status[0] != status[1]:
        kind, verdict = ("worse", "violated now") if status[1] == "violated" else ("better", "repaired")
        return [Change(kind, name, EMBEDDINGS, f"{verdict}, {text}")]
    by = factor(distance(old), distance(new))
    change = Change("worse" if by > 1 else "better", name, EMBEDDINGS, text)
    return [mark_other_text(change, same)] if is_change(by) else []


def distance(implementation: Content) -> float:
    """Return the distance of the smallest cosine from 1, at least the spacing of float64 there."""
    return float(np.maximum(1 - real(implementation["embeddings"]["cosine"]), np.finfo(np.float64).eps))


def mark_other_text(change: Change, same: bool) -> Change:
    """Return the change without a verdict if the text or the model differs."""
    return change if same else Change("other", change.subject, change.rule, f"{change.text}, on other text")


def steps(implementation: Content) -> dict[str, Content]:
    return {step["step"]: step for step in implementation["steps"]}
