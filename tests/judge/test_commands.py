"""The command line: verdicts, exit codes and files, for good targets and for every kind of bad one."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

import conformance
from conformance.checks.levels import JUDGED
from conformance.checks.results import Results
from conformance.cli import app
from conformance.judge import replaying
from conformance.judge.checking import rules_of
from conformance.runner import in_subprocess
from conformance.runner.in_process import JudgeError
from specification import MODEL_RULES
from tests.support import targets
from tests.support.helpers import (
    CHECKS,
    FEW_SIZES,
    OPERATIONS,
    Finding,
    Violation,
    attention_case,
    command,
    describe_finding,
)

ROOT = Path(__file__).parents[2]


Command = Callable[..., Any]


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_conforming_target(check_command: Command) -> None:
    found = check_command("good", "--rules", "ATT-1", "--rules", "ATT-2", "--dtypes", "float32,bfloat16")
    assert (found.code, found.violations) == (0, {})
    assert "targets.py:good conforms" in found.output
    (subject,) = found.report["subjects"]
    assert subject["declaration"]["dtypes"] == ["float32", "bfloat16"]
    status = {rule["rule"]: rule["status"] for rule in subject["rules"]}
    assert status == {"CALL": "conforms", "ATT-1": "conforms", "ATT-2": "untried"}  # without softcap in its signature


def test_violation_is_shown_with_its_evidence(check_command: Command, folder: Path) -> None:
    found = check_command("inverted", "--rules", "MASK-1")
    assert found.code == 1
    violation = found.violations["MASK-1"]
    assert violation["dtype"] == "float32"
    assert float(violation["ratio"]) > 1
    assert violation["replay_command"] == "conformance replay conformance-replays/targets.py-inverted-MASK-1.json"
    for told in ("polarity", violation["probe"], "got", "expected", "times its bound", "ULP of float32", "attention("):
        assert told in found.output
    assert violation["replay_command"] in found.output
    assert (folder / violation["replay_file"]).is_file()


# --- targets that cannot be judged ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["targets.py:nothing"], "targets.py has no nothing"),
        (["targets.py:number"], "no callable but int"),
        (["nowhere.py:attention"], "no file nowhere.py"),
        (["no_such_module:attention"], "no_such_module cannot be imported: ModuleNotFoundError"),
        (["broken.py:attention"], "broken.py cannot be imported: SyntaxError"),
        (["leaves.py:attention"], "leaves.py cannot be imported: SystemExit"),
        (["targets:"], "target must be package.module:callable"),
        (["good", "--operation", "attend"], "operation: got 'attend', expecte"),
        (["good", "--dtypes", "float8"], "dtypes: got 'float8'"),
        (["good", "--dtypes", ","], "dtypes: got none"),
        (["good", "--supports", "everything"], "supports: got 'everything'"),
        (["good", "--arrays", "tensorflow"], "arrays: got 'tensorflow'"),
        (["good", "--device", "tpu"], "device: got 'tpu'"),
        (["good", "--layout", "THBD"], "layout: got 'THBD', expected one of BHTD, BTHD"),
        (["good", "--conventions", "polarity"], "conventions must be name=value, got 'polarity'"),
        (["good", "--conventions", "polarity=up"], "convention polarity: got 'up'"),
        (["good", "--conventions", "taste=good"], "conventions: got 'taste'"),
        (["good", "--rules", "ATT-99"], "rules: got 'ATT-99'"),
        (["good", "--limits", "width=3"], "limits: got 'width'"),
        (["good", "--rules", "ATT-2"], "nothing was tried: there is no case of ATT-2 for attention"),
        (["good", "--rules", "NORM-1"], "there is no case of NORM-1 for attention, but of CALL, MASK-1, "),
        (["good", "--vjp", "targets.py:nothing"], "targets.py has no nothing"),
        (["good", "--effort", "maximal"], "effort: got 'maximal', expected one of quick, default, thorough"),
        (["good", "--profile", "lax"], "got 'lax', expected one of core, robust, strict"),
        (["good", "--time-limit", "inf"], "time_limit must be above 0"),
    ],
)
def test_wrong_usage_is_one_line(check_command: Command, folder: Path, words: list[str], message: str) -> None:
    (folder / "broken.py").write_text("def attention(:\n")
    (folder / "leaves.py").write_text("raise SystemExit(0)\n")
    found = check_command(*words)
    assert found.code == 2
    assert message in found.report["error"]
    assert message in " ".join(found.output.split())
    assert found.output.splitlines()[-1].startswith("not judged: ")
    assert found.report["subjects"] == []


def test_report_that_cannot_be_written(folder: Path) -> None:
    (folder / "file").write_text("")
    words = ("--rules", "MASK-1", "--effort", "quick", *FEW_SIZES, "--json", "file/report.json")
    code, output = command("check", "targets.py:good", "--operation", "attention", *words)
    assert code == 2
    assert "file/report.json cannot be written" in output


# --- functions that misbehave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("takes_one", "raised TypeError: takes_one() takes 1 positional argument but 3 were given"),
        ("wrong_shape", "has dtype and shape"),
        ("wrong_dtype", "has dtype and shape complex64"),
        ("wrong_framework", "returned a list of"),
        ("returns_nothing", "returned builtins.NoneType, expected numpy.ndarray"),
        ("raises", "raised RuntimeError: no [red]kernel[/red] for "),
        ("leaves", "raised SystemExit: 0"),
        ("hangs", "took longer than 1 s"),
    ],
)
def test_function_that_answers_nothing(check_command: Command, name: str, message: str) -> None:
    found = check_command(name, "--rules", "ATT-1")
    assert found.code == 1
    assert list(found.violations) == ["CALL"]
    assert message in found.violations["CALL"]["message"]
    assert message in found.output
    assert "\x1b" not in found.output
    assert found.report["subjects"][0]["untried"] == "the plainest call fails, and nothing else was tried"


@pytest.mark.parametrize(
    ("name", "message"), [("takes_no_masks", "raised NotImplementedError: masks"), ("hangs_on_masks", "took longer")]
)
def test_function_that_takes_no_masks_is_judged_on_the_rest(check_command: Command, name: str, message: str) -> None:
    """It claims them by its signature."""
    found = check_command(name, "--rules", "MASK-1", "--rules", "ATT-1", "--supports", "dense")
    assert list(found.violations) == ["MASK-1"]
    assert message in found.violations["MASK-1"]["message"]
    status = {rule["rule"]: rule["status"] for rule in found.report["subjects"][0]["rules"]}
    assert status["ATT-1"] == "conforms"


@pytest.mark.parametrize("how", ["--isolate", "--in-process"])
def test_replay_names_the_line_of_an_error(check_command: Command, how: str) -> None:
    found = check_command("raises", "--rules", "ATT-1", how).violations["CALL"]
    assert re.fullmatch(r"targets\.py:\d+ in raises", found["raised_at"])
    _, output = command("replay", found["replay_file"], how)
    assert f"(raised at {found['raised_at']})" in output


@pytest.mark.parametrize(
    ("name", "asked", "rule", "message"),
    [
        ("prints", "ATT-1", "CALL", "prints to standard output: 'loading kernel\\n'"),
        ("changes_inputs", "ATT-13", "ATT-13", "was changed by the call"),
        ("same_buffer", "ATT-13", "ATT-13", "shares memory with earlier output"),
    ],
)
def test_function_that_prints_or_changes_memory(
    check_command: Command, name: str, asked: str, rule: str, message: str
) -> None:
    found = check_command(name, "--rules", asked)
    assert list(found.violations) == [rule]
    assert message in found.violations[rule]["message"]
    assert (found.violations[rule]["replay"] is None) == (name == "prints")


def test_function_that_dies(check_command: Command) -> None:
    found = check_command("dies_on_masks", "--rules", "MASK-1", "--supports", "dense", "--isolate")
    assert list(found.violations) == ["MASK-1"]
    assert found.violations["MASK-1"]["message"] == "call: its process died of SIGABRT"
    code, output = command("replay", found.violations["MASK-1"]["replay_file"])  # isolated by default
    assert code == 1
    assert "its process died of SIGABRT" in output


@pytest.mark.parametrize("how", ["--isolate", "--in-process"])
@pytest.mark.slow_where("--in-process")
def test_gradients_by_a_function_of_the_command_line(check_command: Command, how: str) -> None:
    words = ("--rules", "ATT-12", "--dtypes", "float32", "--limits", "keys=16,queries=16", how, "--vjp")
    assert check_command("good", *words, "targets.py:gradients").report["subjects"][0]["rules"][1]["cases"] > 3
    found = check_command("good", *words, "targets.py:doubled")
    assert list(found.violations) == ["ATT-12"]
    (_, _, file) = found.violations["ATT-12"]["replay_command"].split()
    assert command("replay", file)[0] == 1
    assert command("replay", file, "--vjp", "targets.py:gradients")[0] == 0


# --- replay -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def violation_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report and the replay file of a function that ignores its scale."""
    folder = tmp_path_factory.mktemp("violated")
    shutil.copy(targets.__file__, folder / "targets.py")
    words = ("--rules", "ATT-1", "--effort", "quick", "--seed", 1, "--no-shrink", "--in-process", *FEW_SIZES)
    with contextlib.chdir(folder):
        command("check", "targets.py:unscaled", "--operation", "attention", *words, "--json", "report.json")
    return folder


