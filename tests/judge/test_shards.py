"""Parts of a run: together they are the whole, and `conformance merge` says what the whole says."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fastjsonschema
import numpy as np
import pytest

from conformance.checks.encoding import TYPES, decode, encode, kinds_of_details
from conformance.checks.findings import Raised
from conformance.judge import batches
from conformance.judge.batches import Shard, list_groups, plan_of_operations, read_shard
from conformance.judge.options import EFFORTS
from conformance.reports.parts import decode_results, encode_results
from specification import RULES
from tests.judge.test_reports import SCHEMA
from tests.support.helpers import CHECKS, DOCUMENTS, Finding, NumpySubject, Results, Violation, attention_case, command

ONLY = ("--only", "NORM-1", "--only", "NORM-3", "--only", "reference_numpy", "--only", "torch_impl")
SEED = ("--seed", 3, "--effort", "quick", "--repeat", 2)
SMALL = ("--only", "NORM-3", "--only", "reference_numpy", "--effort", "quick", "--seed", 3)
FILES = ["part1.json", "part2.json", "part3.json"]


class WrongSubject(NumpySubject):
    """Under the name of another implementation: layer norm that loses digits, and refuses rows of seven numbers."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device=device)
        self.name = "torch_impl"

    def results(self, case: Any, inputs: Any, options: Any) -> Any:
        if case.operation == "layer_norm" and case.inputs["x"].shape[-1] == 7:
            raise RuntimeError("seven")
        found = super().results(case, inputs, options)
        wrong = case.operation == "layer_norm"
        return {name: (array * array.dtype.type(1 + 2**-7) if wrong else array) for name, array in found.items()}


class InlinePool:
    """In place of worker processes, so that a subject can be planted."""

    def __init__(self, count: int, prepare: bytes) -> None:
        function, arguments = pickle.loads(prepare)
        function(*arguments)
        self.own = [*batches.runners]

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        batches.runners[:] = self.own
        future = Future[Any]()
        future.set_result(function(*arguments))
        return future

    def close(self) -> None:
        """There is no process to end."""


