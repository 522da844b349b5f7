"""The result of a benchmark: its file, its pictures, what two of them say, and the command."""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.__main__ import app, choose, finish
from benchmarks.cases import cases
from benchmarks.results import scaling
from benchmarks.results.compare import FASTER, NO_VERDICT, NOISE, SLOWER, compare
from benchmarks.results.plots import PAPER
from benchmarks.subjects import subjects
from conformance.timing.measure.environment import environment, gpu
from conformance.timing.measure.rounds import Budget
from conformance.timing.measure.running import FAILED, LEFT_OUT, Plan, Run
from conformance.timing.results.result import case_result, empty, read, refusal, save
from conformance.timing.sizes import read_sizes
from conformance.timing.subjects import numpy_subjects
from conformance.timing.subjects.timed_subject import Subject, without
from conformance.timing.terminal import choose_memory_cases
from conformance.timing.timed_case import BOTH, FORWARD, Case
from conformance.timing.work import Work
from tests.benchmarks.conftest import Inside
from tests.benchmarks.test_parts import CEILINGS, SIZES, entry
from tests.support import made_results

DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"

# --- the result -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """Of two lengths, with one subject that is left out and one that is not installed."""
    absent = Subject("absent", "attention", "numpy", ("no_such_package",), numpy_subjects.naive)
    unable = replace(absent, name="unable", packages=(), takes=without("causal"))
    known = [subjects()["reference_numpy"], subjects()["NumPy, naive"], absent, unable]
    plan = Plan("cpu", 1, 7, Budget(6, 6), memory=lambda case: case.K == 64)
    run = Run(plan, known, Inside)
    run.ceilings = [one | {"rates": [1e12]} for one in CEILINGS]
    found = empty(environment("cpu", 1), {"device": "cpu", "threads": 1, "seed": 7, "quick": True, "only": [],
                                          "rounds": [6, 6]})  # fmt: skip
    for length in (32, 64):
        case = Case(
            f"causal, T={length}", kind="causal", series="causal", **(SIZES | {"Q": length, "K": length, "G": 4})
        )
        found["cases"].append(case_result(case, *run.case(case), run.ceilings))
    found |= {"ceilings": run.ceilings, "scaling": scaling.scaling(found["cases"]), "finished": True}
    return found


def test_result(result: dict[str, Any], tmp_path: Path) -> None:
    save(result, tmp_path / "new" / "b.json")
    assert read(tmp_path / "new" / "b.json") == result
    assert not refusal(tmp_path / "new" / "b.json")
    ours, naive, absent, unable = result["cases"][1]["subjects"]
    assert (ours["status"], naive["status"]) == ("measured", "measured")
    assert (absent["status"], absent["reason"], absent["seconds"]) == (
        LEFT_OUT, "no_such_package is not installed", None,
    )  # fmt: skip
    assert unable["reason"] == "it has no parameter for a mask of kind 'causal'"
    assert ours["ratios"]["reference_numpy"]["median"] == 1
    expected = [a / b for a, b in zip(naive["trials"], ours["trials"], strict=True)]
    assert naive["ratios"]["reference_numpy"]["median"] == pytest.approx(np.median(expected))
    flops = result["cases"][1]["flops"]
    assert naive["flops_per_second"]["median"] == pytest.approx(flops / naive["seconds"]["median"])
    assert naive["memory"] > 0
    assert result["cases"][0]["subjects"][0]["memory"] is None


def test_what_failed_has_no_time() -> None:
    failed, good = entry([1.0] * 6, base=True), entry([2.0] * 6)
    failed.end(FAILED, "it is wrong")
    case = Case("causal", kind="causal", **SIZES)
    found = case_result(case, Work(1, 10, 10, 10), [failed, good], [])
    shown = found["subjects"][0]
    assert (shown["status"], shown["reason"]) == (FAILED, "it is wrong")
    assert {shown[name] for name in ("seconds", "trials", "ratios", "flops_per_second", "judged")} == {None}
    assert found["bases"] == ["mine"]
    assert found["subjects"][1]["ratios"]["mine"]["median"] == 1


