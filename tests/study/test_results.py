"""Stored results on the pages: what runs have found, what they have not, and what is no result at all."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import fastjsonschema
import pytest

from benchmarks.results.compare import compare
from conformance.reports.comparison import changes, read_report
from conformance.reports.content import SCHEMA
from conformance.side_by_side.rules import rule_texts
from conformance.side_by_side.sources import LABELS, ROOT
from study import __main__ as command
from study import results, storing
from study.plots import plots, within_page
from study.timings import notes
from tests.study.test_site import dead_links, fetched, ids
from tests.support.made_results import NASTY, Result, benchmark, built, report, text_of, written


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("results")
    found = written(folder, conformance=report(), benchmarks=benchmark())
    texts = built(folder / "site", found)
    assert dead_links(folder / "site") == []
    return texts


def test_remarks_of_a_stored_benchmark_are_on_the_pages_and_in_the_document() -> None:
    stored = json.loads(results.BENCHMARKS.read_text())
    text = " ".join((ROOT / "docs" / "benchmarks.md").read_text().replace("`", "").split())
    assert [remark for remark in stored.get("remarks", ()) if remark not in text] == []
    assert notes(stored | {"remarks": ["It is older.", "It was alone."]})[:2] == ("It is older.", "It was alone.")


# --- what was measured ------------------------------------------------------------------------------------------------


def test_agreement_stands_on_its_page(pages: dict[str, str]) -> None:
    found = text_of(pages["attention"], "measured")
    assert "Each implementation was judged on 3 cases" in found
    assert "NumPy 0.88, PyTorch 0.88, JAX 0.88" in " ".join(found.replace(" ,", ",").split())
    assert "no violations" in found
    assert "ATT-7 grouped heads 0.12 0.88 0.12 0.88 0.12 0.88 3" in found
    assert "seed 77" in found
    assert re.search(r"numpy \d+\.\d+.*, \d\d:\d\d UTC", found)
    assert "NORM-1" not in found
    assert "NORM-1 layer norm 0.12 0.88" in text_of(pages["layer_norm"], "measured")
    assert "ATT-6: not in the stored run" in text_of(pages["softmax"], "measured")


def test_rules_of_models_have_no_probes(pages: dict[str, str]) -> None:
    assert "BLK-1, BLK-2, BLK-3: these rules have no probes" in text_of(pages["blocks"], "measured")


def test_violations_are_shown_where_they_belong(tmp_path: Path) -> None:
    found = written(tmp_path, conformance=report(("torch_impl", "ATT-7")), benchmarks=None)
    texts = built(tmp_path / "site", found, "attention", "softmax")
    attention = text_of(texts["attention"], "measured")
    assert "1 violation" in attention
    assert "PyTorch breaks ATT-7:" in attention
    assert "12.5 violated" in attention
    assert "no violations" in text_of(texts["softmax"], "measured")


@pytest.mark.parametrize("told", [{"error": f"ended by {NASTY}"}, {"names": ["torch_impl"]}, {"names": []}])
def test_a_run_that_did_not_end(told: Result, tmp_path: Path) -> None:
    texts = built(tmp_path / "site", written(tmp_path, conformance=report(**told), benchmarks=None), "attention")
    found = text_of(texts["attention"], "measured")
    assert ("The judge could not try everything" in found) == ("error" in told)
    if "error" in told:
        assert "The judge could not try everything: ended by it&#39;s &lt;b&gt;wrong" in found
    elif told["names"]:
        assert "ATT-7 grouped heads not judged 0.12 0.88 not judged 3" in found
    else:
        assert "ATT-7, ATT-8, ATT-9, ATT-10, ATT-11, ATT-12, ATT-13: not in the stored run" in found


def test_speed_stands_where_it_is_known(pages: dict[str, str]) -> None:
    found = text_of(pages["attention"], "measured")
    assert "causal, T=32 2.25e+03 [2e+03, 2.5e+03] 562 [500, 625] 281 [250, 312] Fast library 141" in found
    lead = "Largest lead of torch_impl, layer norm over all libraries: Slow library takes 6.00 [6.00, 6.00] times"
    assert f"{lead} as long" in text_of(pages["layer_norm"], "measured")
    assert "Only attention and layer norm as a whole are timed" in text_of(pages["softmax"], "measured")


# --- benchmarks -------------------------------------------------------------------------------------------------------


def test_the_page_of_benchmarks(pages: dict[str, str]) -> None:
    page = pages["benchmarks"]
    found = text_of(page)
    for part in ("threads 1 of", "numpy 2", "Fast library 141 [125, 156] 0.25 [0.25, 0.25]", "causal, T=64 (B=2"):
        assert part in found
    assert "Wrong library failed : it&#39;s &lt;b&gt;wrong&lt;/b&gt; &amp; broken" in found
    assert "2 failed, and have no time: Wrong library at causal, T=32; Wrong library at causal, T=64." in found
    assert "left out Absent library: it is not installed" in found
    assert "FAILED" not in found
    assert "time grows as T^" in found
    assert page.count("<svg") == 4  # growth, and the ratios to each base
    assert ">length T in tokens, 1k = 1,024</text>" in page
    assert "Fastest in 3 cases: " in found
    assert page.count('class="findings"') == 4  # of all, and of each case
    assert fetched(page) == []
    assert sorted(ids(page)) == sorted(set(ids(page)))


@pytest.mark.parametrize(
    ("result", "line"),
    [
        pytest.param(
            benchmark(finished=False), "The run was interrupted: it finished 3 cases.", marks=pytest.mark.slow
        ),
        (benchmark(finished=False) | {"cases": [], "scaling": []}, "it finished 0 cases."),
        (benchmark(quick=True), "A quick run"),
        (benchmark(only=["causal"]), "names with \u201ccausal\u201d."),
    ],
)
def test_partial_results_say_so(result: Result, line: str, tmp_path: Path) -> None:
    texts = built(tmp_path / "site", written(tmp_path, benchmarks=result, conformance=None), "attention")
    assert line in text_of(texts["benchmarks"])
    if not result["cases"]:
        assert "There is nothing to draw." in text_of(texts["benchmarks"])
        assert "Only attention and layer norm as a whole are timed" in text_of(texts["attention"], "measured")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    texts = built(tmp_path / "site", written(tmp_path, benchmarks=benchmark(), conformance=None), "attention")
    assert "The pictures need matplotlib" in text_of(texts["benchmarks"])
    assert "Fast library" in text_of(texts["benchmarks"])


def test_pictures_share_a_page() -> None:
    drawn = plots(benchmark()).drawn
    every = [identifier for _, picture in drawn for identifier in ids(picture)]
    assert every
    assert len(every) == len(set(every))
    raw = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt">'
        '<style>*{}</style><path id="a" d="M 1.23456 2"/><use xlink:href="#a" clip-path="url(#b)"/><g id="b"/></svg>'
    )
    assert fetched(raw)
    made = within_page(raw, "name")
    assert fetched(made) == []
    assert ids(made) == ["name-a"]
    assert 'href="#name-a"' in made
    assert 'd="M 1.23 2"' in made
    assert "style" not in made


# --- what is no result ------------------------------------------------------------------------------------------------

BAD = {
    "missing": (None, "does not exist"),
    "not JSON": ("{", "cannot be shown"),
    "a list": ("[]", "cannot be shown"),
    "something else": ('{"schema": {"name": "another", "version": 1}}', "cannot be shown"),
}


@pytest.mark.parametrize("content", [*BAD.values()], ids=list(BAD))
@pytest.mark.parametrize("kind", ["conformance", "benchmarks"])
@pytest.mark.slow_where("not JSON")
@pytest.mark.slow_where("something else")
def test_what_cannot_be_shown_is_told(kind: str, content: tuple[str | None, str], tmp_path: Path) -> None:
    whole: Result = {"conformance": report(), "benchmarks": benchmark()}
    texts = built(tmp_path / "site", written(tmp_path, **whole | {kind: content[0]}), "attention")
    page = text_of(texts["attention"], "measured")
    how = "make bench" if kind == "benchmarks" else "python -m conformance run --json"
    assert content[1] in page
    assert how in page
    assert ("Fast library" in page) == (kind == "conformance")
    assert ("grouped heads" in page) == (kind == "benchmarks")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "whole"), [("conformance", report(("jax_impl", "ATT-5"))), ("benchmarks", benchmark())]
)
def test_other_versions_and_lost_fields_are_told(kind: str, whole: Result, tmp_path: Path) -> None:
    other = whole | {"schema": whole["schema"] | {"version": 99}}
    found = getattr(written(tmp_path, **{kind: other}), "agreement" if kind == "conformance" else "timings")
    assert "version 99" in found.missing
    for lost in set(whole) - {"schema", "project", "command", "seconds", "runs"}:
        part = {name: content for name, content in whole.items() if name != lost}
        found = getattr(written(tmp_path, **{kind: part}), "agreement" if kind == "conformance" else "timings")
        assert found.content is not None or "cannot be shown" in found.missing


# --- storing ----------------------------------------------------------------------------------------------------------


def test_what_is_stored_shows_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = {"conformance": report(("jax_impl", "ATT-5")), "benchmarks": benchmark()}
    full = written(tmp_path, **whole)
    kept = tmp_path / "kept"
    for name in whole:
        assert storing.store(tmp_path / f"{name}.json", kept) == kept / f"{name}.json"
        assert (kept / f"{name}.json").stat().st_size < 0.8 * (tmp_path / f"{name}.json").stat().st_size
    found = results.gather(kept / "conformance.json", kept / "benchmarks.json")
    assert found.agreement == full.agreement
    assert found.timings.content._replace(plots=None) == full.timings.content._replace(plots=None)  # type: ignore
    smaller = json.loads((kept / "benchmarks.json").read_text())
    assert {one.verdict for one in compare(whole["benchmarks"], smaller).changes} == {"noise"}
    assert changes(whole["conformance"], json.loads((kept / "conformance.json").read_text())) == []


def of_rule(rule: str, written: str, *broken: tuple[str, str], **told: object) -> Result:
    """A run of `--only`: what another report has of ATT-7, under that rule's name."""
    found = report(*((name, "ATT-7") for name, _ in broken), **told)
    for subject in found["subjects"]:
        for part in ("rules", "violations"):
            subject[part] = [one | {"rule": rule} for one in subject[part] if one["rule"] == "ATT-7"]
    return found | {"written": written}