@pytest.fixture
def replay_file(folder: Path, violation_folder: Path) -> Path:
    shutil.copytree(violation_folder, folder, dirs_exist_ok=True)
    return Path("conformance-replays/targets.py-unscaled-ATT-1.json")


def test_replay(replay_file: Path) -> None:
    code, output = command("replay", replay_file)
    assert code == 1
    assert "seen again" in output
    assert "ATT-1 scale" in output
    assert output.count("got ") == 2  # then and now
    worst = max(replaying.replay(replay_file), key=lambda finding: finding.ratio)
    assert describe_finding(worst) in output
    code, output = command("replay", replay_file, "--target", "targets.py:good")
    assert code == 0
    assert "not seen again" in output


def test_replay_of_a_report(replay_file: Path, check_command: Command) -> None:
    assert command("replay", "report.json")[0] == 1
    check_command("good", "--rules", "ATT-1")
    code, output = command("replay", "report.json")
    assert (code, output) == (2, "report.json cannot be replayed: the report contains no violation\n")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "3",
        '{"format": "transformer-conformance replay", "version": 1}',
        '{"format": "transformer-conformance replay", "version": 99}',
        '{"schema": {"name": "transformer-conformance report", "version": 99}, "subjects": []}',
    ],
)
def test_file_that_is_no_replay_file(folder: Path, content: str) -> None:
    (folder / "file.json").write_text(content)
    code, output = command("replay", "file.json")
    assert code == 2
    assert "cannot be replayed" in output


