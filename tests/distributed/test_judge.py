"""The judge on ranks: faults that it must catch, ranks that are lost, and what is cut and joined."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conformance
from conformance.checks.findings import ProcessEnded, Raised, TookTooLong
from conformance.judge.plan import plain_claim
from conformance.judge.trial import ask_question
from conformance.reports.replays import save_replay
from conformance.reports.sentences import describe_finding
from conformance.runner.in_process import Runner
from conformance.selftest import selftest
from conformance.selftest.behaviours import jax_ranks, ranks
from conformance.subjects.shards import SHARDS, Shards
from conformance.subjects.wrong_answers import DtypeOrShape, RanksDiffer, WrongAnswer

ROOT = Path(__file__).parents[2]
BY_NAME = {one.name.removeprefix("ranks: "): one for one in ranks.BEHAVIOURS}
HANGING = [name for name in BY_NAME if "hang" in name or "wait for each other" in name]
DAILY = ["gradients of keys not summed over ranks", "causal measured within a rank"]
"""Those that protect a change; the others are slow."""


@pytest.fixture(scope="module", autouse=True)
def kept() -> Any:
    """One subject for each number of ranks, so that the processes stay."""
    return [BY_NAME[name].make() for name in ("last rank drops its block", "heads in another order, heads")]


# --- planted faults ---------------------------------------------------------------------------------------------------


def groups() -> list[Any]:
    planted = [BY_NAME[name] for name in BY_NAME if name not in (*HANGING, *DAILY)]
    found = [[planted[index] for index in group] for group in selftest.group_planted(planted)]
    names = [f"{group[0].rule} {group[0].shard} {number}" for number, group in enumerate(found)]
    slow = [pytest.param(group, id=name, marks=pytest.mark.slow) for name, group in zip(names, found, strict=True)]
    return [*(pytest.param([BY_NAME[name]], id=name) for name in DAILY), *slow]


@pytest.mark.parametrize("group", groups())
@pytest.mark.rule("DIST-1", "DIST-2", "DIST-3")
def test_faults_are_caught_and_what_they_are_made_from_conforms(group: Any) -> None:
    outcome = selftest.judge_together(group, "quick", 20261130)
    assert outcome == selftest.Outcome(caught=tuple(one.title for one in group))


@pytest.mark.slow
@pytest.mark.parametrize("name", HANGING)
@pytest.mark.rule("DIST-5")
def test_a_rank_that_hangs_is_caught(name: str) -> None:
    assert selftest.judge_together([BY_NAME[name]], "quick", 1).missed == ()


def finding_of(name: str) -> Any:
    """What the plainest call finds."""
    runner = Runner(BY_NAME[name].make())
    results = ask_question(plain_claim("attention", runner.declaration).question("attention"), [runner], 3, 1)
    [violation] = results.violations.values()
    return violation.finding


LOST = {
    "rank 1 raises": (Raised, "call: raised RuntimeError: on rank 1: no memory left"),
    "rank 1 raises while others wait": (Raised, "call: raised RuntimeError: on rank 1: no memory left"),
    "rank 1 dies": (ProcessEnded, "call: on rank 1 its process ended with exit code 7"),
    "rank 1 dies while others wait": (ProcessEnded, "call: on rank 1 its process ended with exit code 7"),
    "whole output on every rank": (DtypeOrShape, "on rank 0, expected"),
    "rank 1 hangs": (TookTooLong, "call: took longer than 8 s on rank 1, for which the others waited"),
    "rank 1 hangs while others wait": (TookTooLong, "call: took longer than 8 s on rank 1, for which the others"),
    "all ranks wait for each other": (TookTooLong, "call: took longer than 8 s, and its process was ended"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in HANGING)) for n in LOST])
@pytest.mark.rule("DIST-5")
def test_the_rank_that_fails_is_named(name: str) -> None:
    kind, words = LOST[name]
    finding = finding_of(name)
    assert isinstance(finding.detail, kind)
    assert words in describe_finding(finding)


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
@pytest.mark.rule("DIST-5")
def test_no_rank_outlives_a_judge_that_is_killed() -> None:
    code = (
        "import time; from conformance.runner.ranks import RankProcesses\n"
        "processes = RankProcesses(2, 9.0); processes.start(); print(*processes.pids, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout is not None
        pids = [int(pid) for pid in judge.stdout.readline().split()]
        judge.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    end = time.monotonic() + 30
    while any(status(pid) not in ("", "Z") for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.1)


# --- names ------------------------------------------------------------------------------------------------------------

NAMED = {
    "last rank drops its block": ("ATT-8", "ranks.keys-seen (seen=all keys but those of the last rank)"),
    "mask of the rank before": ("MASK-3", "ranks.mask-columns (taken=the rank before)"),
    "gradients of keys not summed over ranks": ("ATT-12", "ranks.gradients-not-summed"),
    "blocks merged without log-sum-exps": ("ATT-8", "ranks.parts-averaged (over=ranks that see a key)"),
    "own block counts twice": ("ATT-8", "ranks.own-part-twice"),
    "scale applied at every hop": ("ATT-1", "ranks.scale-at-every-hop"),
    "bias columns of the own rank": ("ATT-3", "ranks.own-bias-columns"),
    "mask on the diagonal block alone": ("MASK-3", "ranks.mask-read (read=for its own part alone)"),
    "causal measured within a rank": ("MASK-3", "ranks.mask-read (read=by positions within ranks)"),
    "zigzag not undone, zigzag": ("MASK-3", "ranks.mask-read (read=as if all ranks' keys stood in the order of ranks)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.rule("DIST-1", "DIST-2")
def test_faults_in_code_are_named(name: str) -> None:
    """Code that has the mistake, and not what the catalogue predicts of it."""
    one, (rule, mistake) = BY_NAME[name], NAMED[name]
    report = conformance.check(
        one.function, "attention", arrays="torch", ranks=one.ranks, shard=one.shard, rules=[rule], dtypes="float32",
        effort="quick", seed=1, isolate=False, shrink=False, **one.given,
    )  # fmt: skip
    assert str(report.causes[0].diagnosis.mistake) == mistake


# --- a check ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.rule("DIST-1")
def test_a_violation_on_ranks_is_replayed_on_ranks(tmp_path: Path) -> None:
    given: dict[str, Any] = {"arrays": "torch", "ranks": 3, "rules": ["ATT-8"], "effort": "quick", "seed": 1}
    function = BY_NAME["the ring stops one hop early"].function
    report = conformance.check(function, "attention", **given, dtypes="float32")
    assert report.subject == f"{function} on 3 ranks"
    violation = report.violations[0]
    save_replay(violation, tmp_path / "replay.json")
    assert any(found.ratio > 1 for found in conformance.replay(tmp_path / "replay.json"))
    right = conformance.replay(tmp_path / "replay.json", f"{ranks.HERE}.ring")
    assert all(found.ratio <= 1 for found in right)


REFUSED = {
    "an operation without ranks": ({"operation": "layer_norm", "ranks": 2}, "attention alone"),
    "arrays without ranks": ({"ranks": 2, "arrays": "numpy"}, "functions of PyTorch or JAX"),
    "a shard alone": ({"shard": "heads"}, "shard means nothing without ranks"),
    "no ranks": ({"ranks": 0}, "ranks must be a whole number of at least 1"),
    "an unknown shard": ({"ranks": 2, "shard": "rows"}, "shard: got 'rows', expected one of sequence, zigzag, heads"),
    "gradients by hand": ({"ranks": 2, "vjp": "torch_impl:attention"}, "differentiated by its framework"),
    "a GPU": ({"ranks": 2, "device": "cuda"}, "on CPUs alone"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ranks_cannot_do_is_refused(name: str) -> None:
    given, message = REFUSED[name]
    operation = given.get("operation", "attention")
    with pytest.raises(ValueError, match=message):
        conformance.check("torch_impl:attention", operation, **{n: v for n, v in given.items() if n != "operation"})


@pytest.mark.slow
@pytest.mark.parametrize(("function", "code"), [("ring", 0), ("each_rank_sees_itself_alone", 1)])
@pytest.mark.rule("DIST-1")
def test_processes_of_torchrun_serve(tmp_path: Path, function: str, code: int) -> None:
    """The others end with the one that judges, whose report says what it found."""
    command = (
        "-m torch.distributed.run --standalone --nproc-per-node 2 -m conformance check"
        f" {ranks.HERE}.{function} --operation attention --ranks 2 --arrays torch --effort quick --dtypes float32"
        f" --rules ATT-8 --seed 1 --json {tmp_path / 'report.json'} --replays {tmp_path}"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode != 0) is bool(code), done.stderr
    verdict = "violates" if code else "conforms"
    assert f"{function} on 2 ranks {verdict}" in " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", *jax_ranks.ROWS])
@pytest.mark.rule("DIST-1", "DIST-2")
def test_faults_in_jax_are_caught(name: str) -> None:
    fault = jax_ranks.ROWS.get(name, jax_ranks.Fault("MASK-3", f"{jax_ranks.HERE}.gathered", "zigzag"))
    report = conformance.check(
        fault.target, "attention", arrays="jax", ranks=jax_ranks.RANKS, shard=fault.shard, rules=[fault.rule],
        dtypes="float32", effort="quick", seed=1, shrink=False,
    )  # fmt: skip
    assert report.conforms is (not name)


# --- what is cut and joined -------------------------------------------------------------------------------------------


def arrays_of(H: int, G: int, Q: int, K: int, layout: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"query": (2, H, Q, 3), "key": (2, G, K, 3), "value": (2, G, K, 4), "output": (2, H, Q, 4)}
    found = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    if layout == "BTHD":
        found = {name: array.swapaxes(1, 2) for name, array in found.items()}
    shapes = {"bias": (1, H, Q, K), "mask": (Q, K), "sinks": (H,), "logsumexp": (2, H, Q), "dropout_keep": (2, H, Q, K)}
    return found | {name: rng.normal(size=shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.rule("DIST-3")
def test_parts_that_are_joined_are_the_whole(shard: str, layout: str) -> None:
    for ranks_, (Q, K), tiled in product((1, 2, 3), ((5, 7), (2, 1), (0, 6)), (False, True)):
        arrays = arrays_of(12, 6, Q, K, layout)
        shards = Shards.read_call(shard, ranks_, arrays, layout, tiled)
        for name, array in arrays.items():
            parts = [shards.cut(name, array, rank) for rank in range(ranks_)]
            np.testing.assert_array_equal(shards.join(name, parts, array.shape, None, name), array)
            if name == "query" and shard != "heads":
                assert sum(part.shape[shards.axes[0]] for part in parts) == Q
        if shard == "heads" and tiled:
            assert shards.cut("sinks", np.arange(12), 0).tolist() == [h for h in range(12) if h % 6 < 6 // ranks_]


def test_parts_that_do_not_fit_are_a_wrong_answer_of_their_rank() -> None:
    arrays = arrays_of(4, 2, 5, 5, "BHTD")
    shards = Shards.read_call("sequence", 2, arrays, "BHTD", False)
    parts = [shards.cut("output", arrays["output"], rank) for rank in range(2)]
    with pytest.raises(WrongAnswer) as raised:
        shards.join("output", [parts[0], parts[0]], arrays["output"].shape, None, "output")
    expected = DtypeOrShape("float64", (2, 4, 3, 4), ("float64",), (2, 4, 2, 4), rank=1)
    assert raised.value.detail == expected
    sinks = [arrays["sinks"], arrays["sinks"] + np.finfo(float).eps]
    with pytest.raises(WrongAnswer) as raised:
        shards.join("sinks", sinks, (4,), None, "gradient of sinks")
    assert raised.value.detail == RanksDiffer(1)
    assert replace(shards, ranks=1).join("sinks", sinks[:1], (4,), None, "sinks") is sinks[0]