def test_a_run_of_a_rule_joins_the_stored_one(tmp_path: Path) -> None:
    kept, new = tmp_path / "conformance.json", tmp_path / "new.json"
    whole = report()
    for content, rules in (
        (whole, []),
        (of_rule("POS-3", "2027-01-02T03:04:05+00:00"), ["POS-3"]),
        (of_rule("ATT-7", "2027-01-03T03:04:05+00:00", ("torch_impl", "ATT-7")), ["ATT-7"]),
    ):
        new.write_text(json.dumps(content))
        assert storing.store(new, tmp_path) == kept
        found = json.loads(kept.read_text())
        assert [one["rules"] for one in found.get("joined", [])][-1:] == ([rules] if rules else [])
    schema = json.loads((ROOT / "conformance/reports/schema.json").read_text())
    fastjsonschema.compile(schema)(found)
    assert found["written"] == whole["written"]
    numpy, torch, _ = found["subjects"]
    assert [rule["rule"] for rule in torch["rules"]] == ["ATT-5", "ATT-7", "ATT-11", "NORM-1", "POS-3"]
    assert (numpy["conforms"], torch["conforms"], found["conforms"]) == (True, False, False)
    assert [one["rule"] for one in torch["violations"]] == ["ATT-7"]
    assert torch["levels"][torch["violations"][0]["level"]] == ["ATT-7"]
    shown = results.gather(conformance=kept).agreement.content
    assert shown.when.endswith("; POS-3: 2027-01-02, 03:04 UTC; ATT-7: 2027-01-03, 03:04 UTC")

    before = kept.read_text()
    for told in ({"seed": 78}, {"cases": 4}, {"names": ["torch_impl"]}, {"error": "interrupted"}):
        new.write_text(json.dumps(of_rule("POS-3", "2027-01-02T03:04:05+00:00", **told)))
        with pytest.raises(ValueError, match="cannot join it"):
            storing.store(new, tmp_path)
    other = of_rule("POS-3", "2027-01-02T03:04:05+00:00")
    new.write_text(json.dumps(other | {"versions": other["versions"] | {"numpy": "1.0"}}))
    with pytest.raises(ValueError, match=r"numpy: .* -> 1\.0"):
        storing.store(new, tmp_path)
    assert kept.read_text() == before
    new.write_text(json.dumps({name: part for name, part in found.items() if name != "joined"}))
    storing.store(new, tmp_path)  # it has every rule
    assert "joined" not in json.loads(kept.read_text())


