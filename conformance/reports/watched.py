"""What is found of a model's attention calls: a table, a block for every kind of violation, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from conformance.cases.case import Case, heads_and_keys
from conformance.checks.findings import Finding
from conformance.checks.levels import JUDGED, is_required
from conformance.checks.results import Violation
from conformance.reports.causes import cause_content, describe_cause
from conformance.reports.content import Content, clean_text, number
from conformance.reports.models import format_ratio
from conformance.reports.sentences import describe_finding
from conformance.reports.versions import versions
from reference_numpy import materialize
from specification import Causal, SlidingWindow

if TYPE_CHECKING:
    from conformance.judge.watched import JudgedCall

SCHEMA = {"name": "transformer-conformance watch", "version": 2}


def calls_table(calls: Sequence[JudgedCall], profile: str) -> Table:
    """Return a table with a row for every call: heads (of queries/of keys), pairs, mask, and largest error ratio.

    The mask has two cells: which pairs it allows, and the form in which the function got it. What the profile does not
    ask for is told by its level.
    """
    table = Table()
    for name in ("layer", "heads", "pairs", "mask", "given as", "ratio", "verdict"):
        if name in ("heads", "pairs", "ratio"):
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    for call in calls:
        table.add_row(*call_cells(call, profile))
    return table


def call_cells(call: JudgedCall, profile: str) -> list[Text | str]:
    if call.case is None or call.worst is None:
        return [call.layer, "", "", "", "", "", Text(f"not judged: {call.reason}", style="red")]
    H, G, Q, K = heads_and_keys(call.case)
    heads = str(H) if H == G else f"{H}/{G}"
    broken = [part.violation for part in call.parts if part.violation is not None]
    style = "" if not broken else "bold red" if any(is_required(v.level, profile) for v in broken) else "yellow"
    rules = ", ".join(f"{found.rule} ({found.level})" for found in broken)
    verdict = f"breaks {rules}" if broken else "conforms" if call.is_judged else "not judged in full"
    verdict += f"; {call.reason}" if call.reason else ""
    shown = [heads, f"{Q} x {K}", mask_name(call.case), call.given]
    return [call.layer, *shown, Text(format_ratio(call.worst.ratio), style=style), Text(verdict, style=style)]


def mask_name(case: Case) -> str:
    """The mask in a word or two; a bias counts as one, and keys that no query of a sequence sees may be padding."""
    mask, (_, _, Q, K) = case.options.get("mask"), heads_and_keys(case)
    band = mask is None or isinstance(mask, Causal | SlidingWindow)
    words = [band_name(mask)] if band else dense_names(materialize(mask, Q, K))
    return ", ".join(words + ["bias"] * ("bias" in case.inputs))


def band_name(mask: Causal | SlidingWindow | None) -> str:
    if mask is None:
        return "none"
    if isinstance(mask, Causal) or (mask.left is None and mask.right == 0):
        return "causal"
    left, right = ("all" if side is None else side for side in (mask.left, mask.right))
    return f"window {mask.left + 1}" if mask.right == 0 else f"window -{left} to {right}"


def dense_names(allowed: np.ndarray) -> list[str]:
    """The name of a mask [.., Q, K] whose padding has a name of its own; how much it hides where that is not all.

    Padding is keys that are hidden from every query that the rest of the mask lets see them. One query alone does not
    tell padding from a window.
    """
    queries, keys = allowed.shape[-2:]
    kept = allowed.any(axis=-2, keepdims=True)
    for offset in dict.fromkeys((keys - queries, 0)):
        distance = np.arange(keys) - (np.arange(queries)[:, None] + offset)
        seen = np.broadcast_to(distance, allowed.shape)[allowed]
        left, right = -int(seen.min(initial=0)), int(seen.max(initial=0))
        for mask in (None, Causal(offset), SlidingWindow(left, right, offset)):
            rest = materialize(mask, queries, keys)
            telling = (rest & ~kept).any(axis=-1).sum(axis=-1)
            if kept.any() and (telling > 1).any() and np.array_equal(allowed, kept & rest):
                return ["padding"] if mask is None else [band_name(mask), "padding"]
    return [f"{1 - float(allowed.mean()):.0%} hidden"]


def blocks(calls: Sequence[JudgedCall]) -> list[str]:
    """Return a block for every kind of violation, told of the first call that has it; the rest are counted."""
    kinds: dict[tuple[Any, ...], tuple[Violation, list[JudgedCall]]] = {}
    for part in (part for call in calls for part in call.parts):
        if (found := part.violation) is not None:
            key = (found.rule, found.level, describe_part(part), part.remark)
            kinds.setdefault(key, (found, []))[1].append(part)
    return [block(found, same) for found, same in kinds.values()]


def block(found: Violation, same: list[JudgedCall]) -> str:
    """The violation that several calls have in common."""
    call, rule, rows = same[0], JUDGED[found.rule], ""
    if call.wrong_rows:
        first = "batch element {}, head {}, query {}".format(*call.wrong_rows[0])
        levels = {finding.level for finding in call.findings if finding.name == "output" and finding.ratio > 1}
        level = f" (level {', '.join(sorted(levels))})" if levels and found.level not in levels else ""
        rows = f"{len(call.wrong_rows)} of {call.rows} of the output are wrong{level}; the first: {first}"
    facts = (
        ("layer", call.layer + (f" and {len(same) - 1} more" if len(same) > 1 else "")),
        ("level", found.level),
        ("found", "" if call.worst is None else describe_finding(call.worst)),
        ("rows", rows),
        ("NaN", f"{call.nans} where a number is due" if call.nans else ""),
        ("remark", call.remark),
        ("diagnosis", describe_part(call)),
        ("smallest case", "" if found.uncut is None else repr(found.case)),
    )
    lines = (f"  {label:<15}{clean_text(text)}" for label, text in facts if text)
    return "\n".join([f"{rule.id} {rule.title}: {rule.statement}", *lines])


UNSTEADY = {
    "memory": "strides are ignored: in contiguous arrays the same numbers are right",
    "right_again": "the same call, made again, is right",
    "chance": "the same call, made again, gives another number, as by dropout or random numbers",
}
"""What is said of a call that differs when it is made again."""


def describe_part(call: JudgedCall) -> str:
    """Say what is behind a wrong call; empty where that is not known."""
    if call.unsteady:
        return UNSTEADY[call.unsteady]
    if call.cause is None or call.cause.diagnosis is None:
        return ""
    return describe_cause(cause_content(call.cause))


def watch_content(calls: Sequence[JudgedCall], profile: str, **more: object) -> Content:
    """Return what the command has judged, for strict JSON, and further fields, such as the folder.

    "conforms" is null where nothing is broken, but not everything was judged.
    """
    judged = bool(calls) and all(call.is_judged for call in calls)
    broken = not all(call.conforms(profile) for call in calls)
    return {
        "schema": dict(SCHEMA),
        "command": "watch",
        **more,
        "versions": versions("transformers"),
        "profile": profile,
        "conforms": False if broken else True if judged else None,
        "judged": judged,
        "calls": [call_content(call) for call in calls],
    }


def call_content(call: JudgedCall) -> Content:
    content: Content = {"layer": call.layer, "reason": clean_text(call.reason) or None}
    if call.case is None:
        return content
    H, G, Q, K = heads_and_keys(call.case)
    found = call.violation
    content |= {} if call.beside is None else {"beside": call_content(call.beside)}
    return content | {
        "dtype": call.case.dtype,
        "shape": {"batch": call.case.inputs["query"].shape[0], "heads": H, "key_heads": G, "queries": Q, "keys": K},
        "mask": mask_name(call.case),
        "given_as": call.given,
        "findings": [finding_content(finding) for finding in call.findings],
        "rule": None if found is None else found.rule,
        "level": None if found is None else found.level,
        "wrong_rows": len(call.wrong_rows),
        "first_wrong_row": list(call.wrong_rows[0]) if call.wrong_rows else None,
        "nans": call.nans,
        "remark": call.remark or None,
        "unsteady": call.unsteady or None,
        "cause": None if call.cause is None else cause_content(call.cause),
        "smallest_case": None if found is None or found.uncut is None else clean_text(repr(found.case)),
    }


def finding_content(finding: Finding) -> Content:
    numbers = {name: number(getattr(finding, name)) for name in ("got", "expected", "bound")}
    return {
        "result": finding.name,
        "ratio": number(finding.ratio),
        "level": finding.level,
        "index": list(finding.index),
        **(dict.fromkeys(numbers) if finding.kind != "value" else numbers),
        "message": clean_text(describe_finding(finding)),
    }
