"""Reports: the schema, strict JSON, JUnit XML, the page, and what changed between two of them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fastjsonschema
import ml_dtypes
import numpy as np
import pytest

import conformance
import reference_numpy
from conformance.cases.case import shortest
from conformance.checks import findings
from conformance.checks.results import Cell
from conformance.diagnosis.cause import Cause, Diagnosis, cause_kind
from conformance.diagnosis.pattern import Pattern, Places
from conformance.mistakes.condition import Condition
from conformance.reports import replays, tables
from conformance.reports.blocks import block, format_expected, got
from conformance.reports.causes import cause_content
from conformance.reports.comparison import changes, circumstances, read_report
from conformance.reports.content import clean_text, document, real, subject_content, violation_content
from conformance.reports.junit import junit
from conformance.reports.page import page
from conformance.reports.pictures import LARGEST, case_pictures
from conformance.reports.writing import format_json, write
from specification import RULES, Causal
from tests.support.helpers import (
    EVERYTHING,
    OFF,
    Case,
    Finding,
    Target,
    Violation,
    checked_content,
    find_mistake,
    judged,
    printed,
    violation,
)

NASTY = "<script>alert('1')</script>&amp; ]]> \x00\x1b[31m \ud800 [/red]"


def case(queries: int = 2) -> Case:
    """Attention with one batch element, four query heads, two key heads, and three keys."""
    shapes = {"query": (1, 4, queries, 2), "key": (1, 2, 3, 2), "value": (1, 2, 3, 2)}
    inputs = {name: np.arange(np.prod(shape)).reshape(shape).astype("float32") for name, shape in shapes.items()}
    return Case("attention", "float32", inputs, {"mask": Causal(0)})


SIZES = "first wrong at 17 keys (16 are right)"


SCALE = find_mistake("scores.scale-ignored")


def cause(violation: Violation) -> Cause:
    """A known mistake, under a condition, behind a violation of ATT-1; of others none is known."""
    if violation.rule != "ATT-1":
        return Cause(cause_kind(violation), (violation,))
    mistake = SCALE.limit(Condition("K", past=16, dtypes=("float32",)))
    pattern = Pattern("output", (Places(("B",), "all", 1, 1), Places(("G", "S"), "from", 4, 2, 2)), 0.25)
    diagnosis = Diagnosis(mistake, 3, 4, 7, (SCALE,))
    return Cause("mistake", (violation,), diagnosis, mistake.condition, pattern, ({"weights": "inputs"},), ("scale",))


NAN = Finding("output", np.inf, (0, 0, 0, 0), np.nan, -np.inf, 0.02)
BROKEN = Finding("call", np.inf, detail=findings.Raised("ValueError", NASTY))


def report(*findings: Finding, name: str = "kernels.py:attention", worst: float = 0.5, **told: Any) -> dict[str, Any]:
    """Of one subject: ATT-1 (scale) and, for the second and third finding, ATT-2 and ATT-3 are violated."""
    target = Target(name, "attention")
    rules = list(RULES)[7:10]
    found = [violation(finding, name, rule) for finding, rule in zip(findings, rules, strict=False)]
    cells = {"MASK-1": Cell(3, worst, worst / 2), "ATT-9": Cell(4, 0.9, -1.0)}
    cells |= {one.rule: Cell(2, one.ratio, one.ratio) for one in found}
    told_of = [violation_content(one, "replays/one.json") for one in found]
    causes = [cause_content(cause(one)) | {"violation": own} for one, own in zip(found, told_of, strict=True)]
    listed = ["MASK-1", "ATT-9", "ATT-11"]
    subject = subject_content(target, EVERYTHING, ["attention"], listed, cells, told_of, causes=causes)
    return document("check", [subject], **({"seed": 1, "effort": "quick", "cases": 3, "seconds": 1.25} | told))


REPORTS = {
    "nothing violated": report(),
    "everything violated": report(OFF, NAN, BROKEN),
    "nasty name": report(BROKEN, name=NASTY),
    "error": document("check", [], error=f"cannot be imported: {NASTY}"),
}


@pytest.fixture(params=REPORTS.values(), ids=REPORTS.keys())
def any_report(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


# --- JSON -------------------------------------------------------------------------------------------------------------

SCHEMA = json.loads(files("conformance.reports").joinpath("schema.json").read_text())
valid = fastjsonschema.compile(SCHEMA)


def test_report_is_strict_json_of_the_schema_and_xml(any_report: dict[str, Any]) -> None:
    read = json.loads(format_json(any_report), parse_constant=pytest.fail)
    assert valid(read) == any_report
    ElementTree.fromstring(junit(any_report).encode())


def test_every_field_of_the_schema_is_required() -> None:
    """So that a reader may rely on it, and no field is there that nobody writes. A condition has what it asks for."""
    parts = {name: part for name, part in SCHEMA["definitions"].items() if name != "condition"}
    for part in (SCHEMA, *parts.values()):
        if part.get("additionalProperties") is False:
            assert set(part["required"]) == set(part["properties"])


def test_report_of_a_check(tmp_path: Path) -> None:
    def unscaled(query: Any, key: Any, value: Any) -> Any:
        return reference_numpy.attention(query, key, value, scale=1.0)

    subject = checked_content(judged(unscaled, "ATT-1"), tmp_path)
    valid(json.loads(format_json(document("check", [subject]))))
    (found,), (behind,) = subject["violations"], subject["causes"]
    assert behind["mistake"]["id"] == "scores.default-scale"
    assert behind["violation"] == found | {"replay": None}
    assert (subject["target"], found["rule"], found["result"]) == (None, "ATT-1", "output")
    assert found["replay"] == json.loads(Path(found["replay_file"]).read_text())
    assert "python: conformance.replay(" in found["replay_command"]  # a local function has no name to find it by
    assert [f.ratio for f in conformance.replay(found["replay_file"], unscaled)] == [real(found["ratio"])]


def test_statuses() -> None:
    (subject,) = report(OFF)["subjects"]
    found = {rule["rule"]: (rule["status"], rule["worst_wide"]) for rule in subject["rules"]}
    assert (found["MASK-1"], found["ATT-1"]) == (("conforms", 0.25), ("violated", 12.5))
    assert (found["ATT-9"], found["ATT-11"]) == (("conforms", None), ("untried", None))


def test_a_violation_in_bfloat16_stands_beside_what_float32_has() -> None:
    assert tables.both(Cell(9, 376.0, 0.0576)).plain == "0.06  376 violated"
    assert tables.both(Cell(9, 376.0, -1.0)).plain == "-  376 violated"
    assert tables.both(Cell(9, np.inf, 12.5)).plain == "12.5 violated  violated"
    alike = [tables.both(Cell(9, worst, worst)).plain for worst in (0.0, 0.5, np.inf)]
    assert alike == ["exact", "0.50  0.50", "violated"]


def test_numbers_of_violations() -> None:
    off, nan, broken = report(OFF, NAN, BROKEN)["subjects"][0]["violations"]
    assert (off["result"], off["index"], off["dtype"]) == ("output", [0, 2, 1, 1], "float32")
    assert (off["got"], off["expected"], off["bound"], off["ratio"]) == (0.75, 0.5, 0.02, 12.5)
    assert off["ulp"] == 0.25 / np.spacing(np.float32(0.5))
    infinite = [nan[name] for name in ("got", "expected", "ratio", "ulp")]
    assert infinite == ["NaN", "-Infinity", "Infinity", "Infinity"]
    np.testing.assert_equal([*map(real, infinite)], [np.nan, -np.inf, np.inf, np.inf])
    assert [broken[name] for name in ("index", "got", "expected", "bound", "dtype", "ulp")] == [None] * 6


def test_peer_counts_in_no_verdict() -> None:
    bad = report(OFF)["subjects"][0]
    found = document("run", [report()["subjects"][0], bad | {"peer": True}])
    assert found["conforms"]
    assert ElementTree.fromstring(junit(found).encode()).get("failures") == "0"
    assert "Conforms" in page(found)
    assert not document("run", [report()["subjects"][0], bad])["conforms"]


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        ("float64", ("-0.296897828578949", "-0.2913814053962597")),
        ("float32", ("-0.29689783", "-0.291381405396")),
        ("bfloat16", ("-0.296875", "-0.291381405396")),
    ],
)
def test_digits_of_a_dtype(dtype: str, told: tuple[str, str]) -> None:
    violation = {"got": -0.296897828578949, "expected": -0.2913814053962597, "dtype": dtype}
    assert (got(violation), format_expected(violation)) == told


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_numbers_of_a_small_case_are_the_same_numbers(dtype: Any) -> None:
    drawn = np.random.default_rng(0).normal(size=8).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0], dtype)
    for array in (drawn, special):
        written = shortest(array).tolist()
        assert np.asarray(written).astype(dtype).tobytes() == array.tobytes()
    assert shortest(np.float32([0.1])).tolist() == [0.1]


def test_block() -> None:
    known, unknown = report(OFF, NAN)["subjects"][0]["causes"]
    text = block(known)
    told = {line[:17].strip(): line[17:] for line in text.splitlines()[1:]}
    assert text.startswith("ATT-1: the given scale is ignored")
    assert told["evidence"] == "explains 3 of 4 failing cases; nothing speaks against it in 7 that pass"
    assert told["when"] == "only past 16 keys, in float32"
    assert told["where"] == "output[0, 2, 1, 1]"
    assert (told["got"], told["expected"]) == ("0.75", "0.5")
    assert told["error"] == "0.25, 12.5 times its bound of 0.02, 4.19e+06 ULP of float32"
    assert "pattern" not in told  # the known mistake says more
    assert told["sizes"] == SIZES
    assert "--supports no-scale" in text
    assert told["replay"] == "conformance replay replays/one.json"
    assert block(unknown).startswith("ATT-2 softcap: scores become ")


# --- replay files -----------------------------------------------------------------------------------------------------


def test_replay_command_names_what_can_be_found(tmp_path: Path) -> None:
    def command(subject: Any, finding: Finding = OFF) -> str:
        return replays.replay_command(violation(finding, subject), "a file.json")

    assert command("kernels.py:attention") == "conformance replay 'a file.json'"
    assert command(reference_numpy.attention).startswith("conformance replay 'a file.json' --target ")
    assert command(reference_numpy.attention).endswith("attention.py:attention")
    assert command(lambda query: query).startswith("python: ")


def test_files_have_names_of_their_own(tmp_path: Path) -> None:
    one = violation(subject="path/to/kernels.py:attention")
    paths = [replays.write_replay(one, tmp_path / "new"), replays.write_replay(one, tmp_path / "new", titled=True)]
    names = ["path-to-kernels.py-attention-ATT-1.json", "path-to-kernels.py-attention-ATT-1-a-probe.json"]
    assert [Path(str(path)).name for path in paths] == names
    assert all(replays.slug(name) and "/" not in replays.slug(name) for name in (NASTY, "", "..", "/", "x" * 500))


def test_report_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    paths = {name: tmp_path / "new" / f"report.{name}" for name in ("json", "junit", "html")}
    write(report(OFF), paths | {"json": None})
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"report.junit", "report.html"}
    with pytest.raises(ValueError, match="cannot be written"):
        write(report(), {"json": tmp_path})


# --- JUnit ------------------------------------------------------------------------------------------------------------


def test_junit() -> None:
    root = ElementTree.fromstring(junit(report(OFF, BROKEN)).encode())
    (suite,) = root
    counts = {"tests": "5", "failures": "2", "errors": "0", "skipped": "1"}
    assert {name: suite.get(name) for name in counts} == {name: root.get(name) for name in counts} == counts
    assert suite.get("name") == "kernels.py:attention"
    cases = {test.get("name"): test for test in suite.iter("testcase")}
    assert list(cases) == ["MASK-1 polarity", "ATT-1 scale", "ATT-2 softcap", "ATT-9 dtype", "ATT-11 dropout"]
    failure = cases["ATT-1 scale"].find("failure")
    assert failure is not None
    assert failure.get("message") == "output[0, 2, 1, 1]: got 0.75, expected 0.5, 12.5 bounds of 0.02"
    assert "conformance replay replays/one.json" in str(failure.text)
    assert cases["ATT-11 dropout"].find("skipped") is not None
    assert cases["MASK-1 polarity"].find("failure") is None


def test_error_in_junit() -> None:
    root = ElementTree.fromstring(junit(document("check", [], error="no such file")).encode())
    assert (root.get("tests"), root.get("errors")) == ("1", "1")
    assert [error.get("message") for error in root.iter("error")] == ["no such file"]


# --- the page ---------------------------------------------------------------------------------------------------------

VOID = {"meta"}


class Reader(HTMLParser):
    """Holds tags to be closed in order, and collects what the page would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text, self.seen, self.loaded = "", [], []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loaded += [name for name, _ in attributes if name in ("src", "href", "srcset") or name.startswith("on")]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_page_stands_alone(any_report: dict[str, Any]) -> None:
    text = page(any_report)
    reader = read(text)
    assert reader.loaded == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(reader.seen)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    text.encode()
    assert any_report != REPORTS["nasty name"] or "<script>alert('1')</script>" in reader.text