def test_damaged_replay_file(replay_file: Path) -> None:
    content = json.loads(replay_file.read_text())
    for name, damage in (("material", {"array": "float32", "shape": [2], "data": "eJw="}), ("examined_by", "magic")):
        replay_file.write_text(json.dumps(content | {name: damage}))
        assert command("replay", replay_file)[0] == 2


def test_replay_needs_a_target(replay_file: Path) -> None:
    content = json.loads(replay_file.read_text())
    content["target"]["subject"] = None
    replay_file.write_text(json.dumps(content))
    code, output = command("replay", replay_file)
    assert code == 2
    assert "give the subject" in output
    assert command("replay", replay_file, "--target", "targets.py:unscaled")[0] == 1
    assert command("replay", replay_file, "--target", "targets.py:nothing")[0] == 2
    assert command("replay", "no/such/file.json")[0] == 2


def test_replay_of_what_hangs(replay_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_subprocess, "ENDING", 0.3)
    code, output = command("replay", replay_file, "--target", "targets.py:hangs_deaf", "--time-limit", 0.3)
    assert code == 1
    assert "took longer than 0.3 s, and its process was ended" in output


def test_replay_loads_no_other_framework(replay_file: Path) -> None:
    code = f"""
import sys
from conformance.__main__ import main
sys.argv = ["conformance", "replay", "{replay_file}"]
try:
    main()
except SystemExit as done:
    assert done.code == 1, done.code
print("torch" in sys.modules, "jax" in sys.modules)
"""
    path = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


# --- compare, and the rest --------------------------------------------------------------------------------------------


def test_compare(check_command: Command, folder: Path) -> None:
    for name in ("good", "unscaled"):
        check_command(name, "--rules", "ATT-1")
        (folder / "report.json").rename(f"{name}.json")
    code, output = command("compare", "good.json", "unscaled.json")
    assert code == 1
    assert "ATT-1" in output
    assert "violated now" in output
    code, output = command("compare", "unscaled.json", "good.json")
    assert code == 0
    assert "repaired" in output
    code, output = command("compare", "good.json", "good.json")
    assert (code, output) == (0, "0 changes, 0 for the worse\n")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": {"name": "transformer-conformance report"}}'])
def test_compare_wants_two_reports(check_command: Command, folder: Path, content: str) -> None:
    check_command("good", "--rules", "ATT-1")
    (folder / "other.json").write_text(content)
    assert command("compare", "report.json", "other.json")[0] == 2
    assert command("compare", "other.json", "report.json")[0] == 2
    assert command("compare", "report.json", "no_such_file.json")[0] == 2


