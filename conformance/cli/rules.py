"""`conformance rules`."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated

import typer
from rich.table import Table

from conformance.checks.levels import JUDGED
from conformance.cli.console import console, refuse
from conformance.cli.options import complete_names, operation_names
from specification import MODEL_RULES


def names_of_both() -> Iterable[str]:
    return [*operation_names(), *JUDGED, *MODEL_RULES]


NAMES = "operations or rules, such as attention or MASK-7; every rule where there is none"


def rules(
    names: Annotated[list[str] | None, typer.Argument(help=NAMES, autocompletion=complete_names(names_of_both))] = None,
) -> None:
    """List rules with their text: every rule, or those of operations."""
    from conformance.judge.checking import rules_of

    every, known = JUDGED | MODEL_RULES, [*names_of_both()]
    for name in names or []:
        if name not in known:
            near = get_close_matches(name, known)
            instead = f"; did you mean {' or '.join(near)}?" if near else ""
            refuse(f"no operation or rule is called {name!r}{instead}")
    chosen = {rule for name in names or every for rule in ([name] if name in every else rules_of(name))}
    table = Table(show_header=False, box=None)
    for rule in every.values():
        if rule.id in chosen:
            table.add_row(rule.id, rule.title, rule.statement)
    console.print(table)
