"""`conformance show`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import console, refuse

CLONE = Path(__file__).resolve().parents[2]
"""The folder of the sources, in a clone."""


def show(
    name: Annotated[str, typer.Argument(help="an operation, a function, a mask or a rule: attention, Causal, ATT-5")],
    head: Annotated[bool, typer.Option(help="also show signatures")] = False,
) -> None:
    """Show the three implementations side by side, step by step, below their rules."""
    if not (CLONE / "study" / "terminal.py").exists():
        refuse("show needs the sources and SPEC.md: run it in a clone of the project, or install a clone with -e")
    sys.path.append(str(CLONE))  # `study` is not part of the distribution
    from study.operations import find, nearest
    from study.terminal import shown

    found = find(name)
    if found is None:
        near = nearest(name)
        refuse(f"nothing is called {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    for piece in shown(found, console.width, head):
        console.print(piece)