def test_a_newer_declaration_may_only_add() -> None:
    old = {"declaration": {"features": ["bias"], "conventions": {"empty_rows": "zero"}}}
    more = {"declaration": {"features": ["bias", "new"], "conventions": {"empty_rows": "zero", "angles": "exact"}}}
    other = {"declaration": {"features": ["new"], "conventions": {"empty_rows": "mean"}}}
    assert storing.lost(old, more) == []
    assert storing.lost(old, other) == ["features: no bias", "empty_rows zero -> mean"]


def test_what_is_no_result_is_not_stored(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"not a report.*no result of a benchmark"):
        storing.store(tmp_path / "other.json", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_the_stored_results_can_be_shown() -> None:
    found = results.kept()
    assert [stored.missing for stored in found] == [""] * 4
    for path in (results.CONFORMANCE, results.BENCHMARKS, results.TRAINING):
        assert path.stat().st_size < 300_000
    schema = json.loads((ROOT / "conformance/reports/schema.json").read_text())
    stored = read_report(results.CONFORMANCE)
    if stored["schema"] == SCHEMA:  # an older one can be shown, too
        fastjsonschema.compile(schema)(stored)
    agreement = found.agreement.content
    assert {package for package, _ in agreement.rules} == set(LABELS)
    probed = {rule for rule in rule_texts() if rule.split("-")[0] not in ("BLK", "TRF", "GEN")}
    # A rule that is newer than the stored run is told on its page: "not in the stored run".
    assert {rule for _, rule in agreement.rules} <= probed
    assert all((package, rule) in agreement.rules for package in LABELS for _, rule in agreement.rules)


# --- the command ------------------------------------------------------------------------------------------------------


def test_options_choose_the_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, conformance=report(("jax_impl", "ATT-7")), benchmarks=benchmark())
    given = {"conformance": "conformance.json", "benchmarks": "benchmarks.json", "divergences": "none.json"}
    words = [word for name, file in given.items() for word in (f"--{name}", str(tmp_path / file))]
    monkeypatch.setattr(sys, "argv", ["study", "--no-examples", "--out", str(tmp_path / "site"), *words])
    command.main()
    assert "none.json does not exist. make peers makes one." in capsys.readouterr().out
    page = (tmp_path / "site/attention.html").read_text()
    assert "JAX breaks ATT-7" in page
    assert "Fast library" in page
    assert "make peers" in page