def test_run_writes_reports(folder: Path) -> None:
    only = ("--only", "reference_numpy", "--only", "MASK-1")
    words = ("--effort", "quick", "--workers", 1, "--seed", 1, "--json", "run.json", "--html", "run.html")
    code, output = command("run", *only, *words)
    assert code == 0
    assert "reference_numpy conforms on" in output
    (subject,) = json.loads((folder / "run.json").read_text())["subjects"]
    assert (subject["name"], subject["conforms"]) == ("reference_numpy", True)
    assert len(subject["operations"]) == len(OPERATIONS)
    assert (folder / "run.html").is_file()


class Run(NamedTuple):
    """What `conformance run` left behind."""

    code: int
    output: str
    report: dict[str, Any]
    junit: ElementTree.Element
    page: str


JudgedBy = Callable[..., Run]


class Pool:
    """Workers that find what `runs` says for one run after the other; an exception is raised."""

    runs: tuple[Any, ...] = ()
    closed = False

    def __init__(self, names: list[str], count: int, device: str) -> None:
        self.names, self.left = names, list(self.runs)
        Pool.closed = False

    def run(self, groups: list[Any], examples: int, seed: int, progress: Any) -> dict[int, Results]:
        found = self.left.pop(0)
        if isinstance(found, BaseException):
            raise found
        results = Results()
        for name in self.names:
            results.rules["MASK-1", name].add(found, "float32")
            if found > 1:
                finding = Finding("output", found, (0, 0, 0, 0), 1.0, 0.5, 0.5 / found)
                results.add_violation(
                    Violation("MASK-1", name, finding, "polarity", CHECKS["agreement"], attention_case())
                )
        results.generated["attention"] = 10
        return {0: results}

    def close(self) -> None:
        Pool.closed = True


@pytest.fixture
def judged_by(folder: Path, monkeypatch: pytest.MonkeyPatch) -> JudgedBy:
    """`conformance run` with workers that find what they are told to, and its three reports."""
    monkeypatch.setattr("conformance.judge.batches.ImplementationPool", Pool)
    monkeypatch.setattr("conformance.judge.batches.confirm_violation", lambda violation, device: violation)

    def run(*words: object, runs: tuple[Any, ...] = (0.5,)) -> Run:
        monkeypatch.setattr(Pool, "runs", runs)
        files = ("--json", "run.json", "--junit", "run.xml", "--html", "run.html")
        code, output = command("run", "--seed", 1, "--repeat", len(runs), *files, *words)
        assert Pool.closed
        report = json.loads((folder / "run.json").read_text(), parse_constant=pytest.fail)
        suites = ElementTree.parse(folder / "run.xml").getroot()
        assert (code == 0) == report["conforms"] == (suites.get("failures") == suites.get("errors") == "0")
        assert (report["error"] is not None) == (code in (2, 130))
        return Run(code, output, report, suites, (folder / "run.html").read_text())

    return run