def test_page_holds_the_evidence() -> None:
    text = " ".join(read(page(report(OFF, NAN))).text.split())
    for told in (
        "2 rules violated", "output[0, 2, 1, 1]", "0.75", "12.5 times its bound of 0.02", "ULP of float32",
        "the given scale is ignored", "conformance replay replays/one.json", "attention(query=float32[1, 4, 2, 2]",
        "no bound allows it", "key float32[1, 2, 3, 2]", "mask bool[1, 1, 2, 3]", "No case was tried.",
    ):  # fmt: skip
        assert told in text


def test_page_is_in_the_order_of_the_terminal() -> None:
    """The table, the causes as they are listed, and what is said of the subject."""
    whole = report(OFF, NAN, BROKEN)
    subject = whole["subjects"][0] | {"left_out": "float64 is skipped"}
    first, _, third = subject["causes"]
    subject["causes"] = [third, first | {"rules": ["ATT-1", "ATT-2"]}]
    subject["violations"][1]["cause"] = 1
    text = page(whole | {"subjects": [subject]})
    order = (
        r'<details id="ATT-1">.*<h3>ATT-3 bias: .*<h3>ATT-1: the given scale is ignored.*output\[0, 2, 1, 1\]'
        rf".*Smallest case found.*explains 3 of 4.*>{re.escape(SIZES)}<.*conformance replay.*float64 is skipped"
    )
    assert re.search(order, text, re.DOTALL)
    assert "2 causes, 1 of them known, explain 3 violated rules" in text
    terminal = printed(subject)
    headings = [line.partition(": ")[0] for line in terminal.splitlines() if re.match(r"ATT-\d[^ ]* ?\S*: ", line)]
    assert headings == ["ATT-3 bias", "ATT-1"]


