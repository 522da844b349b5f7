"""`python -m benchmarks ranks`: memory of a rank, what is refused, and the simulation of many ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.cases import causal
from benchmarks.ranks import measuring, tables
from benchmarks.ranks.formulas import BASE, WAYS, Way, bytes_sent
from benchmarks.ranks.growth import DIAGONAL, FULL, WHOLE, Machine, ring_steps, simulate_attention, simulate_ring
from benchmarks.ranks.measuring import measure_case
from benchmarks.ranks.rank_worker import Measurement, heads_of, peak_bytes, prepare_call
from conformance.timing.measure.processes import Failed
from conformance.timing.timed_case import Case, both_ways, inputs
from specification import Causal
from specification.distributed import shard_positions
from tests.support.ranks import Ranks, replaced
from torch_impl import attention, distributed
from torch_impl.engines import choice
from torch_impl.engines.blocked import Limits

DOCUMENT = Path(__file__).parents[2] / "docs" / "scaling.md"
SHORT, LONG = (replace(causal(length), H=8, G=8, D=16, V=16) for length in (256, 512))

# --- memory -----------------------------------------------------------------------------------------------------------


def test_peak_is_that_of_all_tensors_at_one_time() -> None:
    ones = torch.ones(1000)  # 4,000 bytes, which do not count
    assert peak_bytes(lambda: [ones + 1, ones + 2, ones + 3]) == pytest.approx(12_000, abs=100)
    assert peak_bytes(lambda: ((ones + 1) + 2) + 3) == pytest.approx(8_000, abs=100)


def peaks(argument: tuple[list[Case], bool], group: Any) -> list[int]:
    """Of each way and case; with the keys of all ranks kept, where that is planted."""
    cases, keep = argument
    travel = distributed.travel

    def keep_all(*arguments: Any) -> Iterator[Any]:
        yield from list(travel(*arguments))

    with replaced(choice, "LIMITS", Limits()), replaced(distributed, "travel", keep_all if keep else travel):
        return [
            peak_bytes(prepare_call(case, way, group, 1, 1))
            for name, way in WAYS.items() if name != BASE
            for case in cases
        ]  # fmt: skip


def peaks_on(processes: Ranks, cases: list[Case], ranks: int, keep: bool = False) -> np.ndarray:
    """Bytes [ways, cases] of the rank that needs most."""
    answers = processes.ask(peaks, [(cases, keep)] * ranks)
    assert [error for _, error in answers] == [None] * ranks
    return np.max([found for found, _ in answers], axis=0).reshape(-1, len(cases))


@pytest.mark.slow
@pytest.mark.rule("DIST-4")
def test_memory_is_that_of_the_own_positions(processes: Ranks) -> None:
    """8 ranks need half as much each as 4, and twice as much for twice the length; ranks that keep all keys do not.

    A forward pass on 4 ranks needs a quarter of that of one, and parts of keys that travel, which one rank has not.
    """
    cases = [*both_ways(SHORT), *both_ways(LONG)]
    one, four = (peaks_on(processes, cases, ranks) for ranks in (1, 4))
    eight, keeping = (peaks_on(processes, cases[1:2], 8, keep)[:2] for keep in (False, True))
    assert (np.abs(four[:, 2:] / four[:, :2] - 2) < 0.1).all()
    assert (four[:, ::2] < 0.35 * one[:, ::2]).all()
    assert (np.abs(eight / four[:2, 1:2] - 0.5) < 0.05).all()  # of rings: scratch of the kernel counts for one head
    assert (np.abs(keeping / four[:2, 1:2] - 0.5) > 0.05).all()


# --- judged -----------------------------------------------------------------------------------------------------------


class Inside:
    """Ranks whose parts come from one process's attention, without processes. change: what is done to a part."""

    def __init__(self, change: Any = None) -> None:
        self.change = change

    def ask(self, count: int, method: str, case: Case, way: Way, ranks: int, seed: int, *more: Any) -> list[Any]:
        if method == "peak":
            return [1] * count
        number, places = more
        arrays = measuring.only_there(case, inputs(case, seed, number), places)
        tensors = [torch.from_numpy(arrays[name]).requires_grad_() for name in case.inputs]
        output = attention(*tensors, mask=Causal())
        results = [output]
        if case.backward:
            results += torch.autograd.grad(output, tensors, torch.from_numpy(arrays["cotangent"]))
        found = []
        for rank, expected in enumerate(bytes_sent(case, way, count)):
            own = shard_positions(case.K, count, rank, way.layout)
            samples = [
                {
                    name: result[place.batch, heads_of(case, place, name)][:, own].detach().numpy().copy()
                    for name, result in zip(case.results, results, strict=True)
                }
                for place in places
            ]
            sent = list(expected[: 1 + case.backward])
            found.append(Measurement([1.0 + rank, 9.0 - rank][: len(sent)], sent, samples))
        if self.change is not None:
            self.change(found)
        return found


