"""The site: every page whole, nothing fetched, nothing broken, and every number computed; and `conformance show`."""

from __future__ import annotations

import ast
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from conformance.cases.arguments import results_of
from conformance.cli.show import show
from conformance.peers.rows import ACCEPTS, CONFORMS, VIOLATED, Divergence, Row, Run
from conformance.side_by_side.drift import all_columns
from conformance.side_by_side.operations import OPERATIONS, find, known, nearest
from conformance.side_by_side.rules import RuleText, rule_texts
from conformance.side_by_side.sources import ROOT
from conformance.side_by_side.terminal import count_columns, render_meaning
from specification import MODEL_RULES, RULES
from specification.dialects import DIALECTS
from study import __main__ as study_command
from study import divergences, playing, site
from study.divergences import made_of, matrix
from study.examples import examples, worked
from study.pages import MARKDOWN
from study.results import gather
from tests.support.made_results import built as of_operations

NOT_SHOWN = {("generation.py", "Hypotheses")}
"""A structure, which has no steps."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study")
    site.build(out, examples=False)
    return out


def ids(text: str) -> list[str]:
    return re.findall(r'\bid="([^"]+)"', text)


def dead_links(out: Path) -> list[str]:
    """Links that lead to no file, or to no place on a page."""
    texts = {path.name: path.read_text() for path in out.glob("*.html")}
    dead = []
    for name, text in texts.items():
        for link in re.findall(r'href="([^"]*)"', text):
            path, _, place = link.partition("#")
            target = out / (path or name)
            if link.startswith("data:"):
                continue
            if not target.exists() or (target.name in texts and place and place not in ids(texts[target.name])):
                dead.append(f"{name}: {link}")
    return dead


def fetched(text: str) -> list[str]:
    """What a browser would load with a page."""
    return re.findall(r'(?:\bsrc=|url\(|@import|<link[^>]+href="(?!data:)|fetch\(|XMLHttpRequest)[^>]{0,60}', text)


def test_there_is_a_page_for_each_operation(built: Path) -> None:
    assert {path.stem for path in built.glob("*.html")} == {
        "index",
        "walk",
        "lookup",
        *playing.PLAYGROUNDS,
        "found",
        "rules",
        "api",
        "diagram",
        "dialects",
        *(f"dialect-{name}" for name in DIALECTS),
        "divergences",
        "benchmarks",
        "training",
        "ranks",
        *(one.name for one in OPERATIONS),
    }


@pytest.mark.slow
def test_no_link_is_dead(built: Path, tmp_path: Path) -> None:
    assert dead_links(built) == []
    (tmp_path / "a.html").write_text('<a href="b.html">b</a><a href="#here">c</a><p id="there"></p>')
    assert dead_links(tmp_path) == ["a.html: b.html", "a.html: #here"]


def test_the_start_names_the_chapters_that_can_wait(built: Path) -> None:
    waiting = (built / "index.html").read_text().partition("Some chapters")[2].partition("</p>")[0]
    assert re.findall(r'href="(\w+)\.html"', waiting) == ["companions", "norm_variants", "latent_attention"]


def test_pages_without_examples_say_so(built: Path) -> None:
    text = (built / "index.html").read_text()
    assert "The worked examples are left out" in text
    assert "Every number was computed" not in text
    made = site.environment("").get_template("base.html").render(page="index")
    assert "Every number was computed" in made
    assert "are left out" not in made


def test_nothing_is_fetched(built: Path) -> None:
    assert [found for path in built.glob("*.html") for found in fetched(path.read_text())] == []
    assert fetched('<script src="https://elsewhere/x.js">')


def test_no_place_has_a_name_twice(built: Path) -> None:
    for path in built.glob("*.html"):
        found = ids(path.read_text())
        assert sorted(found) == sorted(set(found)), path.name


def test_lines_are_linked_to_a_base_when_one_is_given(tmp_path: Path) -> None:
    site.build(tmp_path, "https://example.org/tree/main", examples=False)
    text = (tmp_path / "softmax.html").read_text()
    assert 'href="https://example.org/tree/main/reference_numpy/attention_steps.py#L' in text
    assert str(ROOT) not in text


@pytest.mark.parametrize("base", [None, "https://example.org/tree/main"])
def test_a_build_says_where_its_links_lead(
    base: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study_command, "build", lambda *_: [])
    given = [] if base is None else ["--base", base]
    monkeypatch.setattr(sys, "argv", ["study", "--out", str(tmp_path), *given])
    study_command.main()
    told = capsys.readouterr().out
    assert told.startswith(f"Building {tmp_path}")
    assert ("To publish the pages, give --base" in told) is (base is None)


def test_every_function_stands_on_one_page() -> None:
    places = [place for one in OPERATIONS for place in one.functions]
    assert sorted(places) == sorted(set(places))
    assert {(one.file, one.name) for one in all_columns()} - set(places) == NOT_SHOWN


def test_every_gradient_and_every_rule_stand_on_a_page() -> None:
    shown_gradients = {place for one in OPERATIONS for place in one.gradients}
    for path in (ROOT / "reference_numpy").glob("*_vjp.py"):
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert {(path.name, name) for name in names if name.endswith("_vjp")} <= shown_gradients
    assert {rule for one in OPERATIONS for rule in one.rules} == {*RULES, *MODEL_RULES} == {*rule_texts()}


def test_a_page_says_what_spec_says(built: Path) -> None:
    text = (built / "softmax.html").read_text()
    for part in ("ATT-5", "<math", "softmax_vjp", "planted faults", "<mark", "constant to the gradient"):
        assert part in text
    assert "allowed = np.broadcast_to" in re.sub(r"<[^>]+>", "", text)


def blocks_of_spec() -> dict[str, list[str]]:
    """The indented lines in each rule's section of SPEC.md."""
    sections = re.findall(r"^### (\S+)(.*?)(?=^##)", (ROOT / "SPEC.md").read_text(), re.M | re.DOTALL)
    return {name: re.findall(r"^    (.*)", section, re.M) for name, section in sections}