def test_rules_by_subjects() -> None:
    two = document("run", [report(OFF)["subjects"][0], report(name="other")["subjects"][0]])
    text = page(two)
    assert "--subjects:2" in text
    assert text.count('<details id="ATT-1"') == 1
    assert read(text).seen.count("summary") == 4


# --- pictures of arrays -----------------------------------------------------------------------------------------------


def test_small_arrays_are_shown_whole() -> None:
    shown = {picture.title: picture for picture in case_pictures(case(), "output", [0, 2, 1, 1])}
    assert list(shown) == ["query", "key", "value", "mask"]
    assert len(shown["query"].tables) == 4
    mask = shown["mask"].tables[0]
    assert [[cell.kind for cell in row] for row in mask] == [["true", "false", "false"], ["true", "true", "false"]]
    assert [cell.marked for cell in mask[1]] == [True] * 3
    assert not any(cell.marked for cell in mask[0])


def test_of_large_arrays_the_part_that_matters_is_shown() -> None:
    shown = {picture.title: picture for picture in case_pictures(case(queries=20), "output", [0, 3, 7, 1])}
    assert list(shown) == ["query[0, 3]", "key", "value", "mask"]
    query = shown["query[0, 3]"]
    assert query.shape == (1, 4, 20, 2)
    assert [[cell.text for cell in row if cell.marked] for row in query.tables[0]][7] == ["134", "135"]