def test_every_field_is_described(result: dict[str, Any]) -> None:
    text = DOCUMENT.read_text()

    def names(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from part
        for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from names(each)

    known = {subject["name"] for case in result["cases"] for subject in case["subjects"]}
    known |= set(result["environment"]["versions"])
    assert {name for name in names(result) if name not in known and f"`{name}`" not in text} == set()


def test_pictures(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.results.plots import plot

    written = plot(result, tmp_path / "pictures")
    assert [path.name for path in written] == ["growth-causal.svg", "ratios-reference-numpy.svg"]
    for path in written:
        assert 'width="316.8"' in path.read_text()
        assert "light-dark(" in path.read_text()


def test_a_base_stands_not_beside_itself(result: dict[str, Any]) -> None:
    """Also where it is a library, as in a run without our engines."""
    pytest.importorskip("matplotlib")
    from benchmarks.results.plots import shown

    timed = next(case for case in result["cases"] if sum(s["status"] == "measured" for s in case["subjects"]) > 1)
    subjects = [one | {"ours": False} for one in timed["subjects"] if one["status"] == "measured"]
    first, names = subjects[0]["name"], [one["name"] for one in subjects]
    case = timed | {"bases": [first], "subjects": [one | {"ratios": {first: one["seconds"]}} for one in subjects]}
    looks: Any = SimpleNamespace(names=names)
    assert [name for name, _ in shown(case, first, looks)] == names[1:]


# --- two results ------------------------------------------------------------------------------------------------------


def changed(result: dict[str, Any], ours: float, others: list[float], n: int = 9) -> tuple[Any, Any]:
    """Two results: one of ours and some others, with what their medians are multiplied by in the second."""
    base = result["cases"][0]["subjects"][0]

    def of(name: str, is_ours: bool, median: float) -> dict[str, Any]:
        seconds = {"median": median, "low": 0.98 * median, "high": 1.02 * median, "level": 1 - 2.0 ** (1 - n), "n": n}
        return base | {"name": name, "ours": is_ours, "seconds": seconds}

    def whole(factors: list[float]) -> dict[str, Any]:
        listed = [of(f"subject {number}", number == 0, factor) for number, factor in enumerate(factors)]
        return json.loads(json.dumps(result | {"cases": [result["cases"][0] | {"subjects": listed}]}))

    return whole([1.0] * (1 + len(others))), whole([ours, *others])


@pytest.mark.parametrize(
    ("ours", "others", "n", "verdict"),
    [
        (1.2, [], 9, SLOWER),
        (0.8, [], 9, FASTER),
        (1.03, [], 9, NOISE),
        (1.2, [1.0, 1.01, 0.99, 1.02], 9, SLOWER),
        (1.2, [1.0, 1.01, 0.99, 1.18], 9, NOISE),  # its median is past theirs, and its interval is not
        (1.2, [1.0, 1.1, 1.3, 1.02], 9, NOISE),
        (1.2, [1.3, 1.4, 1.35, 1.5], 9, NOISE),  # slower than before, and less so than what is the same
        (0.8, [0.7, 0.6, 0.65, 0.5], 9, NOISE),
        (1.2, [1.3], 9, SLOWER),  # one that is the same says too little of the rest
        (1.2, [], 3, NOISE),
    ],
)
def test_noise(result: dict[str, Any], ours: float, others: list[float], n: int, verdict: str) -> None:
    found = compare(*changed(result, ours, others, n))
    assert found.changes[0].verdict == verdict
    assert found.changes[0].ratio == pytest.approx(ours)
    assert not found.circumstances


def test_the_users_own_kernels_show_no_drift(result: dict[str, Any], tmp_path: Path) -> None:
    """Their code may have changed: one that is 50 times slower is slower, though all else is a library and the same."""
    before, after = changed(result, 1.0, [50.0, 1.0, 1.01, 0.99])
    for one in (before, after):
        one["cases"][0]["subjects"][1]["yours"] = True
    assert compare(before, after).drift == {}  # three libraries are not enough
    before, after = changed(result, 1.0, [50.0, 1.0, 1.01, 0.99, 1.02])
    for one in (before, after):
        one["cases"][0]["subjects"][1]["yours"] = True
    found = compare(before, after)
    assert list(found.drift.values()) == [(0.99, 1.02)]
    assert [change.verdict for change in found.changes] == [SLOWER, NOISE, NOISE, NOISE, NOISE, NOISE]  # yours first
    for place, one in (("a", before), ("b", after)):
        save(one, tmp_path / place)
    assert command("compare", tmp_path / "a", tmp_path / "b")[0] == 1
    assert command("compare", tmp_path / "a", tmp_path / "a")[0] == 0


def test_what_else_differs_is_told(result: dict[str, Any]) -> None:
    before, after = changed(result, 1.2, [1.0, 1.3, 1.1, 1.3, 1.3])
    after["environment"] |= {"commit": "other", "versions": after["environment"]["versions"] | {"numpy": "0.1"}}
    after["cases"][0]["subjects"][1] |= {"status": FAILED, "reason": "it is wrong"}
    found = compare(before, after)
    assert found.changes[0].verdict == SLOWER  # other versions: nothing is the same any more
    assert any(line.startswith("numpy: ") and line.endswith("then 0.1") for line in found.circumstances)
    assert any(line.startswith("commit: ") for line in found.circumstances)
    assert any("subject 1: measured, then failed: it is wrong" in line for line in found.circumstances)
    assert math.isclose(found.changes[1].ratio, 1.3)
    assert not any("only in" in line for line in found.circumstances)


def test_other_programs_and_an_interrupt_are_told(result: dict[str, Any]) -> None:
    busy = copy.deepcopy(result) | {"finished": False}
    busy["cases"][0]["busy"] = "load 7.9 on 2 processors"
    line = "other programs used the machine in 1 of 2 cases, interrupted"
    none = "no verdict in 1 of 2 cases: other programs used the machine; repeat the run"
    assert compare(result, busy).circumstances == [none, f"B: {line}"]
    assert compare(busy, busy).circumstances == [none, f"A: {line}; B: {line}"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"busy": "load 7.9 on 2 processors"}, "other programs used the machine"),
        ({"pairs": 99}, "no verdict, it was other work: {} pairs of queries and keys, then 99"),
    ],
)
def test_what_is_not_alike_gets_no_verdict(result: dict[str, Any], fields: Any, why: str, tmp_path: Path) -> None:
    before, after = changed(result, 1.5, [1.0])
    assert [one.verdict for one in compare(before, after).changes] == [SLOWER, NOISE]
    after["cases"][0] |= fields
    found = compare(before, after)
    assert [one.verdict for one in found.changes] == [NO_VERDICT, NO_VERDICT]
    assert why.format(f"{before['cases'][0]['pairs']:,}") in found.circumstances[0]
    for place, one in (("a", before), ("b", after)):
        save(one, tmp_path / place)
    code, output = command("compare", tmp_path / "a", tmp_path / "b")
    assert (code, "2 without a verdict" in output) == (2, True)
    names = [subject["name"] for subject in before["cases"][0]["subjects"]]
    assert not any(f"{name} " in output.partition("time B / A")[2] for name in names), "no row without a verdict"
    for one in (before, after):
        one["cases"][0]["subjects"][0]["yours"] = True
        save(one, tmp_path / ("a" if one is before else "b"))
    assert names[0] in command("compare", tmp_path / "a", tmp_path / "b")[1].partition("time B / A")[2], "but yours"


