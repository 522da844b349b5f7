"""Every subject that is installed, in its own process: measured, or left out for a reason that holds."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import usable_subjects
from benchmarks.cases import BOTH, Case
from benchmarks.measure.rounds import Budget
from benchmarks.measure.running import LEFT_OUT, MEASURED, Entry, Plan, Run
from benchmarks.subjects.registry import subject_at, subjects
from benchmarks.subjects.subject import Subject

SIZES: dict[str, Any] = {"B": 2, "H": 2, "G": 2, "Q": 32, "K": 32, "D": 16, "V": 16}
CASES = (
    Case("lengths", kind="lengths", **SIZES),
    Case("backward", kind="causal", direction=BOTH, **SIZES),
    Case("norm", "layer_norm", B=2, H=1, G=1, Q=20, D=16),
    Case("norm, backward", "layer_norm", direction=BOTH, B=2, H=1, G=1, Q=20, D=16),
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
    monkeypatch.setattr("benchmarks.__main__.say", lines.append)
    mine = Subject("mine", "attention", "numpy", (), "", scores=scores, yours=True)
    assert usable_subjects([mine, *KNOWN[:1]], "cpu", False, False)[0] is mine
    assert lines == ["mine: memory is not estimated: the subject sets no scores="] * told


HEAD = "from benchmarks.subjects.subject import Subject\n"
MINE = 'MINE = Subject("mine", {}, "numpy", (), {})\n'
REFUSED = {
    "def f(:\n": r"'FILE:MINE' cannot be loaded: FILE:1: SyntaxError: invalid syntax",
    "\nMINE = nothing\n": r"'FILE:MINE' cannot be loaded: FILE:2: NameError: name 'nothing' is not defined",
    f"{HEAD}MINE = Subject('mine')\n": r"'FILE:MINE' cannot be loaded: FILE:2: TypeError: .*missing 4 required",
    "import sys\nsys.exit(3)\n": r"'FILE:MINE' cannot be loaded: FILE:2: SystemExit: 3",
    HEAD: r"'FILE:MINE' cannot be loaded: FILE has no MINE; it has no Subject",
    HEAD + MINE.format("'atention'", "''"): r"its operation must be one of attention, layer_norm, got 'atention'",
    HEAD + MINE.format("'attention'", "print"): r"its make must be a text 'module:function', got <built-in",
    HEAD + MINE.format("'attention'", "'no_module:make'"): r"'make=no_module:make' cannot be loaded.*No module named",
    HEAD + MINE.format("'attention'", "'json:make'"): r"its make is 'json:make', and json has no function 'make'",
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


def test_without_a_name_the_subjects_of_the_file_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "subject_unnamed.py"
    path.write_text(HEAD + MINE.format("'attention'", "'json:dumps'"))
    with pytest.raises(ValueError, match=rf"name the subject after a colon; its subjects: {path}:MINE$"):
        subject_at(str(path))
    assert subject_at(f"{path}:MINE").yours
