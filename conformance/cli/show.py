"""`conformance show`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import console, refuse

CLONE = Path(__file__).resolve().parents[2]
"""Where the sources lie, if this package was not installed without them."""


def show(
    name: Annotated[
        str, typer.Argument(help="an operation, a function of one, a mask or a rule: attention, Causal, ATT-5")
    ],
    head: Annotated[bool, typer.Option(help="signatures too")] = False,
) -> None:
    """The three implementations side by side, step by step, with the rule above; as many columns as fit the width."""
    if not (CLONE / "study" / "terminal.py").exists():
        refuse(
            "the sources and SPEC.md are shown where they lie: in a clone of the project, or installed from one by -e"
        )
    sys.path.append(str(CLONE))  # `study` is no part of the distribution, and a command does not look where it stands
    from study.operations import find, nearest
    from study.terminal import shown

    found = find(name)
    if found is None:
        near = nearest(name)
        refuse(f"nothing here is called {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    for piece in shown(found, console.width, head):
        console.print(piece)