def add(name: str) -> Any:
    def change(found: list[Measurement]) -> None:
        found[-1].samples[0][name] += 1e-3

    return change


def swap(found: list[Measurement]) -> None:
    for a, b in zip(found[0].samples, found[1].samples, strict=True):
        a["output"], b["output"] = b["output"], a["output"]


def send_more(found: list[Measurement]) -> None:
    found[1].bytes[-1] += 4


BACK = both_ways(SHORT)[1]


@pytest.mark.parametrize("way", ["ring, contiguous", "ring, zigzag", "head-parallel"])
def test_right_results_have_a_row(way: str) -> None:
    row = measure_case(Inside(), BACK, way, WAYS[way], 4, 1)  # type: ignore[arg-type]
    assert (row["seconds"], row["passes"], row["memory"]) == (9.0, [4.0, 5.0], 1)  # until the last rank is done
    assert 0 < row["error"] <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add("output"), "call 1: output"),
        (add("gradient of query"), "call 1: gradient of query"),
        (add("gradient of key"), "call 1: gradient of key"),
        (add("gradient of value"), "call 1: gradient of value"),
        (swap, "call 1: output"),
        (send_more, "the formula says"),
    ],
)
def test_wrong_results_and_bytes_are_refused(change: Any, message: str) -> None:
    with pytest.raises(Failed, match=message):
        measure_case(Inside(change), BACK, "ring, zigzag", WAYS["ring, zigzag"], 2, 1)  # type: ignore[arg-type]


def test_times_that_do_not_grow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure_case", lambda *arguments: {"passes": [1.0, 2.0]})
    with pytest.raises(Failed, match="64 positions take no longer than 32"):
        measuring.measure_machine(Inside(), (32, 64), 1, lambda line: None)  # type: ignore[arg-type]


# --- growth -----------------------------------------------------------------------------------------------------------


PARTS = {FULL: 1.0, DIAGONAL: 0.5, WHOLE: 0.5}


def machine(**fields: Any) -> Machine:
    """Pairs of n positions take n^2 seconds, on the diagonal half of that; backward three times as much."""
    sizes = [1, 2, 4]
    seconds = {kind: [[n * n * part, 3 * n * n * part] for n in sizes] for kind, part in PARTS.items()}
    return Machine(sizes, seconds, **({"latency": 0.0, "bandwidth": 1e30} | fields))


def test_time_of_a_pair() -> None:
    """Between sizes, and beyond, where the rate between the last two goes on."""
    for size in (1, 3, 4, 64):
        assert machine().pair(FULL, size, False) == pytest.approx(size**2)
        assert machine().pair(DIAGONAL, size, True) == pytest.approx(1.5 * size**2)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("contiguous", [[8, 8], [0, 16]]),  # pieces of 4: the second rank's queries come after all keys of the first
        ("zigzag", [[8, 8], [8, 8]]),  # pieces of 2, of which a rank has an early and a late one
    ],
)
def test_work_of_each_step_by_hand(layout: str, expected: Any) -> None:
    np.testing.assert_allclose(ring_steps(machine(), 8, 2, layout, False), expected)


