"""`conformance show`."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from conformance.commands.console import console, refuse


def show(
    name: Annotated[
        str, typer.Argument(help="an operation, a function of one, a mask or a rule: attention, Causal, ATT-5")
    ],
    head: Annotated[bool, typer.Option(help="signatures too")] = False,
) -> None:
    """The three implementations side by side, step by step, with the rule above; as many columns as fit the width."""
    if importlib.util.find_spec("study") is None:
        refuse("the sources and SPEC.md are shown where they lie: in a clone of the project, started there")
    from study.operations import find, nearest
    from study.terminal import shown

    found = find(name)
    if found is None:
        near = nearest(name)
        refuse(f"nothing here is called {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    for piece in shown(found, console.width, head):
        console.print(piece)
