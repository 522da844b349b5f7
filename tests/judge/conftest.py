from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from tests.support.helpers import FEW_SIZES, command


class Outcome(NamedTuple):
    """What a command printed, and the report that it wrote."""

    code: int
    output: str
    report: dict[str, Any]

    @property
    def violations(self) -> dict[str, dict[str, Any]]:
        return {v["rule"]: v for subject in self.report["subjects"] for v in subject["violations"]}


@pytest.fixture
def check_command(folder: Path) -> Callable[..., Outcome]:
    """`conformance check` of a function in targets.py, or of any target with a colon, whose three reports agree.

    In this process and in float32, unless the words say --isolate or --dtypes.
    """

    def run(name: str, *words: object) -> Outcome:
        target = name if ":" in name else f"targets.py:{name}"
        words = words if "--isolate" in words else ("--in-process", *words)
        words = words if "--dtypes" in words else ("--dtypes", "float32", *words)
        files = ("--json", "report.json", "--junit", "report.xml", "--html", "report.html")
        quick = ("--effort", "quick", "--seed", 1, "--time-limit", 1, "--no-shrink", "--profile", "strict")
        code, output = command("check", target, "--operation", "attention", *quick, *FEW_SIZES, *files, *words)
        assert "Traceback" not in output
        report = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
        suites = ElementTree.parse(folder / "report.xml").getroot()
        assert (code == 0) == (suites.get("failures") == suites.get("errors") == "0") == report["conforms"]
        assert "</html>" in (folder / "report.html").read_text()
        assert (report["error"] is not None) == (code in (2, 130))
        return Outcome(code, output, report)

    return run
