"""`conformance trace`: which attention is drawn, which step disagrees, and what cannot be used."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from tests.helpers import command
from tests.test_dialects import filled, state
from tests.test_port import saved, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dawn() -> tuple[str, ...]:
    return ("--checkpoint", *saved("dawn"))


def test_the_attention_is_chosen_by_its_name(folder: Path) -> None:
    step = "decoder.blocks.0.cross_attention"
    code, output = command("trace", "5,7,2/3,1", *dawn(), "--layer", step, "--picture", "weights.svg")
    assert code == 0, output
    assert f"{step} drawn in weights.svg" in output
    assert output.splitlines()[:2] == ["5 7 2", "3 1"]
    assert "every step keeps its bound in reference_numpy, torch_impl, jax_impl" in output
    assert "<svg" in (folder / "weights.svg").read_text()


def test_an_unknown_attention_is_answered_with_all_names() -> None:
    code, output = command("trace", "5,7,2", *dawn(), "--layer", "blocks.9.attention")
    assert code == 2
    names = "encoder.blocks.0.attention, decoder.blocks.0.self_attention, decoder.blocks.0.cross_attention"
    assert f"no attention is called blocks.9.attention; there are {names}" in output


def test_the_step_that_disagrees_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    activations = importlib.import_module("torch_impl.feed_forward").ACTIVATIONS
    monkeypatch.setitem(activations, "relu", lambda x: 1.001 * x.relu())
    code, output = command("trace", "5,7,2", *dawn())
    assert code == 1
    assert "the first error beyond its bound: torch_impl in encoder.blocks.0.feed_forward" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("5,7", "--picture", "x.unknown"), "x.unknown: a picture ends in one of .png, .svg, .pdf"),
        (("5,7", "--picture", "picture"), "picture: a picture ends in one of"),
        (("5,7", "--picture", "nowhere/x.png"), "nowhere/x.png: there is no such folder"),
        (("5,-7",), "ids must lie in [0, 11)"),
        (("5,7.0",), "token ids are numbers with commas between them"),
        (("",), "token ids are numbers with commas between them"),
        (("5,99999999999999999999",), "token ids are numbers with commas between them"),
        (("5/7/2",), "this model takes a source and a target"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(words: tuple[str, ...], message: str) -> None:
    code, output = command("trace", *words, *dawn())
    assert code == 2
    assert message in output
    assert len(output.splitlines()) == 1


def test_models_that_take_embeddings() -> None:
    write(state(filled(torch.nn.TransformerEncoderLayer(16, 4, 24))))
    words = ("--checkpoint", "model.safetensors", "--dialect", "pytorch", "--set", "num_heads=4")
    code, output = command("trace", "5,7", *words)
    assert code == 2
    assert "this model takes embeddings" in output


def test_a_model_of_one_sequence_takes_no_two() -> None:
    code, output = command("trace", "5/7", "--checkpoint", *saved("imdb-classifier, max"))
    assert code == 2
    assert "this model takes one sequence" in output