def test_violations_of_a_run(judged_by: JudgedBy) -> None:
    found = judged_by(runs=(0.5, 3.0, 0.5))
    assert found.code == 1
    assert "3 runs of 10 cases for each probe, 1 with violations" in found.output
    assert found.output.count("seed ") == 3
    assert [subject["conforms"] for subject in found.report["subjects"]] == [False] * 3


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (JudgeError("the judge failed: KeyError: 'lost'"), 2, "JudgeError: the judge failed: KeyError: 'lost'"),
        (RuntimeError("out of [memory]"), 2, "out of [memory]"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_runs_before_an_error_are_told(judged_by: JudgedBy, error: BaseException, code: int, message: str) -> None:
    found = judged_by(runs=(0.25, 0.5, error, 0.5))
    assert found.code == code
    assert f"not judged to the end: {message}" in found.output
    assert "│MASK-1 │ polarity" in found.output
    assert "no violation on 20 generated cases before the judge stopped" in found.output
    assert "conform on" not in found.output
    assert "2 of 4 runs of 10 cases for each probe, 0 with violations" in found.output
    assert found.report["error"] == message
    for subject in found.report["subjects"]:
        cases = {rule["rule"]: (rule["cases"], rule["worst"]) for rule in subject["rules"] if rule["cases"]}
        assert cases == {"MASK-1": (2, 0.5)}
        assert (subject["conforms"], subject["untried"]) == (False, "2 of 4 runs ended")
    assert found.junit.get("errors") == "1"
    assert "Not judged to the end" in found.page


def test_violations_before_an_error_are_told(judged_by: JudgedBy) -> None:
    found = judged_by(runs=(3.0, ValueError("no")))
    assert found.code == 2
    assert "1 of 2 runs of 10 cases for each probe, 1 with violations" in found.output
    assert "3 violations on 10 generated cases" in found.output
    assert [len(subject["violations"]) for subject in found.report["subjects"]] == [1, 1, 1]


@pytest.mark.parametrize(
    ("place", "words", "ratio"),
    [("conformance.judge.batches.confirm_violation", (), 3.0), ("conformance.peers.matrix.matrix", ("--peers",), 0.5)],
    ids=["a violation asked again", "the peers"],
)
def test_error_elsewhere_leaves_the_runs(
    judged_by: JudgedBy, monkeypatch: pytest.MonkeyPatch, place: str, words: tuple[str, ...], ratio: float
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("a worker died")

    monkeypatch.setattr(place, broken)
    found = judged_by(*words, runs=(ratio,))
    assert (found.code, found.report["error"]) == (2, "a worker died")
    assert f"1 run of 10 cases for each probe, {int(ratio > 1)} with violations" in found.output
    assert [(len(one["violations"]), one["untried"]) for one in found.report["subjects"]] == [(ratio > 1, None)] * 3


def test_error_before_anything_was_judged(judged_by: JudgedBy) -> None:
    found = judged_by(runs=(ValueError("no"),))
    assert found.code == 2
    assert found.output.splitlines()[-1] == "not judged to the end: no"
    assert "generated cases" not in found.output
    assert found.report["subjects"] == []
    assert "Not judged<" in found.page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--only", "ATT-99"), "not understood: ATT-99"),
        (("--only", "BLK-1"), "BLK-1 has no probes: tests hold it"),
        (("--effort", "maximal"), "not understood: maximal"),
        (("--device", "tpu"), "no device tpu here"),
    ],
)
def test_wrong_usage_of_run(folder: Path, words: tuple[str, ...], message: str) -> None:
    code, output = command("run", *words, "--json", "run.json")
    assert code == 2
    assert message in output
    assert message in json.loads((folder / "run.json").read_text())["error"]


def test_rules() -> None:
    code, output = command("rules")
    assert code == 0
    listed = [" ".join(line.split()) for line in output.splitlines()]
    assert listed == [f"{rule.id} {rule.title} {rule.statement}" for rule in (JUDGED | MODEL_RULES).values()]


def test_rules_of_operations() -> None:
    def listed(*names: str) -> list[str]:
        code, output = command("rules", *names)
        assert code == 0
        return [line.split()[0] for line in output.splitlines() if re.match(r" ?[A-Z]+(-\d+)? ", line)]

    every = list(JUDGED | MODEL_RULES)
    for name in ("attention", "layer_norm", "adam_step"):
        assert listed(name) == [rule for rule in every if rule in rules_of(name)]
    several = rules_of("layer_norm") | {"ATT-6", "BLK-1"}
    assert listed("layer_norm", "ATT-6", "BLK-1") == [rule for rule in every if rule in several]
    code, output = command("rules", "atention")
    assert (code, "'atention'; did you mean attention" in output) == (2, True), output


def test_help_keeps_brackets() -> None:
    _, output = command("check", "--help")
    assert "[batch, length" in " ".join(output.replace("│", " ").split())


def test_module_is_the_program() -> None:
    path = {"PYTHONPATH": str(ROOT), "PATH": ""}
    command = [sys.executable, "-m", "conformance", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=path, check=True)
    for name in ("check", "replay", "run", "merge", "compare", "selftest", "definition", "rules"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("shell", "words", "expected"),
    [
        ("bash", {"COMP_WORDS": "conformance ch", "COMP_CWORD": "1"}, "check"),
        ("bash", {"COMP_WORDS": "conformance check kernel.py:f --operat", "COMP_CWORD": "3"}, "--operation"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance replay --vj"}, '"--vjp"'),
        ("bash", {"COMP_WORDS": "conformance check kernel.py:f --operation layer_n", "COMP_CWORD": "4"}, "layer_norm"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance check kernel.py:f --arrays to"}, '"torch"'),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance check kernel.py:f --dtypes float32,bf"}, '"float32,bfloat16"'),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance check kernel.py:f --supports no-caus"}, '"no-causal"'),
        (
            "zsh",
            {"_TYPER_COMPLETE_ARGS": "conformance check kernel.py:f --conventions polarity=m"},
            '"polarity=masked"',
        ),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance check kernel.py:f --rules NORM-"}, '"NORM-7"'),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance check kernel.py:f --profile ro"}, '"robust"'),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance run --effort th"}, '"thorough"'),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "conformance run --only torch"}, '"torch_impl"'),
        ("fish", {"_TYPER_COMPLETE_ARGS": "conformance sh", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "show"),
    ],
)
def test_shells_complete_commands_options_and_values(shell: str, words: dict[str, str], expected: str) -> None:
    environment = {"_CONFORMANCE_COMPLETE": f"complete_{shell}"} | words
    result = CliRunner().invoke(app, env=environment, prog_name="conformance")
    assert result.exit_code == 0
    assert expected in result.stdout
    assert "Usage" not in result.stdout


