"""Tables on a terminal: rules by implementation, operations by dtype, violations, and the substance of the cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from conformance.checks.results import Cell, Results, Substance, Violation
from conformance.reports import blocks
from conformance.reports.content import Content, real
from conformance.reports.sentences import describe_finding, describe_worst
from conformance.reports.threshold_sentences import describe_thresholds
from specification import RULES
from specification.dtypes import FLOATING, HALF

LABELS = len("smallest case")
STYLES = {"headline": "bold", "skipped": "yellow", "masked": "yellow", "left-out": "yellow", "message": "red"}
"""Of notes."""
RATIOS = "Largest error ratio (at most 1 conforms): "
ALL_DTYPES = "in float32 and float64, and in all four dtypes"


def ratio(worst: float) -> Text:
    """Format an error ratio; "exact" for no error at all, "-" for no case."""
    if worst < 0:
        return Text("-")
    if worst > 1:
        return Text("violated" if np.isinf(worst) else f"{worst:.3g} violated", style="bold red")
    return Text("exact" if worst == 0 else f"{worst:.2f}", style="green")


def both(cell: Cell) -> Text:
    """Format the largest ratio in float32 and float64, then that of all dtypes; one word that is true of both once."""
    same = cell.worst == 0 or cell.wide == cell.worst == np.inf
    return ratio(cell.worst) if same else ratio(cell.wide) + "  " + ratio(cell.worst)


def right(*names: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(name, justify="right") for name in names]


def results_table(results: Results, subjects: Sequence[str]) -> Table:
    title = "Largest error ratio by operation and dtype, of all implementations"
    table = Table("operation", *right(*FLOATING, "cases"), title=title, title_justify="left")
    for operation in dict.fromkeys(key[0] for key in results.by_dtype):
        worst, count = [], 0
        for dtype in FLOATING:
            found = (results.by_dtype.get((operation, dtype, name)) for name in subjects)
            cells = [cell for cell in found if cell is not None]
            worst.append(ratio(max(cell.worst for cell in cells)) if cells else Text("-"))
            count += cells[0].cases if cells else 0
        table.add_row(operation, *worst, str(count))
    return table


def describe_substance(substance: Substance) -> str:
    """Describe how much the attention cases test: a case that zeros, or any mask, would pass tests nothing."""
    if not (count := len(substance.masked)):
        return ""
    masked, weight, output = map(np.median, (substance.masked, substance.largest_weight, substance.output_over_bound))
    return (
        f"Of {count} attention cases, medians: {masked:.0%} of the pairs masked, largest weight of a row {weight:.2f}, "
        f"output {output:.3g} times its bound. In {substance.telling / count:.0%} the median row has a largest weight "
        "below 0.99 and an output that zeros would fail."
    )


ANOTHER_PROCESS = "a new process gives the right answer: what was compiled or loaded in that one computes otherwise"


def violation_lines(violation: Violation) -> Text:
    rule = RULES[violation.rule]
    lines = [rule.statement, f"level {violation.level}", describe_finding(violation.finding)]
    lines += [f"smallest case found: {violation.case}"]
    lines += filter(None, [describe_thresholds(violation.threshold), "" if violation.steady else ANOTHER_PROCESS])
    lines += map(describe_worst, violation.larger)
    text = Text(f"{violation.subject} breaks {rule.id} ({rule.title}): ", style="bold red")
    return text.append("\n  ".join(lines), style="default")


def report(results: Results, subjects: Sequence[str], ended: bool = True) -> RenderableType:
    """Return the whole output of a run. ended: False if an error or an interrupt stopped it."""
    options: Any = {"title": RATIOS + ALL_DTYPES, "title_justify": "left", "pad_edge": False}
    by_rule = Table("rule", "", *right(*subjects, "cases"), **options)
    for rule in RULES.values():
        cells = [results.rules[rule.id, name] for name in subjects if (rule.id, name) in results.rules]
        if cells:
            by_rule.add_row(rule.id, rule.title, *map(both, cells), str(cells[0].cases))
    parts: list[RenderableType] = [by_rule, results_table(results, subjects)]
    parts += [Text(describe_substance(results.substance)), *map(violation_lines, results.violations.values())]
    names, cases = ", ".join(subjects), f"on {sum(results.generated.values())} generated cases"
    if not results.conforms:
        verdict, style = f"{len(results.violations)} violations {cases}.", "bold red"
    elif ended:
        verdict, style = f"{names} {'conforms' if len(subjects) == 1 else 'conform'} {cases}.", "bold green"
    else:
        verdict, style = f"{names}: no violation {cases} before the judge stopped.", "yellow"
    return Group(*parts, Text(verdict, style=style))


# --- one subject's report ---------------------------------------------------------------------------------------------


def verdict_of(rule: Content, subject: Content) -> Text:
    if blocks.exceeds_profile(rule, subject):
        return Text(f"violated ({rule['level']} only)", style="yellow")
    styles = {"conforms": "green", "violated": "bold red", "untried": "dim"}
    return Text("refused" if blocks.refuses_all(rule) else rule["status"], style=styles[rule["status"]])


def worst_of(rule: Content, alike: bool = False) -> Text:
    """Format the largest ratio in float32 and float64, then that of all dtypes, as in a run.

    alike: the judged dtypes are all of one of these kinds, and the ratio is one.
    """
    within = rule["status"] == "violated" and real(rule["worst"]) <= 1
    if rule["status"] == "untried" or blocks.refuses_all(rule) or within:
        return Text("-")
    if alike:
        return ratio(real(rule["worst"]))
    wide = -1.0 if rule["worst_wide"] is None else real(rule["worst_wide"])
    return both(Cell(rule["cases"], real(rule["worst"]), wide))


def subject_table(subject: Content) -> Table:
    """Return a table of rules with cases, error ratio and verdict; all that a failed check left untried in one row."""
    said = subject["declaration"] or subject.get("model") or {"dtypes": FLOATING}
    dtypes = said["dtypes"]
    wide = [dtype for dtype in dtypes if dtype not in HALF]
    alike = len(wide) in (0, len(dtypes))
    title = RATIOS + describe_ratio_dtypes(dtypes, wide)
    table = Table("rule", "", *right("cases", "worst"), "verdict", title=title, title_justify="left")
    untried = [rule for rule in subject["rules"] if rule["status"] == "untried"]
    together = untried if subject["untried"] and len(untried) > 1 else []
    for rule in (rule for rule in subject["rules"] if rule not in together):
        row = (rule["rule"], rule["title"], str(rule["cases"]), worst_of(rule, alike), verdict_of(rule, subject))
        table.add_row(*row, style="dim" if rule["status"] == "untried" else "")
    if together:
        table.add_row("others", f"{len(together)} rules", "0", "-", verdict_of(together[0], subject), style="dim")
    return table


def describe_ratio_dtypes(dtypes: Sequence[str], wide: Sequence[str]) -> str:
    """Say in which dtypes a table's ratios are. wide: those of the first one, if there are two."""
    if {*dtypes} == {*FLOATING}:
        return ALL_DTYPES
    *others, last = dtypes
    every = f"in {', '.join(others)} and {last}" if others else f"in {last}"
    return every if len(wide) in (0, len(dtypes)) else f"in {' and '.join(wide)}, and {every}"


