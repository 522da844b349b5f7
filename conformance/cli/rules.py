"""`conformance rules`."""

from __future__ import annotations

from rich.table import Table

from conformance.cli.console import console
from specification import MODEL_RULES


def rules() -> None:
    """List every rule with its text."""
    from conformance.judge.judged_rules import JUDGED

    table = Table(show_header=False, box=None)
    for rule in (JUDGED | MODEL_RULES).values():
        table.add_row(rule.id, rule.title, rule.statement)
    console.print(table)
