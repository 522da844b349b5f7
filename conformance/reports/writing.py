"""Writing a report to files."""

from __future__ import annotations

import json
from pathlib import Path

from conformance.reports.content import Content
from conformance.reports.junit import junit


def format_json(report: Content) -> str:
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def format_page(report: Content) -> str:
    from conformance.reports.page import page

    return page(report)


FORMATS = {"json": format_json, "junit": junit, "html": format_page}


def write(report: Content, paths: dict[str, Path | None]) -> None:
    """Write the report. paths: by format, None for no file. Raises ValueError for a file that cannot be written."""
    for name, path in paths.items():
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(FORMATS[name](report), encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error
