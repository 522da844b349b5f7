"""`conformance rules`."""

from __future__ import annotations

from rich.table import Table

from conformance.cli.console import console
from specification import RULES


def rules() -> None:
    """List the rules."""
    table = Table(show_header=False, box=None)
    for rule in RULES.values():
        table.add_row(rule.id, rule.title, rule.statement)
    console.print(table)
