"""The shipped example breaks rules by its one mistake, and conforms once that is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import conformance

FILE = Path(__file__).parents[2] / "examples" / "online_softmax.py"
SEED = 20260107
FORGOTTEN, MENDED = "output = output + exponentials", "output = output * rescale + exponentials"


def judged(folder: Path, text: str) -> conformance.Report:
    file = folder / "kernel.py"
    file.write_text(text)
    options: dict[str, Any] = {"arrays": "torch", "effort": "quick", "seed": SEED, "profile": "strict"}
    return conformance.check(f"{file}:attention", "attention", **options)


@pytest.mark.slow
def test_the_mistake_is_found_and_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = judged(tmp_path, FILE.read_text())
    assert not report.conforms
    assert "the running output is not rescaled when the maximum grows" in report.headline


@pytest.mark.slow
def test_mended_it_conforms(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = FILE.read_text()
    assert text.count(FORGOTTEN) == 1
    report = judged(tmp_path, text.replace(FORGOTTEN, MENDED))
    assert report.conforms, report.violations
