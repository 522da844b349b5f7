"""`conformance bench`: a function gets a time if it is right, and a reason if it gets none."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.timing.measure import rounds
from conformance.timing.results.result import read
from conformance.timing.subjects.function_subject import function_subject
from conformance.timing.timed_case import BOTH, Case
from tests.support.helpers import command

TORCH = """
import torch


def attention(query, key, value, *, mask=None):
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ value


def wrong_attention(query, key, value, *, mask=None):
    return 1.001 * attention(query, key, value, mask=mask)


def flagged(query, key, value, is_causal=False):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def pair_attention(query, key, value, *, mask=None):
    return attention(query, key, value, mask=mask), None


def layer_norm(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)
"""
NUMPY = """
import numpy as np

from conformance import declare
from reference_numpy import attention as right, attention_vjp


def gradients(query, key, value, cotangent, *, mask):
    moved = (array.swapaxes(1, 2) for array in (query, key, value, cotangent))
    return [gradient.swapaxes(1, 2) for gradient in attention_vjp(*moved, mask=~mask)[:3]]


@declare(["no-window"], layout="BTHD", conventions={"polarity": "masked"}, vjp=gradients, limits={"keys": 40})
def attention(query, key, value, *, mask):
    query, key, value = (array.swapaxes(1, 2) for array in (query, key, value))
    return right(query, key, value, mask=~mask).swapaxes(1, 2)


@declare(["structured"])
def structured_attention(query, key, value, *, mask=None):
    if isinstance(mask, np.ndarray):
        raise TypeError("a description is expected")
    return right(query, key, value, mask=mask)


@declare(conventions={"heads": "tiled"})
def tiled_attention(query, key, value, *, mask=None):
    many = query.shape[1] // key.shape[1]
    key, value = (np.concatenate([array] * many, axis=1) for array in (key, value))
    return right(query, key, value, mask=mask)
"""
JAX = """
import jax

from conformance import declare


@declare(layout="BTHD")
def attention(query, key, value, *, mask=None):
    return jax.nn.dot_product_attention(query, key, value, mask=mask)