def test_query_heads_share_key_heads() -> None:
    shapes = {"query": (2, 4, 5, 3), "key": (2, 2, 20, 3), "value": (2, 2, 20, 3)}
    large = Case("attention", "float32", {name: np.ones(shape, "float32") for name, shape in shapes.items()})
    output = [picture.title for picture in case_pictures(large, "output", [1, 3, 0, 2])]
    gradient = [picture.title for picture in case_pictures(large, "gradient of key", [1, 1, 0, 2])]
    assert output == ["query[1, 3]", "key[1, 1]", "value[1, 1]"]
    assert gradient == ["query[1, 2]", "key[1, 1]", "value[1, 1]"]


def test_too_large_and_empty_arrays_are_left_out() -> None:
    inputs = {"x": np.ones((LARGEST + 1, 1), "float32"), "weight": np.ones(0, "float32"), "bias": np.ones(3, "float32")}
    assert [p.title for p in case_pictures(Case("layer_norm", "float32", inputs), "output", [0, 0])] == ["bias"]


def test_special_numbers_are_shown() -> None:
    inputs = {"x": np.array([[np.nan, np.inf, -np.inf, -2.0, 1.0]], "float32")}
    (row,) = case_pictures(Case("layer_norm", "float32", inputs), "output", [0, 0])[0].tables[0]
    assert [cell.kind for cell in row] == ["nan", "infinite", "infinite", "number", "number"]
    assert [cell.text for cell in row] == ["nan", "inf", "-inf", "-2", "1"]
    assert [cell.shade for cell in row[3:]] == [-1.0, 0.5]


