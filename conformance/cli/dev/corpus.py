"""`conformance dev corpus`."""

from __future__ import annotations

from typing import Annotated

import typer


def corpus(
    harvest: Annotated[bool, typer.Option("--harvest", help="add attention of a trained model")] = False,
) -> None:
    """Write a new version of the frozen corpus: the smallest case that shows each planted fault."""
    from conformance.selftest.corpus_builder import build

    build(harvest)
