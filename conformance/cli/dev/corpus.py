"""`conformance dev corpus`."""

from __future__ import annotations

from typing import Annotated

import typer


def corpus(
    harvest: Annotated[bool, typer.Option("--harvest", help="attention of a trained model on real sentences")] = False,
    chosen: Annotated[bool, typer.Option("--chosen", help="the cases that `corpus_cases.py` draws")] = False,
) -> None:
    """Write a new version of the frozen corpus: the smallest case that shows each planted fault."""
    from conformance.selftest.corpus_builder import build

    build(harvest, chosen)
