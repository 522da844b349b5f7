"""Checkpoints that do not fit, files that cannot be read, and inputs past a model's sizes: told, never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import reference_numpy
from specification import KeyPadding
from specification.checkpoints import read_model, read_safetensors
from specification.dialects import DIALECTS, read
from tests.helpers import Implementation
from tests.test_dialects import SIZES, SOURCES, filled, state

WHOLE = {"notebook-scratch", "imdb-classifier, max", "transformer101", "prenorm-blog", "dawn"}


def checkpoint(name: str) -> dict[str, np.ndarray]:
    return state(filled(SOURCES[name].module(SIZES[0])))


def given(name: str) -> dict[str, Any]:
    return SOURCES[name].hyperparameters(SIZES[0])


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_all_that_is_wrong_is_told_at_once(name: str) -> None:
    entries = checkpoint(name)
    kept = [entry for entry in entries if not entry.endswith(".pe")]
    gone, misshaped = kept[0], kept[-1]
    entries[misshaped] = entries[misshaped][..., None]
    entries["something.else"] = entries.pop(gone)
    with pytest.raises(ValueError, match="the checkpoint does not fit") as caught:
        read(SOURCES[name].dialect, entries, **given(name))
    message = str(caught.value)
    assert f"{gone} is missing" in message
    assert f"{misshaped} must have shape" in message
    assert "something.else is not known" in message


def test_tables_of_positions_are_ignored() -> None:
    entries = checkpoint("dawn")
    assert "src_embed.pe" in entries
    entries["src_embed.pe"] = np.full((3, 3), np.nan, "float32")
    assert read("dawn", entries, **given("dawn"))[1].positions == "sinusoidal"


@pytest.mark.parametrize("name", sorted(WHOLE - {"transformer101"}))
def test_wrong_number_of_heads(name: str) -> None:
    with pytest.raises(ValueError, match="5 heads cannot share a width of 16 equally"):
        read(SOURCES[name].dialect, checkpoint(name), **(given(name) | {"num_heads": 5}))


def test_unknown_dialects_and_hyperparameters() -> None:
    with pytest.raises(ValueError, match="dialect must be one of 'bert', 'dawn'"):
        read("annotated", {})
    for dialect in DIALECTS:
        with pytest.raises(TypeError, match="unheard_of"):
            read(dialect, {}, unheard_of=1)
    with pytest.raises(ValueError, match="pooling must be one of"):
        read("imdb-classifier", checkpoint("imdb-classifier, max"), num_heads=4, pool="sum")


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_narrow_entries_are_widened_and_said_so(narrow: str, implementation: Implementation) -> None:
    entries = {name: array.astype(narrow) for name, array in checkpoint("transformer101").items()}
    with pytest.warns(UserWarning, match=f"{narrow} entries of the checkpoint are widened to float32"):
        model = implementation.load("transformer101", entries)
    x = implementation.convert(np.ones((1, 3, 16), "float32"))
    assert "float32" in str(model(x).dtype)


def test_mixed_and_integer_entries() -> None:
    entries = checkpoint("transformer101")
    names = list(entries)
    entries[names[0]] = entries[names[0]].astype("float64")
    entries[names[1]] = entries[names[1]].astype("int32")
    with pytest.raises(ValueError, match="mix float32 and float64") as caught:
        read("transformer101", entries)
    assert f"{names[1]} must be floating, got int32" in str(caught.value)


def test_arrays_of_torch_are_taken_too() -> None:
    module = filled(SOURCES["transformer101"].module(SIZES[0]))
    parameters, _ = read("transformer101", dict(module.named_parameters()))
    np.testing.assert_array_equal(parameters.output.bias, module.output_linear.bias.detach().numpy())
    wide = {name: tensor.to(torch.bfloat16) for name, tensor in module.named_parameters()}
    assert read("transformer101", wide)[0].output.bias.dtype == np.float32


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_state_dict(tmp_path: Path) -> None:
    entries = checkpoint("dawn")
    save_file({name: np.ascontiguousarray(array) for name, array in entries.items()}, tmp_path / "dawn.safetensors")
    from_file, configuration = read("dawn", tmp_path / "dawn.safetensors", num_heads=4)
    from_memory, _ = read("dawn", entries, num_heads=4)
    np.testing.assert_array_equal(from_file.output.weight, from_memory.output.weight)
    assert configuration.num_heads == 4


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_files_that_are_cut_off(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file({"weight": np.ones((30, 30), "float32")}, path)
    raw = path.read_bytes()
    path.write_bytes(raw[:cut])
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        read_safetensors(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "text.safetensors"
    path.write_text("a checkpoint, they said")
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        read("dawn", path, num_heads=4)
    with pytest.raises(FileNotFoundError):
        read("dawn", tmp_path / "nowhere.safetensors", num_heads=4)
    save_file({"weight": np.ones(3, "float32")}, path)
    with pytest.raises(ValueError, match="was not written by save"):
        read_model(path)


def test_a_file_in_bfloat16(tmp_path: Path) -> None:
    entries = {name: np.ascontiguousarray(a.astype(ml_dtypes.bfloat16)) for name, a in checkpoint("dawn").items()}
    save_file(entries, tmp_path / "narrow.safetensors")
    with pytest.warns(UserWarning, match="bfloat16 entries"):
        parameters, _ = read("dawn", tmp_path / "narrow.safetensors", num_heads=4)
    expected = entries["fc.bias"].astype("float32")
    np.testing.assert_array_equal(parameters.output.bias, expected)


# --- what a model is called with --------------------------------------------------------------------------------------

IDS = np.array([[1, 2, 3]])


def tutorial_model(implementation: Implementation, name: str) -> Any:
    return implementation.load(SOURCES[name].dialect, checkpoint(name), **given(name))


def called(implementation: Implementation, name: str, *inputs: np.ndarray) -> np.ndarray:
    model = tutorial_model(implementation, name)
    return implementation.subject.framework.numpy(model(*implementation.convert(inputs)))


@pytest.mark.parametrize("ids", [[[1, 11]], [[-1, 2]]])
def test_tokens_outside_the_vocabulary(implementation: Implementation, ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 11\)"):
        called(implementation, "notebook-scratch", np.array(ids), IDS)


def test_sequences_past_the_position_table(implementation: Implementation) -> None:
    with pytest.raises(ValueError, match="21"):
        called(implementation, "notebook-scratch", np.ones((1, 21), int), IDS)


def test_tokens_of_another_rank_or_dtype(implementation: Implementation) -> None:
    with pytest.raises(ValueError, match=r"tokens must have shape \[batch, positions\]"):
        called(implementation, "imdb-classifier, max", IDS[0])
    with pytest.raises(TypeError, match="tokens must have an integer dtype"):
        called(implementation, "imdb-classifier, max", IDS.astype("float32"))


@pytest.mark.parametrize("name", ["notebook-scratch", "prenorm-blog", "dawn"])
def test_sequences_of_padding_alone(implementation: Implementation, name: str) -> None:
    """Every row is empty: the mean of all values, as the tutorials' finite fills have it, and no NaN."""
    padding = np.zeros((1, 3), int)
    assert np.isfinite(called(implementation, name, padding, padding)).all()


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_nothing_to_look_at(implementation: Implementation, batch: int, length: int) -> None:
    """An empty batch gives an empty result; a sequence without a token is pooled to zeros."""
    ids = np.zeros((batch, length), int)
    assert called(implementation, "notebook-scratch", ids, ids).shape == (batch, length, 13)
    pooled = called(implementation, "imdb-classifier, max", ids)
    assert pooled.shape == (batch, 5)
    assert np.isfinite(pooled).all()


def test_masks_that_do_not_fit(implementation: Implementation) -> None:
    x = np.ones((2, 3, 16), "float32")
    module = filled(torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True))
    model = implementation.load("pytorch", state(module), num_heads=4)
    wrong = KeyPadding(implementation.convert(np.ones((2, 4), bool)))
    with pytest.raises(ValueError, match=r"keep must have shape \[2, 3\]"):
        model(implementation.convert(x), mask=wrong)
    with pytest.raises(TypeError, match="keep must be boolean"):
        model(implementation.convert(x), implementation.convert(np.ones((2, 3), "float32")))


def test_memory_where_none_is_wanted() -> None:
    model = reference_numpy.load("pytorch", state(filled(torch.nn.TransformerDecoderLayer(16, 4, 24))), num_heads=4)
    with pytest.raises(ValueError, match="takes the encoder's output as memory"):
        model(np.ones((1, 3, 16), "float32"))
