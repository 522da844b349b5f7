"""The table of a trained model on real sentences: error ratios, layer by layer."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.models.naming import EMBEDDINGS, WIDE
from conformance.reports.content import Content
from conformance.reports.content import real as real_number
from conformance.reports.real import (
    PARTS,
    layers_of,
    select_dtype,
    smallest_cosine,
    violation_count,
    violations_of,
    worst_parts,
    worst_step,
)


def real_table(model: Content) -> Table:
    table = Table(title=f"{model['name']} on real sentences: largest error ratio of a step")
    table.add_column("")
    for implementation in model["implementations"]:
        table.add_column(f"{implementation['name']}\n{' / '.join(PARTS)}", justify="right")
    for layer in layers_of(model):
        table.add_row(layer, *(worst_parts(implementation, layer) for implementation in model["implementations"]))
    return table


def real_report(model: Content) -> RenderableType:
    """Return the table, the steps beyond their bounds, and the smallest cosine of the sentence embeddings."""
    implementations = model["implementations"]
    lines: list[RenderableType] = [real_table(model)]
    for one in implementations:
        found = violations_of(one).items()
        lines += [Text(f"{one['name']}, {step}: {told}", "bold red") for step, told in found if step != EMBEDDINGS]
    steps = select_dtype([step for one in implementations for step in one["steps"]], wide=False)
    count, sums = len({step["step"] for step in steps}), worst_step(steps, "add")
    told = f"{model['sentences']} sentences, {count} steps, each from the definition's activations"
    lines.append(Text(f"{told}; largest error ratio of the sums, which round once: {sums}"))
    lines += [Text(told) for told in map(wide_line, implementations) if told]
    for one in implementations:
        style = "bold red" if one["embeddings"]["status"] == "violated" else ""
        told = f"{one['name']}: smallest cosine of a sentence embedding with the definition's {smallest_cosine(one)}"
        lines.append(Text(told, style))
    if not model["conforms"]:
        count = violation_count(model)
        lines.append(Text(f"{model['name']}: {count} violation{'s' * (count != 1)} on real sentences.", "bold red"))
    return Group(*lines)


def wide_line(implementation: Content) -> str:
    """Return the largest error ratio of a step and of the embeddings in float64; empty if there are none."""
    found = select_dtype(implementation["steps"], wide=True)
    steps = [step for step in found if step["step"] != EMBEDDINGS + WIDE]
    if not steps:
        return ""
    worst = steps[int(np.argmax([real_number(step["worst"]) for step in steps]))]
    told = f"{worst_step([worst])}, in {worst['step'].removesuffix(WIDE)}"
    wholes = [f"{real_number(step['worst']):.1g}" for step in found if step["step"] == EMBEDDINGS + WIDE]
    ends = f"; of the sentence embeddings, by the carried bound: {wholes[0]}" if wholes else ""
    return f"{implementation['name']}{WIDE}, {len(steps)} steps: largest error ratio {told}{ends}"
