"""The page of training: stored runs, what is not stored, and what is no run at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from study import results, storing, training
from study.training import SCHEMA
from tests.support import browser
from tests.support.made_results import built, text_of

chromium = browser.chromium

ABOUT: dict[str, Any] = {
    "package": "torch_impl", "settings": {"width": 128}, "versions": {"numpy": "2.4"}, "when": "2026-01-01",
}  # fmt: skip
RUN = ABOUT | {"training": [[50, 0.7, 0.5], [100, 0.6, 0.7]], "held_out": [[100, 0, 0.625, 0.71875]]}
COURSE = {"first": None, "worst": {"loss": [0.25, 0.5]}, "losses": [2.0, 1.5], "drift": [0.0, 1e-9]}
RUNS: dict[str, Any] = {
    "schema": SCHEMA,
    "reviews": RUN | {"baseline": 0.775},
    "translation": RUN | {"settings": {"label_smoothing": 0.1}, "classes": 4}
    | {"attention": {"text": "one", "translation": "eins", "source": ["one", "end"], "target": ["eins", "end"],
                     "weights": [[[0.75, 0.25], [0.5, 0.5]]]}},
    "lockstep": {"task": "reviews", "dtype": "float64", "steps": 2, "versions": {}, "losses": [2.0, 1.5],
                 "implementations": [COURSE | {"name": name} for name in ("torch_impl", "jax_impl")]},
}  # fmt: skip


def page(folder: Path, runs: Any) -> str:
    """The page, made beside that of one operation."""
    path = folder / "training.json"
    if runs is not None:
        path.write_text(json.dumps(runs))
    return built(folder / "site", results.gather(trained=path), "losses")["training"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("matplotlib")
    return page(tmp_path_factory.mktemp("training"), RUNS)


def test_stored_runs_stand_on_the_page(shown: str) -> None:
    assert "accuracy of 77.50%" in text_of(shown, "reviews")
    assert "1 0.625 71.88%" in text_of(shown, "reviews")
    assert "loss 0.5 0.5" in text_of(shown, "lockstep")
    assert "torch_impl: every quantity of every step is within its bound" in text_of(shown, "lockstep")
    assert "“one” becomes “eins”" in text_of(shown, "translation")
    assert "0.75 0.25" in text_of(shown, "translation")
    assert shown.count("<svg") == 3


def test_the_smallest_loss_with_label_smoothing_is_told(shown: str) -> None:
    """Entropy of the target: -(0.925 log 0.925 + 3 * 0.025 log 0.025) = 0.349."""
    least = "With a label smoothing of 0.1 over 4 classes, the smallest possible loss is 0.349"
    assert least in text_of(shown, "translation")
    assert shown.count("The loss cannot reach 0.") == 1  # the reviews have no smoothing
    for plain in ({"label_smoothing": 0.0}, {}):
        assert training.smallest_loss({"settings": plain, "classes": 4}) is None
    assert training.smallest_loss({"settings": {"label_smoothing": 0.1}}) is None


def test_no_model_has_a_smaller_loss() -> None:
    least = training.smallest_loss({"settings": {"label_smoothing": 0.2}, "classes": 5})
    logits = np.random.default_rng(0).normal(0, 3, (200, 5))
    losses = reference_numpy.cross_entropy(logits, np.zeros(200, int), label_smoothing=0.2, reduction="none")
    assert 0 < least < losses.min()


@pytest.mark.slow
def test_the_stored_run_has_the_classes_of_its_words() -> None:
    from training.translation import data, settings

    stored = json.loads(results.TRAINING.read_text())["translation"]
    prepared = data.prepare(settings.Settings(**stored["settings"]))
    assert stored["classes"] == len(prepared.vocabulary.target.words)
    least = training.smallest_loss(stored)
    assert least < min(loss for _, _, loss, _ in stored["held_out"])


OVERFLOWING = """() => [...document.querySelectorAll("pre")].filter(
    part => part.scrollWidth > part.clientWidth + 1).map(part => part.textContent.slice(0, 60))"""


@pytest.mark.parametrize("width", [320, 390, 800])
def test_code_folds_on_a_narrow_page(width: int, shown: str, chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "training.html"
    path.write_text(shown)
    with browser.opened(chromium, path, size=(width, 800)) as watched:
        assert watched.page.evaluate(OVERFLOWING) == []
        watched.page.add_style_tag(content="pre { white-space: pre !important; }")
        assert watched.page.evaluate(OVERFLOWING) != []


def test_the_page_shows_how_each_package_differentiates(shown: str) -> None:
    code = text_of(shown, "step")
    for call in ("torch.autograd.grad(", "jax.value_and_grad(", "model_vjp(", "package.adam_step("):
        assert call in code


@pytest.mark.parametrize("runs", [None, {"schema": SCHEMA | {"version": 0}}, [], {"schema": SCHEMA, "reviews": {}}])
def test_what_is_no_stored_run_is_told(tmp_path: Path, runs: Any) -> None:
    found = page(tmp_path, runs)
    assert "make train" in found
    assert 'id="step"' in found
    assert "<svg" not in found


def test_a_part_is_stored_beside_the_others(tmp_path: Path) -> None:
    folder, report = tmp_path / "kept", tmp_path / "report.json"
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps(RUNS))
    report.write_text(json.dumps({"schema": storing.LOCKSTEP, "losses": [1 / 3]}))
    assert storing.store(report, folder) == folder / "training.json"
    found = json.loads((folder / "training.json").read_text())
    assert found.pop("lockstep")["losses"] == [0.333333]
    assert found == {name: part for name, part in RUNS.items() if name != "lockstep"}
    report.write_text("{}")
    with pytest.raises(ValueError, match="no report of"):
        storing.stored_lockstep(report)