def test_ring_by_hand() -> None:
    """Two ranks: the first computes 1 s and then nothing, the second 1 s and then 2."""
    steps = np.array([[1.0, 1.0], [0.0, 2.0]])
    assert simulate_ring(steps, 0.5) == 3  # keys are there before they are needed
    assert simulate_ring(steps, 1.5) == 3.5  # both ranks wait for them for 0.5 s
    # Gradients leave at 1 s and at 3 s, and the last arrive at 3.25.
    assert simulate_ring(steps, 0.5, 0.25) == 3.25
    # Keys leave at 0, gradients after them at 1.5 s on the same link, until 2.5; the second rank is ready at 3.5.
    assert simulate_ring(steps, 1.5, 1.0) == 4.5
    assert simulate_ring(np.array([[5.0]]), 9.0, 9.0) == 5  # one rank sends nothing


def test_ring_of_three_waits_for_its_slowest_link() -> None:
    """Three ranks: a rank that computes for 4 s cannot send on before, and the others wait for it in turn."""
    steps = np.array([[4.0, 1, 1], [1, 1, 1], [1, 1, 1]])
    # Second keys: 1 s for all. Third: the links of rank 0 begin at 4 s, that between 1 and 2 at 1 s.
    assert simulate_ring(steps, 1.0) == 6


def test_efficiency_by_hand() -> None:
    """Without sending: the last rank of a contiguous ring has R - 1 / 2 of R^2 / 2 squares, one in zigzag its share."""
    case = replace(causal(64), H=8)
    alone = simulate_attention(machine(), case, WAYS["ring, contiguous"], 1)
    for ranks in (2, 4, 8):
        times = {name: simulate_attention(machine(), case, way, ranks) for name, way in WAYS.items() if name != BASE}
        assert times["ring, contiguous"] / alone == pytest.approx((2 * ranks - 1) / ranks**2)
        assert times["ring, zigzag"] / alone == pytest.approx(1 / ranks)
        assert times["head-parallel"] / alone == pytest.approx(1 / ranks)


def test_exchanges_of_heads_by_hand() -> None:
    """4 exchanges with each other rank, and all bytes, before and after 1 / R of the work."""
    case, way = causal(64), WAYS["head-parallel"]
    slow = simulate_attention(machine(latency=1.0, bandwidth=1e3), case, way, 4)
    assert slow == pytest.approx(64**2 / 2 / 4 + 4 * 3 + bytes_sent(case, way, 4)[0][0] / 1e3)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes; what it writes is described."""
    monkeypatch.setattr(tables, "COUNTS", (1, 2))
    monkeypatch.setattr(tables, "QUICK_SIZES", (32, 512))
    path = tmp_path / "ranks.json"
    done = CliRunner().invoke(app, ["ranks", "--quick", "--length", "64", "--tokens", "4096", "--json", str(path)])
    assert done.exit_code == 0, done.output
    result = json.loads(path.read_text())
    assert {row["way"] for row in result["rows"]} == {*WAYS}
    assert {row["ranks"] for row in result["growth"]} == {*tables.MANY}
    text = DOCUMENT.read_text()
    fields = {*result, *result["rows"][0], *result["machine"], *result["growth"][0], *result["settings"]}
    assert {name for name in fields if f"`{name}`" not in text} == set()


@pytest.mark.slow
def test_a_lost_rank_ends_the_others() -> None:
    with measuring.start_ranks((2,)) as ranks:
        assert min(ranks.ask(2, "send", 10)) > 0
        ranks.workers[1].process.kill()
        with pytest.raises(Failed, match=r"its process ended with code|Connection"):
            ranks.ask(2, "send", 10)


def test_lengths_that_ranks_do_not_share_evenly_are_refused() -> None:
    done = CliRunner().invoke(app, ["ranks", "--tokens", "5000"])
    assert done.exit_code == 2
    assert "--tokens must be a multiple of 2048, got 5000" in done.output
