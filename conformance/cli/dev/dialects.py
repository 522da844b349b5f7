"""`conformance dev dialects`: the tables about all dialects in docs/models.md, made anew from their records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.console import console, refuse


def dialects(
    document: Annotated[Path | None, typer.Argument(help="with the tables; docs/models.md unless given")] = None,
) -> None:
    """Write the tables about all dialects into docs/models.md, in the folder from which this is called."""
    from conformance.reports.dialects import DOCUMENT, renew_tables

    path = Path(DOCUMENT) if document is None else document
    try:
        before = path.read_text()
        after = renew_tables(before)
    except (OSError, ValueError) as error:
        refuse(str(error))
    path.write_text(after)
    console.print(f"{path} is {'as it was' if before == after else 'made anew'}")
