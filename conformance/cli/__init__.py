"""The commands of `conformance`, one file each. A command imports the judge only when it runs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

import conformance
from conformance.cli.lazy_group import lazy_group

COMMANDS = (
    *("check", "bench", "compare-arrays", "replay", "run", "merge", "compare", "port", "trace", "watch"),
    *("definition", "rules", "show"),
    *(("selftest", "dev") if find_spec("conformance.selftest") else ()),  # a wheel has neither
)

app = typer.Typer(
    cls=lazy_group(__name__, COMMANDS),
    no_args_is_help=True,
    rich_markup_mode="markdown",  # "rich" swallows brackets
    help="Does an implementation compute what SPEC.md says?",
)


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(conformance.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Does an implementation compute what SPEC.md says?"""