def test_version() -> None:
    assert command("--version") == (0, f"{conformance.__version__}\n")


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(folder: Path) -> str:
    from safetensors.numpy import save_file

    from tests.models.test_dialects import filled, state
    from tests.support.tutorials import SIZES, SOURCES

    entries = state(filled(SOURCES["imdb-classifier, max"].module(SIZES[1])))
    save_file({name: np.ascontiguousarray(array) for name, array in entries.items()}, folder / "small.safetensors")
    return "small.safetensors"


HEADS = ("--dialect", "imdb-classifier", "--set", "num_heads=3")


@pytest.mark.slow
def test_port(folder: Path, checkpoint: str) -> None:
    code, output = command("port", checkpoint, *HEADS, "--set", "pool=mean", "--json", "port.json")
    assert code == 0
    report = json.loads((folder / "port.json").read_text())
    assert (report["conforms"], report["first_beyond"]) == (True, None)
    assert report["settings"] == ["num_heads=3", "pool=mean"]
    assert [whole["name"] for whole in report["wholes"]] == ["from end to end, float32", "from end to end, float64"]
    assert "encoder.blocks.0.attention_norm" in output
    assert "every step keeps its bound in reference_numpy, torch_impl, jax_impl" in output


def test_port_says_where_the_first_error_is(folder: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    activations = importlib.import_module("torch_impl.feed_forward").ACTIVATIONS
    monkeypatch.setitem(activations, "relu", lambda x: 1.001 * x.relu())
    code, output = command("port", checkpoint, *HEADS, "--json", "port.json")
    assert code == 1
    report = json.loads((folder / "port.json").read_text())
    assert not report["conforms"]
    assert report["first_beyond"] == {"step": "encoder.blocks.0.feed_forward", "package": "torch_impl"}
    assert command("port", checkpoint, *HEADS, "--json", "no/folder/port.json")[0] == 2
    assert "the first error beyond its bound: torch_impl in encoder.blocks.0.feed_forward" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dialect", "imdb-classifier", "--set", "num_heads=5"), "5 heads cannot share a width of 48"),
        (("--dialect", "dawn", "--set", "num_heads=3"), "src_embed.embed.weight is missing"),
        (("--dialect", "annotated"), "dialect must be one of"),
        (("--dialect", "imdb-classifier", "--set", "num_heads"), "--set takes name=value"),
        (("--dialect", "imdb-classifier", "--set", "n_heads=3"), "n_heads"),
    ],
)
def test_checkpoints_that_do_not_fit(checkpoint: str, words: tuple[str, ...], message: str) -> None:
    code, output = command("port", checkpoint, *words)
    assert code == 2
    assert message in output


def test_files_that_are_no_checkpoints(folder: Path) -> None:
    (folder / "text.safetensors").write_text("nothing")
    assert command("port", "text.safetensors", *HEADS)[0] == 2
    assert command("port", "nowhere.safetensors", *HEADS)[0] == 2


@pytest.mark.slow
def test_trace_of_a_checkpoint(folder: Path, checkpoint: str) -> None:
    words = ("--checkpoint", checkpoint, *HEADS, "--picture", "weights.png")
    code, output = command("trace", "5,7,2", *words)
    assert code == 0
    assert "encoder.blocks.0.attention drawn in weights.png" in output
    assert (folder / "weights.png").read_bytes().startswith(b"\x89PNG")
    assert command("trace", "5,7,2", *words, "--layer", 1)[0] == 2
    assert command("trace", "five", *words)[0] == 2
    assert command("trace", "5,99", *words)[0] == 2
