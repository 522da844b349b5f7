"""The kernels in `examples/`: the mistake of the exercise is found; the other one conforms until it is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import conformance
from tests.support.helpers import names_of_causes

EXAMPLES = Path(__file__).parents[2] / "examples"
FILE, BLOCKED = EXAMPLES / "online_softmax.py", EXAMPLES / "blocked_backward.py"
SEED = 20260107
FORGOTTEN, MENDED = "output = output + exponentials", "output = output * rescale + exponentials"


def judged(folder: Path, text: str, **more: Any) -> conformance.Report:
    file = folder / "kernel.py"
    file.write_text(text)
    options: dict[str, Any] = {"arrays": "torch", "effort": "quick", "seed": SEED, "profile": "strict"} | more
    return conformance.check(f"{file}:attention", "attention", **options)


@pytest.mark.slow
def test_the_mistake_is_found_and_named(tmp_path: Path) -> None:
    report = judged(tmp_path, FILE.read_text())
    assert not report.conforms
    assert [one.diagnosis.id for one in report.causes if one.diagnosis] == ["blocks.output-not-rescaled"]


OF_SCORES = "of_scores = weights * (of_output @ v[..., block, :].mT - mean)"
OF_BLOCK = f"""mean = (weights * (of_output @ v[..., block, :].mT)).sum(-1, keepdim=True)
            {OF_SCORES}"""
BROKEN = [
    ("(weights.mT @ of_output).sum(2)", "(weights.mT @ of_output)[:, :, 0]", "backward.heads"),
    (OF_SCORES, OF_BLOCK, "backward.mean-of-blocks"),
    ("(of_query * ctx.scale)", "of_query", "backward.factor"),
    ("ctx.causal, block.start", "False, block.start", "masks.ignored"),
]


@pytest.mark.parametrize(("right", "wrong", "name"), BROKEN, ids=["heads", "mean", "scale", "mask"])
@pytest.mark.slow_where(unless="heads")
def test_a_mistake_in_its_backward_pass_is_named(tmp_path: Path, right: str, wrong: str, name: str) -> None:
    text = BLOCKED.read_text()
    assert text.count(right) == 1
    report = judged(tmp_path, text.replace(right, wrong), rules=["ATT-12"])
    assert not report.conforms
    assert ("ATT-12", name) in names_of_causes(report)


RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "mended": (FILE.read_text().replace(FORGOTTEN, MENDED), {}),
    "gradients": (BLOCKED.read_text(), {"rules": ["ATT-12"]}),
    "whole": (BLOCKED.read_text(), {"effort": "default"}),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.slow_where(unless="gradients")
def test_a_right_kernel_conforms(tmp_path: Path, name: str) -> None:
    text, given = RIGHT[name]
    report = judged(tmp_path, text, **given)
    assert report.conforms, report.violations
    assert report.cases > 10
    assert report.kept == (None if given.get("rules") else "strict")
