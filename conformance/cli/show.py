"""`conformance show`."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli.console import console, refuse


def show(
    name: Annotated[str, typer.Argument(help="an operation, a function, a mask or a rule: attention, Causal, ATT-5")],
    head: Annotated[bool, typer.Option(help="also show signatures")] = False,
) -> None:
    """Show the three implementations side by side, step by step, below their rules."""
    from conformance.side_by_side.operations import find, nearest
    from conformance.side_by_side.terminal import render_meaning

    try:
        found = find(name)
    except FileNotFoundError as error:
        refuse(str(error))
    if found is None:
        near = nearest(name)
        refuse(f"nothing is called {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    for piece in render_meaning(found, console.width, head):
        console.print(piece)
