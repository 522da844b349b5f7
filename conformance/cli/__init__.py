"""The commands of `conformance`, one file each. A command imports the judge only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

import conformance
from conformance.cli import check, compare, definition, dev, port, replay, rules, run, selftest, show, trace, watch

app = typer.Typer(
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


app.command("check")(check.check)
app.command("replay")(replay.replay)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("port")(port.port)
app.command("trace")(trace.trace)
app.command("watch")(watch.watch)
app.command("selftest")(selftest.selftest)
app.command("definition")(definition.definition)
app.command("rules")(rules.rules)
app.command("show")(show.show)
app.add_typer(dev.app, name="dev")
