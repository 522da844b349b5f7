"""What a wheel has: every package that a command imports, and the files that they read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import conformance.timing.measure.environment as environment
from conformance.side_by_side import sources
from tests.support.helpers import command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = PROJECT["tool"]["setuptools"]
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


# --- what a package index shows ---------------------------------------------------------------------------------------


def test_the_documents_have_the_version_of_the_package() -> None:
    version = PROJECT["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"rev: v{version}\n" in (ROOT / "docs/ci.md").read_text()


def test_a_release_has_absolute_links(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    (step,) = (step for step in workflow["jobs"]["build"]["steps"] if "HOME_PAGE" in step.get("env", ()))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    addresses = {"HOME_PAGE": "https://example.org/them/it", "TAG": "v0.1.0"}
    subprocess.run(["bash", "-ec", step["run"]], cwd=tmp_path, env=os.environ | addresses, check=True)

    before, after = ((folder / "README.md").read_text() for folder in (ROOT, tmp_path))
    links = re.findall(r"\]\(([^()\s]+)\)", after)
    assert "https://example.org/them/it/blob/v0.1.0/docs/judging.md" in links
    assert [link for link in links if not link.startswith("https://")] == []
    assert after.replace("https://example.org/them/it/blob/v0.1.0/", "") == before
    released = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert set(released["project"].pop("urls")) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert released == PROJECT
