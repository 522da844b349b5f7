"""Every subject that is installed, in its own process: measured, or left out for a reason that holds."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.subjects import subjects
from conformance.timing.measure.rounds import Budget
from conformance.timing.measure.running import LEFT_OUT, MEASURED, Entry, Plan, Run
from conformance.timing.subjects import numpy_subjects
from conformance.timing.subjects.registry import subject_at
from conformance.timing.subjects.timed_subject import Subject
from conformance.timing.terminal import usable_subjects
from conformance.timing.timed_case import BOTH, Case

SIZES: dict[str, Any] = {"B": 2, "H": 2, "G": 2, "Q": 32, "K": 32, "D": 16, "V": 16}
CASES = (
    Case("lengths", kind="lengths", **SIZES),
    Case("backward", kind="causal", direction=BOTH, **SIZES),
    Case("norm", "layer_norm", B=2, H=1, G=1, Q=20, D=16),
    Case("norm, backward", "layer_norm", direction=BOTH, B=2, H=1, G=1, Q=20, D=16),
    Case("mixture", "mixture_of_experts", B=2, H=1, G=1, Q=20, D=16, F=32, X=8, chosen=2),
)
KNOWN = [one for one in subjects().values() if "cpu" in one.device and (not one.slow or "reference" in one.name)]
REASONS = {"it gives no gradients here", "it gets no array here"}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Entry]]:
    """The entries of every subject, at all of the cases that are for its operation."""
    entries: dict[str, list[Entry]] = {}
    with contextlib.closing(Run(Plan("cpu", 1, 7, Budget(2, 2), memory=lambda case: False), KNOWN)) as run:
        for entry in (entry for case in CASES for entry in run.case(case)[1]):
            entries.setdefault(entry.subject.name, []).append(entry)
    return entries


@pytest.mark.slow
@pytest.mark.parametrize("subject", KNOWN, ids=lambda subject: subject.name)
def test_measured_or_left_out(found: dict[str, list[Entry]], subject: Subject) -> None:
    if subject.absent:
        pytest.skip(subject.absent)
    for entry in found[subject.name]:
        assert entry.status == MEASURED or (entry.status == LEFT_OUT and entry.reason in REASONS), entry.reason
    assert any(entry.measured for entry in found[subject.name])


@pytest.mark.parametrize(("scores", "told"), [(None, True), ((0, 0), False)])
def test_a_subject_of_ones_own_without_scores_is_told(
    monkeypatch: pytest.MonkeyPatch, scores: tuple[int, int] | None, told: bool
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("conformance.timing.terminal.say", lines.append)
    mine = Subject("mine", "attention", "numpy", (), numpy_subjects.naive, scores=scores, target="mine.py:MINE")
    assert usable_subjects([mine, *KNOWN[:1]], "cpu", False, False)[0] is mine
    assert lines == ["mine: memory is not estimated: the subject sets no scores="] * told


HEAD = "from conformance.timing.subjects.timed_subject import Subject\n"
MINE = 'MINE = Subject("mine", {}, "numpy", (), {})\n'
REFUSED = {
    "def f(:\n": "FILE cannot be imported: SyntaxError: invalid syntax",
    "\nMINE = nothing\n": r"FILE cannot be imported: NameError: name 'nothing' is not defined \(FILE:2 in <module>\)",
    f"{HEAD}MINE = Subject('mine')\n": r"FILE cannot be imported: TypeError: .*missing 4 .* \(FILE:2 in <module>\)",
    "import sys\nsys.exit(3)\n": r"FILE cannot be imported: SystemExit: 3 \(FILE:2 in <module>\)",
    HEAD: "FILE has no MINE",
    "MINE = 3\n": "FILE:MINE is a int, expected a function or a Subject",
    HEAD
    + MINE.format(
        "'atention'", "print"
    ): "operation must be one of attention, layer_norm, mixture_of_experts, got 'atention'",
    HEAD + MINE.format("'attention'", "'json:dumps'"): "FILE:MINE: make must be a function, got 'json:dumps'",
    "def MINE(x):\n    return x\n": r"FILE:MINE: only attention and layer_norm are timed, and its name says neither",
}


@pytest.mark.parametrize("text", list(REFUSED), ids=str)
def test_a_file_that_has_no_usable_subject_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / f"subject_{list(REFUSED).index(text)}.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=REFUSED[text].replace("FILE", str(path))) as refused:
        subject_at(f"{path}:MINE")
    assert "\n" not in str(refused.value)


def test_another_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="only attention and layer_norm are timed, and attention_weights is none of"):
        subject_at("reference_numpy:attention_weights")
