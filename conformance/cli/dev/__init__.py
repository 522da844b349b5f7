"""Tests of the judge, and generated files."""

from __future__ import annotations

import typer

from conformance.cli.lazy_group import lazy_group

COMMANDS = ("peers", "engines", "variants", "detection-probability", "dialects", "tightness", "corpus", "spec")

app = typer.Typer(
    cls=lazy_group(__name__, COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help=__doc__,
)


@app.callback()
def options() -> None:
    """Tests of the judge, and generated files."""
