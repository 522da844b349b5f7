"""The table of a trained model on real sentences: layer by layer, in units of the bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.models.real import RealFinding, RealResult

PARTS = {"attention": "attention", "feed-forward": "feed_forward", "norms": "_norm"}
"""Endings of the steps' names."""


FAR = 1e-6
"""How far from 1 the cosine of two embeddings of one sentence may be."""


def layer_of(step: str) -> str:
    """ "blocks.4.attention: add" belongs to layer 4, and what is before the blocks to the embedding."""
    return f"layer {step.split('.')[1]}" if step.startswith("blocks.") else "embedding"


def worst(findings: Sequence[RealFinding], ending: str = "") -> str:
    ratios = [finding.ratio for finding in findings if finding.step.endswith(ending)]
    return f"{max(ratios):.2f}" if ratios else "-"


def real_table(results: Sequence[RealResult], packages: Sequence[str]) -> Table:
    findings = [finding for result in results for finding in result.findings]
    table = Table(title="all-MiniLM-L6-v2 on real sentences: largest error of a step, in bounds")
    table.add_column("")
    for package in packages:
        table.add_column(f"{package}\n{' / '.join(PARTS)}", justify="right")
    for layer in dict.fromkeys(layer_of(finding.step) for finding in findings):
        row = [layer]
        for package in packages:
            here = [f for f in findings if f.package == package and layer_of(f.step) == layer]
            row.append(" / ".join(worst(here, part) for part in PARTS.values()) if "layer" in layer else worst(here))
        table.add_row(*row)
    return table


def real_report(results: Sequence[RealResult], packages: Sequence[str], sentences: int) -> RenderableType:
    """The table, what lies beyond its bound, and how far the sentence embeddings agree."""
    findings = [finding for result in results for finding in result.findings]
    lines: list[RenderableType] = [real_table(results, packages)]
    for finding in findings:
        if finding.ratio > 1:
            lines.append(Text(f"{finding.package}, {finding.step}: {finding.message}", style="bold red"))
    steps = len({finding.step for finding in findings})
    sums = worst([finding for finding in findings if finding.step.endswith("add")])
    told = f"{sentences} sentences, {steps} steps, each on the definition's own activations; sums, which round once: "
    lines.append(Text(told + sums))
    for package in packages:
        cosine = min(float(np.min(result.cosines[package])) for result in results)
        lines.append(
            Text(f"{package}: smallest cosine of a sentence embedding with the definition's 1 - {1 - cosine:.1e}")
        )
    return Group(*lines)


def real_conforms(results: Sequence[RealResult]) -> bool:
    """Every step within its bound, and every sentence embedding as the definition has it."""
    steps = [finding.ratio <= 1 for result in results for finding in result.findings]
    cosines = [float(cosine.min()) >= 1 - FAR for result in results for cosine in result.cosines.values()]
    return bool(steps) and all(steps) and all(cosines)