def test_yours_stand_out_in_pictures(result: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.results.plots import Looks

    operation = result["cases"][0]["operation"]
    subjects = [one for case in result["cases"] if case["operation"] == operation for one in case["subjects"]]
    name = next(one["name"] for one in subjects if one["status"] == "measured" and not one["ours"])
    plain = Looks(result, operation)
    assert (plain.line(name)["linewidth"], plain.line(name)["markerfacecolor"]) == (1.2, PAPER)
    for one in subjects:
        one["yours"] = one["name"] == name
    looks = Looks(result, operation)
    assert looks.names[0] == name
    assert looks.line(name)["linewidth"] > max(looks.line(other)["linewidth"] for other in looks.names[1:])
    assert looks.line(name)["markerfacecolor"] != PAPER
    assert next(handle.get_label() for handle in looks.handles(looks.names)) == f"yours: {name}"


def test_names_are_chosen_in_small_letters_or_capitals() -> None:
    known = [*subjects().values()]
    one = next(subject for subject in known if "SDPA" in subject.name)
    small = cases("cpu", quick=True)
    for words in (["sdpa"], ["SDPA"], ["CAUSAL", "Sdpa"]):
        found, fewer = choose(words, small, known)
        assert one in fewer
        assert len(fewer) < len(known)
    assert {case.name for case in found} == {case.name for case in small if "causal" in case.name}


def test_what_only_one_has_is_told(result: dict[str, Any]) -> None:
    after = copy.deepcopy(result)
    gone, lost = after["cases"][0], after["cases"][1]["subjects"].pop(1)
    absent = after["cases"][1]["subjects"][0] | {"name": "absent", "status": "left out"}  # it was in neither
    after["cases"][1]["subjects"].append(absent)
    after["cases"][0] = gone | {"name": "another"}
    told = [line for line in compare(result, after).circumstances if "only in" in line]
    assert told == [
        f"only in the first: {gone['name']}",
        "only in the second: another",
        f"only in the first: {after['cases'][1]['name']}: {lost['name']}",
    ]


# --- the command ------------------------------------------------------------------------------------------------------


def command(*words: str | Path) -> tuple[int, str]:
    """Exit code, and what was printed, without line breaks."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def test_a_run(inside: None, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "b.json"
    words = ("run", "--quick", "--only", "short", "--only", "reference_numpy", "--threads", "1", "--seed", "5")
    code, output = command(*words, "--json", path)
    assert code == 0
    assert "seed 5, 1 thread, " in output
    assert [one["name"] for one in read(path)["cases"][0]["subjects"]] == ["reference_numpy"]
    assert read(path)["settings"]["only"] == ["short", "reference_numpy"]
    quiet = read(path) | {"cases": [case | {"busy": ""} for case in read(path)["cases"]]}
    save(quiet, path)
    assert command("compare", path, path)[0] == 0


def test_cases_are_listed_with_what_memory_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.timing.measure.memory.available", lambda device: 10**9)
    monkeypatch.setattr(Run, "case", None)  # nothing is timed
    words = ("run", "--list", "--only", "causal, T=128", "--only", "causal, T=16384", "--only", "NumPy, naive")
    assert command(*words) == (0, (
        "causal, T=128 causal, T=16384 left out NumPy, naive: one call needs about 18.5 GB; 0.8 GB are allowed, 80% of "
        "the 1.0 GB that are free (SPARE in conformance/timing/measure/memory.py) "
        "causal, T=16384, forward + backward subjects: NumPy, naive"
    ))  # fmt: skip


def test_quick_measures_memory_in_the_largest_case(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"short": 64, "long": 512, "longest": 600, "as long": 512}
    picked = [Case(name, Q=n, K=n, direction=BOTH if name == "longest" else FORWARD) for name, n in sizes.items()]
    wanted = choose_memory_cases(True, picked)
    assert [case.name for case in picked if wanted(case)] == ["long"]
    assert capsys.readouterr().out == "memory is measured in one case, long; without --quick, in all\n"
    assert all(map(choose_memory_cases(True, picked[2:3]), picked[2:3]))
    assert all(map(choose_memory_cases(False, picked), picked))
    assert not capsys.readouterr().out


def test_own_sizes_are_instead_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "case", None)  # nothing is timed
    words = ("--case", "B=1,H=4,G=2,T=24,D=8,causal", "--case", "layer norm, B=2, T=4, D=8")
    sizes, norm = "B=1, H=4, G=2, T=24, D=8, causal", "layer norm, B=2, T=4, D=8"
    listed = f"{sizes} {sizes}, forward + backward {norm} {norm}, forward + backward subjects: "
    assert command("run", "--list", *words, "--only", "NumPy, naive", "--only", "reference_numpy") == (
        0,
        f"{listed}reference_numpy; NumPy, naive; reference_numpy, layer norm",
    )


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("dense", {"B": 1, "H": 8, "G": 8, "Q": 128, "K": 128, "D": 64, "V": 64, "kind": "dense", "dtype": "float32"}),
        ("Q=1, K=300, lengths, D=32", {"Q": 1, "K": 300, "kind": "lengths", "V": 32}),
        ("window=16,T=64", {"kind": "window", "window": 16, "name": "window=16, T=64", "segments": 0}),
        ("segments=3 , T = 64", {"kind": "segments", "segments": 3, "Q": 64}),
        ("T=5, layer norm", {"operation": "layer_norm", "Q": 5, "D": 64, "H": 1, "G": 1}),
    ],
)
def test_sizes_that_are_not_named(text: str, fields: dict[str, Any]) -> None:
    forward, both = read_sizes(text, "cpu")
    assert {name: getattr(forward, name) for name in fields} == fields
    assert (forward.backward, both.backward) == (False, True)
    assert read_sizes(text, "cuda")[0].dtype == "bfloat16"


def test_where_all_fail_there_is_no_table(inside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.timing.subjects.numpy_subjects.naive_attention", lambda query, *_: query[0])
    code, output = command("run", "--quick", "--only", "short", "--only", "NumPy, naive")
    assert code == 1
    assert "No subject has a time. Failed, and without a time: NumPy, naive. FAILED NumPy, naive: " in output
    assert "GFLOP/s" not in output


def test_the_end_of_a_run_names_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    case = made_results.benchmark()["cases"][0] | {"busy": "load 7.9 on 2 processors"}
    result = {"cases": [case], "ceilings": [], "finished": True, "settings": {"device": "cpu"},
              "environment": {"memory": None}}  # fmt: skip
    with pytest.raises(typer.Exit) as ended:
        finish(result, None)
    assert ended.value.exit_code == 1
    printed = capsys.readouterr().out
    assert "FAILED: Wrong library in 1 case." in printed
    assert "Other programs used the machine in 1 of 1 cases: times are too long" in printed


def test_an_interrupt_keeps_what_there_is(inside: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case, path, pictures = Run.case, tmp_path / "b.json", tmp_path / "pictures"

    def interrupted(run: Run, asked: Case) -> Any:
        if asked.Q == 1:
            assert len(read(path)["cases"]) == 1  # written as soon as it is there
            raise KeyboardInterrupt
        return case(run, asked)

    monkeypatch.setattr(Run, "case", interrupted)
    code, output = command(
        "run", "--quick", "--only", "short", "--only", "decode", "--only", "reference_numpy", "--json", path,
        "--plots", pictures,
    )  # fmt: skip
    found = read(path)
    assert (code, "interrupted" in output, found["finished"]) == (130, True, False)
    assert [one["name"] for one in found["cases"]] == ["short, T=64"]
    pytest.importorskip("matplotlib")
    assert "no pictures: the result has no times to compare" in output  # of one subject alone
    assert not pictures.exists()


def test_results_without_times_are_told_in_a_line(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save(result, tmp_path / "full.json")
    save(result | {"cases": []}, tmp_path / "none.json")
    told = command("plot", tmp_path / "none.json", "--to", tmp_path / "pictures")
    assert told == (0, "no pictures: no case is finished")
    assert not (tmp_path / "pictures").exists()
    assert command("compare", tmp_path / "full.json", tmp_path / "none.json")[0] == 2
    code, output = command("compare", tmp_path / "none.json", tmp_path / "none.json")
    assert (code, output) == (2, "No subject has a time in both results.")


@pytest.mark.slow
def test_a_subject_of_ones_own(inside: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files of the document: a function, an old one beside it, and a subject in another layout."""
    pytest.importorskip("torch")
    function, other_layout = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    paths = [tmp_path / name for name in ("kernel.py", "old_kernel.py", "tokens.py")]
    for path, text in zip(paths, (function, function, other_layout), strict=True):
        path.write_text(text)
    kernel, old = (f"{path}:attention" for path in paths[:2])
    mine, json = f"{paths[2]}:MINE", tmp_path / "b.json"
    words = ("run", "--quick", "--only", "causal, T=256", "--only", "causal, T=512, forward + backward")
    words += ("--only", "lengths", "--json", json)
    code, output = command(*words, "--with", kernel, "--with", old, "--only", "kernel.py")
    assert (code, output.count("FAILED")) == (0, 0)
    for case in read(json)["cases"]:
        assert [(one["name"], one["status"]) for one in case["subjects"]] == [(kernel, "measured"), (old, "measured")]
    assert command(*words, "--with", kernel, "--with", kernel) == (2, f"two subjects have the name '{kernel}'")
    code, output = command(*words, "--with", mine, "--only", "my attention")
    assert code == 0
    reasons = {case["kind"]: case["subjects"][0]["reason"] for case in read(json)["cases"]}
    assert reasons == {"causal": "", "lengths": "it has no parameter for a mask of kind 'lengths'"}
    assert "NAME is our default engine; if it has no time, the first subject that has one" in output


BAD = {
    "--only 'no such'": "no case or subject has 'no such' in its name cases: short, T=64; dense",
    "--only dense --only F.layer_norm": "none of the subjects that 'F.layer_norm' names is for these",
    "--device tpu": "--device must be one of cpu, cuda, got 'tpu'",
    "--threads 4096": "--threads must be at most",
    "--case 'T=64, D'": "--case 'T=64, D': 'D' is unknown; expected sizes B, H, G, T, Q, K, D and one of",
    "--case 'T=64, window'": "--case 'T=64, window': 'window' is unknown; expected",
    "--case ''": "--case '': it is empty; expected",
    "--case T=0": "--case 'T=0': T must be a whole number above 0, got '0'; expected",
    "--case 'T=1, T=2'": "--case 'T=1, T=2': 'T=2' is one too many; expected",
    "--case 'causal, window=3'": "--case 'causal, window=3': 'window=3' is one too many; expected",
    "--case 'H=4, G=3'": "--case 'H=4, G=3': H must be a multiple of G, got 4 and 3; expected",
    "--case 'Q=4, causal'": "--case 'Q=4, causal': causal has as many queries as keys, got 4 and 128; exp",
    "--case 'segments=9, T=8'": "--case 'segments=9, T=8': 9 segments of 8 keys; expected",
    "--case 'layer norm, H=2'": "--case 'layer norm, H=2': layer norm has no H; expected",
    "--json FOLDER": "FOLDER is a folder",
    "--json FILE/b.json": "FILE/b.json cannot be written: ",
    "--with no_such_module:MINE": "no_such_module cannot be imported: ModuleNotFoundError: No module named",
    "--with nowhere.py:MINE": "nowhere.py cannot be imported: FileNotFoundError: no file nowhere.py",
    "--with benchmarks.cases:CASES": "benchmarks.cases:CASES is a tuple, expected a function or a Subject",
    "--with benchmarks.cases:causal": "benchmarks.cases:causal: only attention and layer_norm are timed, and its name",
    "compare FILE FILE": "FILE is not JSON: ",
    "plot FOLDER/none.json": "FOLDER/none.json cannot be read: No such file or directory",
    "plot OTHER": "OTHER is no result of a benchmark",
    "plot LATER": "LATER has version 2 of the format, and this reads 1",
    "compare TORN TORN": "not a result of this format: ",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_refused_in_a_line(tmp_path: Path, words: str) -> None:
    schema = {"name": "transformer-conformance benchmark", "version": 1}
    texts = {"FILE": "no", "OTHER": "[]", "LATER": json.dumps({"schema": schema | {"version": 2}}),
             "TORN": json.dumps({"schema": schema})}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    def placed(word: str) -> str:
        for name in texts:
            word = word.replace(name, str(tmp_path / name))
        return word.replace("FOLDER", str(tmp_path))

    split = shlex.split(words)
    code, output = command(*([] if split[0] in ("compare", "plot") else ["run"]), *map(placed, split))
    line = placed(BAD[words])
    assert code == 2
    assert output.replace(" ", "").startswith(line.replace(" ", "")) or line in output


@pytest.mark.skipif(gpu() is not None, reason="there is a GPU")
def test_no_gpu() -> None:
    code, output = command("run", "--device", "cuda")
    assert (code, output) == (2, "--device cuda: neither torch nor JAX sees a GPU here")
