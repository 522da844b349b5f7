"""`conformance port`: the probe is what such a model meets in use; a fault shows step by step and from end to end."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from conformance.models.probing import probe
from specification import Causal, KeyPadding
from specification.dialects import read
from specification.masks import And
from tests.helpers import command
from tests.test_dialects import SIZES, SOURCES, filled, state

SIZE = SIZES[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(name: str) -> tuple[str, ...]:
    """A checkpoint in a file, and the words of a command for it."""
    source = SOURCES[name]
    write(state(filled(source.module(SIZE))))
    given = [f"--set={key}={value}" for key, value in source.hyperparameters(SIZE).items()]
    return ("model.safetensors", "--dialect", source.dialect, *given)


def write(entries: dict[str, np.ndarray]) -> None:
    save_file({name: np.ascontiguousarray(array) for name, array in entries.items()}, "model.safetensors")


def of_torch(module: torch.nn.Module) -> tuple[Any, Any]:
    return read("pytorch", state(filled(module)), num_heads=4)


def ratios(output: str, dtype: str) -> dict[str, float]:
    """What is told of the whole in that dtype, by package."""
    (line,) = (line for line in output.splitlines() if f"end to end, {dtype}, each model as it is called" in line)
    return {name: float(ratio) for name, ratio in re.findall(r"(\w+_\w+) ([-\w.+]+)[,;]", line)}


# --- what it is tried with --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["notebook-scratch", "prenorm-blog", "dawn"])
def test_tokens_are_padded_to_differing_lengths(name: str) -> None:
    source = SOURCES[name]
    parameters, configuration = read(source.dialect, state(filled(source.module(SIZE))), **source.hyperparameters(SIZE))
    inputs, options = probe(parameters, configuration)
    assert options == {}
    for tokens in inputs:
        lengths = (tokens != 0).sum(axis=1)
        assert len(set(lengths)) == 3
        assert lengths.max() == tokens.shape[1]
        assert lengths.min() > 0
        assert all((row[:length] != 0).all() for row, length in zip(tokens, lengths, strict=True))


def test_embeddings_are_masked() -> None:
    transformer = of_torch(torch.nn.Transformer(16, 4, 1, 1, 24, batch_first=True))
    _, masks = probe(*transformer)
    assert isinstance(masks["source_mask"], KeyPadding)
    assert isinstance(masks["target_mask"], And)
    assert isinstance(masks["target_mask"].left, Causal)
    assert masks["memory_mask"] is masks["source_mask"]
    assert len(set(masks["source_mask"].keep.sum(axis=1))) == 3
    _, masks = probe(*of_torch(torch.nn.TransformerDecoderLayer(16, 4, 24)))
    assert masks.keys() == {"mask", "memory_mask"}
    assert isinstance(masks["mask"].left, Causal)
    _, masks = probe(*of_torch(torch.nn.TransformerEncoderLayer(16, 4, 24)))
    assert masks["key_padding"].sum(axis=1).tolist() == [16, 10, 2]
    (query, key, value), masks = probe(*of_torch(torch.nn.MultiheadAttention(16, 4, kdim=10, vdim=12)))
    assert (query.shape[-1], key.shape[-1], value.shape[-1]) == (16, 10, 12)
    assert not masks["mask"].keep.all()


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dawn", "transformer101"])
def test_the_whole_is_told_too(name: str) -> None:
    code, output = command("port", *saved(name))
    assert code == 0, output
    assert "every step keeps its bound in reference_numpy, torch_impl, jax_impl" in output
    for dtype in ("float32", "float64"):
        found = ratios(output, dtype)
        assert list(found) == ["reference_numpy", "torch_impl", "jax_impl"]
        assert all(0 <= ratio <= 1 for ratio in found.values())
    assert output.count("all keep it") == 2


def test_the_masks_are_told() -> None:
    write(state(filled(torch.nn.Transformer(16, 4, 1, 1, 24, batch_first=True))))
    code, output = command("port", "model.safetensors", "--dialect", "pytorch", "--set", "num_heads=4")
    assert code == 0, output
    assert "source_mask of [16, 10, 2] real keys, target_mask causal and of [13, 8, 1] real keys" in output


@pytest.mark.parametrize("package", ["torch_impl", "jax_impl"])
def test_a_fault_in_a_step_shows_in_both(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding is forgotten: only a padded probe shows it."""
    words = saved("dawn")
    models = importlib.import_module(f"{package}.transformer")
    monkeypatch.setattr(models, "padding_mask", lambda tokens, padding: None)
    code, output = command("port", *words)
    assert code == 1
    assert f"the first error beyond its bound: {package} in encoder.blocks.0.attention" in output
    assert output.count(f"beyond it: {package}") == 2
    assert ratios(output, "float32")[package] > 1


def test_a_fault_in_loading_shows_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is wrong, but the parameters with which the model is made are."""
    words = saved("transformer101")
    models = importlib.import_module("torch_impl.models")
    right = models.as_tensor
    monkeypatch.setattr(models, "as_tensor", lambda array: 1.001 * right(array))
    code, output = command("port", *words)
    assert code == 1
    assert "every step keeps its bound" in output
    assert output.count("beyond it: torch_impl") == 2


def test_what_cannot_be_judged_is_told_in_one_line() -> None:
    from safetensors.torch import save_file as torch_save

    torch_save({"weight": torch.ones(2).to(torch.float8_e4m3fn)}, "narrow.safetensors")
    for words, message in (
        (("narrow.safetensors", "--dialect", "dawn", "--set", "num_heads=4"), "cannot be read: weight (F8_E4M3)"),
        ((*saved("dawn"), "--set", "num_heads=2"), "--set gives num_heads twice"),
        ((*saved("transformer101"), "--set", "num_heads=2"), "transformer101 takes no hyperparameters, got num_heads"),
        ((*saved("dawn")[:3], "--set", "num_heads=nan"), "num_heads must be an integer of at least 1, got nan"),
        ((".", "--dialect", "dawn", "--set", "num_heads=4"), "cannot be read as a safetensors file"),
        (("nowhere.safetensors", "--dialect", "transformer101"), "nowhere.safetensors is not there"),
    ):
        code, output = command("port", *words)
        assert code == 2
        assert message in output
        assert len(output.splitlines()) == 1