def blocks_read(texts: Mapping[str, RuleText]) -> dict[str, list[str]]:
    """The lines of the blocks of code in each rule, as Markdown reads it."""
    wholes = {name: "\n\n".join((rule.text, rule.why, rule.elsewhere)) for name, rule in texts.items()}
    return {
        name: [line for token in MARKDOWN.parse(whole) if token.type == "code_block" for line in lines(token.content)]
        for name, whole in wholes.items()
    }


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def test_a_block_in_a_rule_stays_a_block() -> None:
    expected = blocks_of_spec()
    assert {"POS-3", "NORM-7", "OPT-3", "BLK-1", "BLK-3"} < {name for name, found in expected.items() if found}
    assert blocks_read(rule_texts()) == expected
    lost = {name: rule._replace(text=rule.text.strip()) for name, rule in rule_texts().items()}
    assert blocks_read(lost)["POS-3"] != expected["POS-3"]


# --- contrast ---------------------------------------------------------------------------------------------------------


def luminance(color: str) -> float:
    full = color if len(color) == 7 else "#" + "".join(2 * digit for digit in color[1:])
    parts = [int(full[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_can_be_read_in_light_and_dark() -> None:
    style = (site.TEMPLATES / "style.css").read_text()
    schemes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", block)) for block in re.findall(r"\{([^{}]+)\}", style)]
    schemes = [scheme for scheme in schemes if "paper" in scheme]
    assert len(schemes) == 3
    assert schemes[1] == schemes[2]
    code = ("ink", "keyword", "string", "number", "builtin")
    for scheme in schemes:
        for paper in ("paper", "card", "code-paper"):
            for ink in (*code, "quiet", "note", "reason", "link"):
                assert contrast(scheme[ink], scheme[paper]) >= 4.5, (ink, paper)
        for ink in code:
            assert contrast(scheme[ink], scheme["mark"]) >= 4.5, (ink, "mark")
    assert contrast("#777777", "#ffffff") < 4.5 < contrast("#767676", "#fff")


# --- other libraries --------------------------------------------------------------------------------------------------


def test_the_matrix_is_read_whole() -> None:
    found = matrix()
    differing = {place for place, mark in found.marks.items() if mark.startswith("differs")}
    assert differing == {(one.path, one.rule) for one in found.divergences}
    assert all(one.example for one in found.divergences)
    assert all("torch" in run.versions for run in found.runs)
    assert {found.number(path) for group in found.groups for path in group.paths} == {*range(1, len(found.runs) + 1)}


def test_a_matrix_in_short() -> None:
    run = Run("2026-01-02", 3, "quick", {"torch": "4"})
    wrong = Divergence("ATT-1", "scale", "core", "bad.", "f(x)")
    row = Row("torch a", "attention", {"ATT-1": VIOLATED, "ATT-8": ACCEPTS, "CALL": CONFORMS}, ["core"], (wrong,),
              {"ATT-8": ["this", "that"]}, "", run)  # fmt: skip
    found = made_of([row])
    assert found.marks == {("torch a", "ATT-1"): "differs", ("torch a", "ATT-8"): "takes what should be refused"}
    assert [tuple(one) for one in found.divergences] == [("torch a", "ATT-1", "bad.", "f(x)")]
    assert [one.message for one in found.departures("ATT-8")] == ["takes what should be refused: this, that"]
    assert (found.version("torch a"), found.number("torch a")) == ("torch 4", 1)
    assert not found.without_levels
    assert made_of([row._replace(broken=None)]).without_levels == {"torch a"}
    assert divergences.origin("torch.optim.Adam") == divergences.origin("torch a") == "torch"


def test_a_missing_matrix_is_said(tmp_path: Path) -> None:
    assert matrix(tmp_path / "none") is None
    texts = of_operations(tmp_path, gather(benchmarks=tmp_path / "none.json", matrix=tmp_path / "none"), "softmax")
    assert "<code>make peers</code>" in texts["softmax"]


# --- worked examples --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", list(examples()))
def test_an_example_is_within_its_bounds(page: str) -> None:
    found = worked(page)
    assert found.disagreement <= 1
    assert all(one.ratio <= 1 for one in found.results)
    names = {name for _, name in found.example.inside}
    assert {title.partition(" in ")[0] for title in found.steps} == names | set(results_of(found.example.case))
    assert all(np.isfinite(distance) for one in found.apart.values() for distance in one.values())


def test_steps_are_the_ones_of_the_call() -> None:
    found = worked("attention")
    assert np.allclose(found.steps["weights"] @ found.inputs["value"], found.steps["output"])
    assert np.allclose(
        found.steps["exponentials"] / found.steps["exponentials"].sum(-1, keepdims=True), found.steps["weights"]
    )


def test_a_fault_in_a_port_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = importlib.import_module("torch_impl.attention_steps")
    right = attention.resolve_scale
    monkeypatch.setattr(attention, "resolve_scale", lambda scale, width: 1.001 * right(scale, width))
    worked.cache_clear()
    found = worked("attention")
    worked.cache_clear()
    assert found.disagreement > 1
    assert {one.package for one in found.results if one.ratio > 1} == {"torch_impl"}
    assert found.apart["scores"]["torch_impl"] > 100 * found.apart["scores"]["jax_impl"]


# --- names and the terminal -------------------------------------------------------------------------------------------


def test_names_are_found_whatever_their_case() -> None:
    assert find("attention") == known()["attention"]
    assert find("multi-head attention") == known()["multi_head_attention"]
    assert find("causal").rules == ("MASK-3",)  # type: ignore[union-attr]
    assert find("att-5").functions == (("attention_steps.py", "softmax"),)  # type: ignore[union-attr]
    assert find("layer_norm_vjp").functions == (("layer_norm_vjp.py", "layer_norm_vjp"),)  # type: ignore[union-attr]
    assert find("atention") is None
    assert nearest("atention")[0] == "attention"
    assert nearest("ATT-55")[0] == "ATT-5"


def test_gradients_are_found_by_name_and_under_their_rule() -> None:
    names = known()
    for one in OPERATIONS:
        for place in one.gradients:
            assert place[1] in names, place
            if place[1].endswith("_vjp"):
                assert names[place[1]].functions == (place,)
    gradients = {name for name, rule in rule_texts().items() if rule.title == "gradients"}
    assert gradients == {"ATT-12", "NORM-6"}
    for rule in gradients:
        assert {file.endswith("_vjp.py") for file, _ in names[rule].functions} == {True}


@pytest.mark.parametrize(("width", "count"), [(60, 1), (100, 2), (140, 3), (300, 3)])
def test_as_many_columns_as_fit(width: int, count: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    found = find("softmax")
    assert count_columns(width) == count
    for piece in render_meaning(found, width):
        console.print(piece)
    lines = console.export_text().splitlines()
    heads = [line for line in lines if "/attention_steps.py:" in line]
    assert heads[0].count("/attention_steps.py:") == count
    assert sum(line.count("/attention_steps.py:") for line in heads) == 6
    assert max(map(len, lines)) <= width


def command(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(show)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("name", ["attention", "Causal", "ATT-5", "layer_norm", "BLK-1", "layer_norm_vjp"])
def test_show(name: str) -> None:
    code, text = command(name)
    assert code == 0
    assert "reference_numpy" in text


def test_show_by_the_command_wherever_it_is_started(tmp_path: Path) -> None:
    """An installed command does not look for `study` where it stands."""
    command = Path(sys.executable).with_name("conformance")
    if not command.exists():
        pytest.skip("the project is not installed: no command `conformance`")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.run(
        [command, "show", "ATT-5"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (told.returncode, "ATT-5" in told.stdout) == (0, True), told.stderr


def test_show_of_nothing_known() -> None:
    code, text = command("atention")
    assert code == 2
    assert text.startswith("nothing is called 'atention'; did you mean attention or")
    assert command("qqqqqqq") == (2, "nothing is called 'qqqqqqq'")