@pytest.fixture
def planted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition beside a wrong subject, in this process."""
    monkeypatch.setattr(batches, "WorkerPool", InlinePool)
    monkeypatch.setattr(batches, "prepare_worker", lambda: None)
    monkeypatch.setitem(batches.IMPLEMENTATIONS, "torch_impl", WrongSubject)


def judge_part(number: int, *words: object, path: str = "", count: int = 3) -> tuple[int, str]:
    path = path or f"part{number}.json"
    return command("run", *(words or (*ONLY, *SEED)), "--shard", f"{number}/{count}", "--json", path)


def read(path: str) -> dict[str, Any]:
    report = json.loads(Path(path).read_text())
    fastjsonschema.compile(SCHEMA)(report)
    return {name: value for name, value in report.items() if name not in ("written", "seconds")}


# --- the split --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("parts", [1, 2, 7, 8])
def test_parts_are_disjoint_equal_in_size_and_the_whole(effort: str, parts: int) -> None:
    examples = EFFORTS[effort]
    split = [list_groups(list(RULES), examples, Shard(number, parts)) for number in range(1, parts + 1)]
    asked = sorted(index for part in split for group in part for index in group.indices)
    assert asked == [*range(len(plan_of_operations()))]
    cases = [sum(group.cases for group in part) for part in split]
    largest = max(group.cases for part in split for group in part)
    assert max(cases) - min(cases) <= largest
    assert max(cases) < 1.1 * sum(cases) / parts


def test_more_parts_than_questions_leave_some_empty() -> None:
    split = [list_groups(["NORM-3"], 3, Shard(number, 9)) for number in range(1, 10)]
    assert sum(map(len, split)) == len(list_groups(["NORM-3"], 3)) < 9


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "1/0", "-1/3", "1/3/3", "a/b", "1 / 3"])
def test_what_is_no_part(text: str) -> None:
    assert read_shard("3/8") == (3, 8)
    with pytest.raises(ValueError, match="--shard takes a part and the number of parts, such as 1/8"):
        read_shard(text)


# --- what is written --------------------------------------------------------------------------------------------------


def test_results_are_read_as_they_were_written() -> None:
    results = Results()
    for kind, detail in (("output", None), ("", Raised("RuntimeError", "no", threads=2))):
        finding = Finding(kind, np.inf if detail else 3.0, (0, 0, 0, 0), 1.0, np.nan, 0.5, detail)
        results.add_violation(Violation("ATT-1", "one", finding, "title", CHECKS["agreement"], attention_case()))
    results.rules["ATT-1", "one"].add(3.0, "float32")
    results.substance.masked.append(0.25)
    text = json.dumps(encode_results(results), allow_nan=False)
    again = decode_results(json.loads(text))
    assert json.dumps(encode_results(again)) == text
    assert (again.rules, again.substance, [*again.violations]) == (
        results.rules,
        results.substance,
        [*results.violations],
    )
    assert [one.finding.detail for one in again.violations.values()] == [None, Raised("RuntimeError", "no", threads=2)]


def test_every_check_refusal_and_kind_of_finding_can_be_written() -> None:
    kinds = [*kinds_of_details()]
    assert [TYPES[kind.__name__] for kind in kinds] == kinds
    for check in CHECKS.values():
        assert decode(encode(check)) is check
    for question in plan_of_operations():
        if question.kind == "refusal":
            assert repr(decode(encode(question.about))) == repr(question.about)


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("planted")
def test_merged_parts_are_the_whole_run() -> None:
    codes = [judge_part(number)[0] for number in (1, 2, 3)]
    assert 1 in codes
    for path in FILES:
        part = read(path)
        assert {subject["left_out"] for subject in part["subjects"]} == {f"all but part {path[4]} of 3 of the run"}
        assert {subject["kept"] for subject in part["subjects"]} == {None}
    code, told = command("run", *ONLY, *SEED, "--json", "whole.json")
    whole = read("whole.json")
    right, wrong = whole["subjects"]
    assert (code, right["conforms"], wrong["conforms"]) == (1, True, False)
    assert {violation["kind"] for violation in wrong["violations"]} >= {"value", "raised"}
    for paths in (FILES, [*reversed(FILES)], [FILES[1], FILES[2], FILES[0]]):
        again, output = command("merge", *paths, "--json", "m.json", "--junit", "m.xml", "--html", "m.html")
        assert again == code
        assert output.splitlines() == [line for line in told.splitlines() if not re.fullmatch(r"\.+", line)]
        assert read("m.json") == whole
    assert Path("m.xml").is_file()
    assert Path("m.html").is_file()


@pytest.mark.usefixtures("planted")
def test_a_part_that_stopped_leaves_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [judge_part(number, *SMALL)[0] for number in (2, 3)] == [0, 0]

    def broken(*arguments: Any) -> None:
        raise RuntimeError("a worker died")

    monkeypatch.setattr(batches, "ask_batch", broken)
    assert judge_part(1, *SMALL)[0] == 2
    code, output = command("merge", *FILES, "--json", "merged.json")
    assert code == 2
    assert output.splitlines()[-1] == "not judged to the end: part 1: a worker died"
    assert (read("merged.json")["conforms"], read("merged.json")["subjects"]) == (False, [])


def test_the_order_of_the_plan_decides_which_violation_is_told() -> None:
    """Not that of parts: lost digits stand behind NaN, other wrong numbers do not, and any comes before later ones."""
    ratios = {1.0000003: 3.0, 5.0: 4e7, np.nan: np.inf}
    digits, wrong, nan = (Finding("output", ratio, (0, 0, 0, 0), got, 1.0, 1e-7) for got, ratio in ratios.items())
    for findings, first in (((wrong, nan), wrong), ((digits, wrong), digits), ((digits, wrong, nan), nan)):
        run = {}
        for index, finding in enumerate(findings):
            run[index] = Results()
            run[index].add_violation(Violation("ATT-1", "one", finding, "title", CHECKS["agreement"], attention_case()))
        for found in (run, dict(reversed(run.items()))):
            (violation,) = batches.merge_run(found).violations.values()
            assert violation.finding is first


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("planted")
def test_merge_refuses_what_is_not_the_parts_of_one_run() -> None:
    for number in (1, 2, 3):
        judge_part(number, *SMALL)
    others: dict[str, tuple[tuple[object, ...], int, str]] = {
        "seed": ((*SMALL[:-1], 4), 3, "seed: 3 -> 4"),
        "effort": ((*SMALL[:4], "--effort", "default", *SMALL[6:]), 3, "effort: quick -> default"),
        "only": ((*SMALL, "--only", "NORM-4"), 3, "only: ['NORM-3', 'reference_numpy'] -> ['NORM-3', 'NORM-4', "),
        "target": (("--only", "NORM-3", "--only", "torch_impl", *SMALL[4:]), 3, "subjects: ['reference_numpy'] -> "),
        "parts": (SMALL, 4, "parts: 3 -> 4"),
    }
    for name, (words, count, message) in others.items():
        judge_part(2, *words, path=f"{name}.json", count=count)
        code, output = command("merge", "part1.json", f"{name}.json", "part3.json")
        assert (code, output.count("\n")) == (2, 1)
        assert output.startswith(f"part1.json and {name}.json are parts of different runs: ")
        assert message in output
    older = json.loads(Path("part2.json").read_text())
    Path("older.json").write_text(json.dumps(older | {"versions": older["versions"] | {"numpy": "1.0"}}))
    Path("inexact.json").write_text(json.dumps(older | {"part": older["part"] | {"oracle": False}}))
    spoiled = older | {"part": older["part"] | {"found": older["part"]["found"][:-8]}}
    Path("spoiled.json").write_text(json.dumps(spoiled))
    Path("text.json").write_text("no report")
    Path("damaged.json").write_text(json.dumps(older | {"part": {"number": 2}}))
    command("run", *SMALL, "--json", "whole.json")
    command("run", *SMALL[:-2], "--shard", "2/3", "--json", "unseeded.json")
    refusals = {
        ("part1.json", "older.json", "part3.json"): "parts of different runs: numpy: ",
        ("part1.json", "inexact.json", "part3.json"): "parts of different runs: oracle: True -> False",
        ("part1.json", "part3.json"): "missing of 3 parts: part 2\n",
        ("part3.json",): "missing of 3 parts: parts 1, 2\n",
        (
            "part1.json",
            "part2.json",
            "part2.json",
            "part3.json",
        ): "part 2 of 3 is there twice: part2.json and part2.json",
        ("part1.json", "whole.json"): "whole.json is no part of a run, as --shard writes them\n",
        ("part1.json", "unseeded.json"): "but a report that says: --shard needs --seed",
        ("part1.json", "text.json"): "text.json cannot be read as a report",
        ("part1.json", "damaged.json", "part3.json"): "not a report of this schema: KeyError('parts')",
        ("part1.json", "nowhere.json"): "nowhere.json cannot be read as a report",
        ("part1.json", "spoiled.json", "part3.json"): "the results of part 2 cannot be read: ",
    }
    for paths, message in refusals.items():
        code, output = command("merge", *paths)
        assert (code, output.count("\n")) == (2, 1), output
        assert message in output
    assert command("merge", *FILES)[0] == 0


@pytest.mark.usefixtures("planted")
def test_merge_refuses_parts_of_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        judge_part(number, *SMALL)
    monkeypatch.setattr(batches, "list_groups", lambda rules, examples: list_groups(rules, examples)[1:])
    code, output = command("merge", *FILES)
    assert (code, "the parts do not make up the plan of this version" in output) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shard", "4/3", "--seed", 1), "not understood: 4/3"),
        (("--shard", "1/3"), "--shard needs --seed, the same one for all parts"),
        (("--shard", "1/3", "--seed", 1, "--peers"), "judge --peers by a run of their own"),
    ],
)
def test_options_that_leave_no_parts_of_one_run(folder: Path, words: tuple[object, ...], message: str) -> None:
    code, output = command("run", *words, "--json", "run.json")
    assert code == 2
    assert message in output
    assert message in json.loads((folder / "run.json").read_text())["error"]


@pytest.mark.usefixtures("planted")
def test_a_part_is_compared_with_nothing_and_replayed() -> None:
    judge_part(1, "--only", "NORM-3", "--only", "torch_impl", *SMALL[4:])
    code, output = command("compare", "part1.json", "part1.json")
    assert (code, "part1.json is part 1 of 3 of a run; conformance merge makes it whole" in output) == (2, True)
    code, output = command("replay", "part1.json")
    assert (code, "not seen again" in output) == (0, True)  # torch_impl itself is right


# --- the document -----------------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"```(yaml|bash)\n(.*?)```", (DOCUMENTS / "scaling.md").read_text(), re.DOTALL)


def test_documented_jobs_judge_all_parts(tmp_path: Path) -> None:
    """Each line is run by a shell, with a command in place of `conformance` that prints its arguments."""
    yaml = pytest.importorskip("yaml")
    (_, github), (_, slurm), (_, kubernetes) = BLOCKS
    (tmp_path / "conformance").write_text('#!/bin/sh\necho "$*"\nexit $CODE\n')
    (tmp_path / "conformance").chmod(0o755)

    def run(line: str, code: int = 0, **variables: object) -> list[str]:
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {"PATH": path, "CODE": str(code)} | {name: str(value) for name, value in variables.items()}
        done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=code < 2)
        assert (done.returncode == 0) == (code < 2)
        return done.stdout.split()

    jobs, spec = yaml.safe_load(github)["jobs"], yaml.safe_load(kubernetes)["spec"]
    *_, judging, _ = [step.get("run", "") for step in jobs["part"]["steps"]]
    parts = jobs["part"]["strategy"]["matrix"]["part"]
    ((shell, option), (line,)) = (spec["template"]["spec"]["containers"][0][name] for name in ("command", "args"))
    assert (shell, option, spec["completions"], "--array=1-8 " in slurm) == ("sh", "-c", 8, True)
    asked = {
        "github": [run(judging.replace("${{ matrix.part }}", str(part))) for part in parts],
        "slurm": [run(slurm, SLURM_ARRAY_TASK_ID=part, SLURM_CPUS_PER_TASK=4) for part in range(1, 9)],
        "kubernetes": [run(line, code=1, JOB_COMPLETION_INDEX=index) for index in range(8)],
    }
    for words in asked.values():
        assert [one[one.index("--shard") + 1] for one in words] == [f"{number}/8" for number in range(1, 9)]
        assert [Path(one[one.index("--json") + 1]).name for one in words] == [f"part{n}.json" for n in range(1, 9)]
        assert command(*words[0], "--help")[0] == 0
    run(line, code=2, JOB_COMPLETION_INDEX=0)
    assert command(*jobs["whole"]["steps"][-1]["run"].split()[1:], "--help")[0] == 0
