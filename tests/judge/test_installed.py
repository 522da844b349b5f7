"""What a wheel has: every package that a command imports, and the files that they read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import benchmarks.measure.environment as environment
from conformance.side_by_side import sources
from tests.support.helpers import command

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
INSTALLED = ("conformance", "jax_impl", "reference_numpy", "specification", "torch_impl")
OF_THE_CLONE = ("conformance/cli/dev", "conformance/peers", "conformance/selftest")


def test_the_packages_that_are_installed() -> None:
    finder = pytest.importorskip("setuptools").find_packages
    settings = SETTINGS["packages"]["find"]
    found = finder(str(ROOT), include=settings["include"], exclude=settings["exclude"])
    folders = {path.parent.relative_to(ROOT).as_posix() for name in INSTALLED for path in (ROOT / name).rglob("*.py")}
    assert {name.replace(".", "/") for name in found} == {
        folder for folder in folders if not folder.startswith(OF_THE_CLONE)
    }
    readme = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in INSTALLED)


def test_the_files_that_are_installed() -> None:
    for package, patterns in SETTINGS["package-data"].items():
        for pattern in patterns:
            assert package == "*" or list((ROOT / package).glob(pattern)), (package, pattern)
    assert "side_by_side/idioms.toml" in SETTINGS["package-data"]["conformance"]
    assert all((ROOT / file).is_file() for files in SETTINGS["data-files"].values() for file in files)
    assert "SPEC.md" in SETTINGS["data-files"]["share/transformer-conformance"]


def test_a_document_is_found_where_a_wheel_has_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sources.document("SPEC.md") == ROOT / "SPEC.md"
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    (tmp_path / "share").mkdir()
    (tmp_path / "share/SPEC.md").write_text("")
    files: list[Any] = [SimpleNamespace(name="SPEC.md", locate=lambda: tmp_path / "share/SPEC.md")]
    monkeypatch.setattr(sources.metadata, "files", lambda name: files)
    assert sources.document("SPEC.md") == tmp_path / "share/SPEC.md"
    files.clear()
    with pytest.raises(FileNotFoundError, match=r"SPEC\.md is not installed"):
        sources.document("SPEC.md")


def test_show_without_the_specification_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise FileNotFoundError(f"{name} is not installed: take a clone of the project")

    monkeypatch.setattr("conformance.side_by_side.operations.find", missing)
    assert command("show", "ATT-5") == (2, "ATT-5 is not installed: take a clone of the project\n")


def test_no_commit_of_another_checkout_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "git", lambda *words: "a commit")
    assert environment.commit() == "a commit+"
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.commit() is None