# --- what changed -----------------------------------------------------------------------------------------------------


def told(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    return {change.rule: change.kind for change in changes(before, after)}


def test_violated_and_repaired() -> None:
    assert told(report(), report(OFF)) == {"ATT-1": "worse"}
    assert told(report(OFF), report()) == {"ATT-1": "worse"}  # no longer tried
    repaired = report(OFF)
    repaired["subjects"][0]["rules"][1] |= {"status": "conforms", "worst": 0.5, "worst_wide": 0.5}
    assert told(report(OFF), repaired) == {"ATT-1": "better"}
    assert told(repaired, report(OFF)) == {"ATT-1": "worse"}
    assert (told(report(OFF, NAN), report(OFF, NAN)), circumstances(report(), report())) == ({}, [])


def test_another_declaration_is_told() -> None:
    """What is held no longer is not taken for repaired without a word."""
    before, after = report(), report()
    declaration = after["subjects"][0]["declaration"]
    declaration["features"].remove("empty")
    declaration["conventions"]["isolation"] = "finite"
    declaration["refused_dtypes"] = ["float16"]
    (change,) = changes(before, after)
    assert (change.kind, change.rule) == ("other", "")
    assert change.text == "another declaration: features: no empty, refused_dtypes: float16, isolation strict -> finite"


@pytest.mark.parametrize(
    ("worst", "kind"), [(0.3, None), (0.9, None), (1.1, "worse"), (0.2, "better"), (0.0, "better")]
)
def test_ratios(worst: float, kind: str | None) -> None:
    assert told(report(worst=0.5), report(worst=worst)).get("MASK-1") == kind


def test_a_larger_error_within_its_bound_is_not_worse() -> None:
    assert told(report(worst=0.1), report(worst=0.9))["MASK-1"] == "other"


def test_the_error_in_wide_dtypes_is_shown_beside_an_infinite_one() -> None:
    before, after = report(OFF), report(OFF)
    for one, wide in ((before, 1.5), (after, 4.0)):
        one["subjects"][0]["rules"][1] |= {"worst": "Infinity", "worst_wide": wide}
    (change,) = changes(before, after)
    assert (change.kind, change.rule) == ("worse", "ATT-1")
    assert change.text.endswith("beyond any bound (4 in float32 and float64)")


def test_ratios_of_other_cases_are_no_verdict() -> None:
    assert told(report(worst=0.1), report(worst=0.9, seed=2)) == {"MASK-1": "other"}
    assert told(report(OFF), report(NAN, seed=2)) == {"ATT-1": "other"}
    assert circumstances(report(), report(seed=2, effort="default")) == ["seed: 1 -> 2", "effort: quick -> default"]


def test_subjects_come_and_go() -> None:
    one, two = report()["subjects"][0], report(name="other")["subjects"][0]
    pair = document("run", [one, two])
    assert [(c.kind, c.subject) for c in changes(pair, document("run", [one]))] == [("worse", "other")]
    assert [(c.kind, c.subject) for c in changes(document("run", [one]), pair)] == [("other", "other")]
    assert changes(report(), report(name="other")) == []  # the only subjects of both


def test_reports_of_the_first_version_can_be_compared(tmp_path: Path) -> None:
    old = report()
    old["schema"] |= {"version": 1}
    (tmp_path / "old.json").write_text(json.dumps(old))
    before, after = read_report(tmp_path / "old.json"), report()
    assert circumstances(before, after) == ["format of the report: 1 -> 5"]
    assert changes(before, after) == []
    (tmp_path / "new.json").write_text(json.dumps(old | {"schema": old["schema"] | {"version": 6}}))
    with pytest.raises(ValueError, match="has version 6, expected 1 or 2 or 3 or 4 or 5"):
        read_report(tmp_path / "new.json")


def test_the_stored_run_can_be_compared_and_shown() -> None:
    """It may be of an older version, which has no causes, and has models."""
    stored = read_report(Path(__file__).parents[2] / "study" / "results" / "conformance.json")
    assert changes(stored, stored) == []
    after = report(OFF, name=stored["subjects"][0]["name"])
    assert {change.kind for change in changes(stored, after)} >= {"worse"}
    assert f"format of the report: {stored['schema']['version']} -> 5" in circumstances(stored, after)


def test_error_and_untried_are_worse() -> None:
    """Ratios of fewer runs are no verdict."""
    failed = document("check", [], error="cannot be imported")
    assert {change.kind for change in changes(report(), failed)} == {"worse"}
    broken, fewer = report(), report(worst=0.1)
    broken["subjects"][0]["untried"] = "it hangs"
    fewer["subjects"][0]["untried"] = "1 of 3 runs ended"
    assert [change.kind for change in changes(report(), broken)] == ["worse"]
    assert [change.kind for change in changes(broken, report())] == ["better"]
    assert [change.kind for change in changes(report(worst=0.5), fewer)] == ["worse", "other"]


def test_clean_keeps_what_can_be_printed() -> None:
    kept = "ß 0.5\n\t[1] <b> \N{GREEK SMALL LETTER ALPHA}"
    assert clean_text(kept) == kept
    assert clean_text("\x1b\x00\x9b\ud800\ufffe") == "\N{REPLACEMENT CHARACTER}" * 5