"""
CAUSAL = "H=2, T=24, D=8, causal"
QUICK = ("--quick", "--threads", 1)
Result = dict[str, Any]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, with a file for each framework; few rounds."""
    monkeypatch.setattr(rounds, "QUICK", replace(rounds.QUICK, least=2, most=2, again=0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in (("torch", TORCH), ("numpy", NUMPY), ("jax", JAX)):
        Path(f"{name}_kernel.py").write_text(text)


def bench(
    target: str, *words: object, sizes: str = CAUSAL, against: str = "reference_numpy"
) -> tuple[int, str, Result]:
    """The exit code, what was printed, and the subjects of each case by name."""
    options = ("--against", against) if against else ()
    code, text = command("bench", target, *QUICK, "--case", sizes, *options, "--json", "result.json", *words)
    cases = read(Path("result.json"))["cases"] if Path("result.json").exists() else []
    return (
        code,
        " ".join(text.split()),
        {case["name"].removeprefix(sizes): {one["name"]: one for one in case["subjects"]} for case in cases},
    )


def statuses(found: Result, target: str) -> dict[str, str]:
    return {name: subjects[target]["status"] for name, subjects in found.items()}


BOTH_WAYS = {"": "measured", ", forward + backward": "measured"}


def test_a_right_function_gets_a_time_beside_the_usual_subjects(inside: None, files: None) -> None:
    pytest.importorskip("torch")
    target = "torch_kernel.py:attention"
    code, text, found = bench(target, against="")
    assert (code, statuses(found, target)) == (0, BOTH_WAYS)
    assert [*found[""]] == ["torch_impl, auto", "torch SDPA", target]
    assert (found[""][target]["form"], found[""][target]["yours"]) == ("boolean array", True)
    assert f"{target}: arrays of torch; --arrays names others" in text
    settings = read(Path("result.json"))["settings"]
    assert (settings["with"], settings["sizes"], settings["only"]) == ([target], [CAUSAL], [])


def test_a_wrong_function_gets_none(inside: None, files: None) -> None:
    pytest.importorskip("torch")
    target = "torch_kernel.py:wrong_attention"
    code, text, found = bench(target)
    assert (code, {*statuses(found, target).values()}) == (1, {"failed"})
    assert found[""][target]["seconds"] is None
    assert f"FAILED {target}: before the timing: output[" in text
    code, text, _ = bench("torch_kernel.py:pair_attention")
    assert code == 1
    assert "FAILED torch_kernel.py:pair_attention: returned a tuple of 2, expected torch.Tensor" in text


def test_two_functions_are_compared(inside: None, files: None) -> None:
    pytest.importorskip("torch")
    target, other = "torch_kernel.py:attention", "numpy_kernel.py:tiled_attention"
    code, _, found = bench(target, against=other)
    assert (code, [*found[""]]) == (0, [other, target])
    assert bench(target, against=target)[:2] == (2, f"two subjects have the name '{target}'")


def test_a_causal_flag_stands_for_the_mask(inside: None, files: None) -> None:
    pytest.importorskip("torch")
    target, words = "torch_kernel.py:flagged", ("--operation", "attention", "--case", "H=2, T=24, D=8, lengths")
    code, text, found = bench(target, *words)
    assert (code, statuses(found, target), found[""][target]["form"]) == (0, BOTH_WAYS, "is_causal")
    reason = "it does not support masks by the number of keys of each batch element"
    assert f"left out H=2, T=24, D=8, lengths: {reason}" in text


def test_a_function_of_numpy_and_what_it_declares(inside: None, files: None) -> None:
    """Layout, polarity and gradients by hand; cases beyond the declaration are left out."""
    target = "numpy_kernel.py:attention"
    code, text, found = bench(target, "--case", "H=2, T=41, D=8, causal", "--case", "H=2, T=8, D=8, window=3")
    assert (code, statuses(found, target)) == (0, BOTH_WAYS)
    assert "left out H=2, T=41, D=8, causal: it does not support keys 41" in text
    assert "left out H=2, T=8, D=8, window=3: it does not support sliding-window masks" in text
    code, text, _ = bench(target, sizes="H=2, T=8, D=8, dense")
    assert (code, text.endswith(f"no case is left for {target}")) == (2, True)
    assert "left out H=2, T=8, D=8, dense: it does not support calls without a mask" in text


def test_query_heads_that_are_tiled(inside: None, files: None) -> None:
    target = "numpy_kernel.py:tiled_attention"
    code, text, found = bench(target, sizes="B=2, H=6, G=2, T=24, D=8, lengths")
    assert (code, statuses(found, target)) == (0, {"": "measured"})
    assert "forward + backward: it does not support gradients" in text


def test_a_function_that_takes_descriptions(inside: None, files: None) -> None:
    target = "numpy_kernel.py:structured_attention"
    for sizes in (CAUSAL, "B=2, T=24, D=8, lengths"):
        code, _, found = bench(target, sizes=sizes)
        assert (code, found[""][target]["form"], statuses(found, target)) == (0, "description", {"": "measured"})


@pytest.mark.slow
def test_a_function_of_jax(inside: None, files: None) -> None:
    pytest.importorskip("jax")
    target = "jax_kernel.py:attention"
    code, _, found = bench(target, against="")
    assert (code, statuses(found, target)) == (0, BOTH_WAYS)
    assert [*found[""]] == ["jax_impl, auto", "jax.nn.dot_product_attention", target]


def test_a_layer_norm(inside: None, files: None) -> None:
    pytest.importorskip("torch")
    target = "torch_kernel.py:layer_norm"
    code, _, found = bench(target, sizes="layer norm, B=2, T=8, D=16", against="")
    assert (code, statuses(found, target)) == (0, BOTH_WAYS)
    assert [*found[""]] == ["torch_impl, layer norm", "torch F.layer_norm", target]


def test_usual_cases_are_timed_unless_others_are_named(files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[list[str]] = []

    def note(cases: list[Case], *_: object) -> Result:
        timed.append([case.name for case in cases])
        return {"cases": [], "ceilings": [], "finished": True}

    monkeypatch.setattr("conformance.timing.terminal.time_cases", note)
    assert command("bench", "numpy_kernel.py:tiled_attention", "--quick")[0] == 0
    assert command("bench", "reference_numpy:layer_norm")[0] == 0
    assert timed == [
        ["T=256, causal", "B=4, T=256, lengths"],
        ["layer norm, B=2, T=256, D=768", "layer norm, B=8, T=512, D=1024"],
    ]


def test_functions_and_subjects_in_processes_of_their_own(files: None) -> None:
    """Each loads its file anew: nothing that is defined there has to be found by a name."""
    Path("subject.py").write_text(
        "from conformance.timing.subjects.numpy_subjects import naive\n"
        "from conformance.timing.subjects.timed_subject import Subject\n"
        "def make(case, device): return naive(case, device)\n"
        "TAKES = lambda case: 'it gives no gradients' if case.backward else ''\n"
        "MINE = Subject('mine', 'attention', 'numpy', ('numpy',), make, takes=TAKES, scores=(2, 2))\n"
    )
    assert bench("subject.py:MINE", "--arrays", "torch")[:2] == (
        2, "subject.py:MINE is for attention and arrays of numpy, as it says itself",
    )  # fmt: skip
    code, _, found = bench("numpy_kernel.py:tiled_attention", "--against", "subject.py:MINE")
    assert (code, [(name, one["status"]) for name, one in found[""].items()]) == (
        0,
        [(name, "measured") for name in ("reference_numpy", "mine", "numpy_kernel.py:tiled_attention")],
    )


REFUSED = {
    "nowhere.py:attention": "nowhere.py cannot be imported: FileNotFoundError: no file nowhere.py",
    "torch_kernel.py": "target must be package.module:callable or path/to/file.py:callable, got 'torch_kernel.py'",
    "numpy_kernel.py:gradients": "numpy_kernel.py:gradients: only attention and layer_norm are timed, and its name",
    "numpy_kernel.py:attention --arrays tpu": "--arrays: got 'tpu', expected one of numpy, torch, jax",
    "numpy_kernel.py:attention --operation rms_norm": "--operation: got 'rms_norm', expected one of attention, layer",
    "numpy_kernel.py:attention --device tpu": "--device must be one of cpu, cuda, got 'tpu'",
    "numpy_kernel.py:attention --case D": "--case 'D': 'D' is unknown; expected sizes",
    "reference_numpy:layer_norm --against SDPA": "no subject for layer_norm has 'SDPA' in its name: torch_impl, layer",
    "numpy_kernel.py:attention --against nothing": "no subject for attention has 'nothing' in its name: torch_impl",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused_in_a_line(files: None, words: str) -> None:
    code, text = command("bench", *words.split())
    assert (code, text.startswith(REFUSED[words])) == (2, True), text


def test_only_the_backward_pass_needs_gradients() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return query

    subject = function_subject("mine", attention, "attention", "numpy", "cpu")
    forward, backward = Case("forward"), Case("backward", direction=BOTH)
    assert (subject.hindrance(forward, "cpu"), subject.hindrance(backward, "cpu")) == (
        "",
        "it does not support gradients",
    )
    assert subject.hindrance(Case("norm", "layer_norm"), "cpu") == "it is for attention"