def cause_block(cause: Content, subject: Content) -> RenderableType:
    inside = Table.grid(padding=(0, 2))
    inside.add_column(style="dim", no_wrap=True, min_width=LABELS)
    inside.add_column(overflow="fold")
    commands = []  # to be copied: no terminal breaks them
    for label, text in blocks.rows(cause, subject):
        if label == "replay":
            start = (f"  {label:<{LABELS + 2}}", "dim")
            commands.append(Text.assemble(start, text, no_wrap=True, overflow="ignore"))
        else:
            inside.add_row(Text(label), Text(text))
    head = Text(blocks.heading(cause))
    head.stylize("bold red", 0, head.plain.index(":") + 1)
    return Group(head, Padding(inside, (0, 0, 0, 2)), *commands, Text())


def subject_report(subject: Content, seed: int | None) -> RenderableType:
    """Return the report about a subject. Print it with `crop=False`, so that lines to be copied stay whole."""
    parts: list[RenderableType] = [subject_table(subject)]
    parts += [cause_block(cause, subject) for cause in subject["causes"]]
    if subject.get("model"):
        parts += [Text(line) for line in blocks.draw_model(subject)]
    parts += [Text(note.text, style=STYLES.get(note.kind, "")) for note in blocks.notes(subject)]
    cases = sum(rule["cases"] for rule in subject["rules"])
    count = blocks.count_violated_rules(subject)
    violates = f"violates {count} rule{'s' * (count != 1)}" if count else "is not judged in full"
    what = "conforms" if subject["conforms"] else violates
    style = "bold green" if subject["conforms"] else "bold red"
    told = "" if seed is None else f", seed {seed}"
    left = "" if subject["untried"] else blocks.describe_untried_rules(subject)
    last = f"{subject['name']} {what}; {cases} case{'s' * (cases != 1)}{told}{left and f'; {left}'}."
    return Group(*parts, Text(last, style=style))
