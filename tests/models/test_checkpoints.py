"""Checkpoints that do not fit, files that cannot be read, and inputs past a model's sizes: told, never guessed."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save

import reference_numpy
from specification import Configuration, Encoder, KeyPadding
from specification.checkpoints import read_model, read_safetensors, write_model, write_safetensors
from specification.configuration import AttentionLayer
from specification.dialects import DIALECTS, read
from specification.loading.families import UNCOVERED, covered, of_model_type, uncovered
from specification.loading.record import Dialect
from specification.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
)
from tests.models.test_dialects import filled, state
from tests.models.test_folders import entries_of
from tests.support.helpers import OPERATIONS, Implementation, error_of
from tests.support.pretrained import bert_entries
from tests.support.small_models import Maker, fitted
from tests.support.tutorials import SIZES, SOURCES

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


def mixed(*dtypes: str) -> dict[str, np.ndarray]:
    """A checkpoint whose first entries have these dtypes in turn, and all others the last."""
    entries = checkpoint("transformer101")
    in_turn = zip(entries, chain(dtypes, repeat(dtypes[-1])), strict=False)
    return {name: entries[name].astype(dtype) for name, dtype in in_turn}


@pytest.mark.parametrize(
    ("dtypes", "told"),
    [
        (("float16",), "float16 entries of the checkpoint "),
        (("bfloat16",), "bfloat16 entries of the checkpoint "),
        (("float16", "float32"), ""),
        (("bfloat16", "float16", "float32"), ""),
        (("float16", "bfloat16", "float32"), ""),
    ],
)
def test_narrow_entries_are_widened_and_said_so(
    dtypes: tuple[str, ...], told: str, implementation: Implementation
) -> None:
    with pytest.warns(UserWarning, match=f"{told}are widened to float32"):
        model = implementation.load("transformer101", mixed(*dtypes))
    x = implementation.convert(np.ones((1, 3, 16), "float32"))
    assert "float32" in str(model(x).dtype)


def test_mixed_and_integer_entries() -> None:
    entries = mixed("float64", "int32", "float32")
    with pytest.raises(ValueError, match="mix float32 and float64") as caught:
        read("transformer101", entries)
    assert f"{list(entries)[1]} must be floating, got int32" in str(caught.value)


@pytest.mark.parametrize(
    ("dtypes", "told"),
    [
        (("float16", "float64"), "mix float16 and float64"),
        (("bfloat16", "float64"), "mix bfloat16 and float64"),
        (("float16", "bfloat16", "float64"), "mix float16 and bfloat16 and float64"),
        (("float32", "float16", "float64"), "mix float16 and float32 and float64"),
    ],
)
def test_narrow_entries_are_not_widened_to_float32_beside_float64(
    dtypes: tuple[str, ...], told: str, implementation: Implementation
) -> None:
    """It would be refused where the model is called."""
    with pytest.raises(ValueError, match=f"{told}$"):
        implementation.load("transformer101", mixed(*dtypes))


def test_what_is_ignored_may_have_another_dtype() -> None:
    """A table of positions that stayed in float32 in a model that was widened."""
    entries = {name: array.astype("float64") for name, array in checkpoint("dawn").items()}
    assert read("dawn", entries | {"src_embed.pe": entries["src_embed.pe"].astype("float32")}, **given("dawn"))
    with pytest.raises(ValueError, match="mix float32 and float64"):
        read("dawn", entries | {"fc.bias": entries["fc.bias"].astype("float32")}, **given("dawn"))


def test_arrays_of_torch_are_taken_too() -> None:
    module = filled(SOURCES["transformer101"].module(SIZES[0]))
    parameters, _ = read("transformer101", dict(module.named_parameters()))
    np.testing.assert_array_equal(parameters.output.bias, module.output_linear.bias.detach().numpy())
    wide = {name: tensor.to(torch.bfloat16) for name, tensor in module.named_parameters()}
    with pytest.warns(UserWarning, match="bfloat16 entries of the checkpoint are widened"):
        assert read("transformer101", wide)[0].output.bias.dtype == np.float32


# --- what else is malformed -------------------------------------------------------------------------------------------


def wrong_kinds(array: np.ndarray) -> dict[str, Any]:
    return {
        "a scalar": np.array(1, "float32"),
        "one axis more": array[..., None],
        "no elements": array[:0],
        "whole numbers": array.astype("int64"),
        "truth values": array > 0,
        "complex numbers": array.astype("complex64"),
        "objects": array.astype(object),
        "text": array.astype(str),
        "float8": array.astype(ml_dtypes.float8_e4m3fn),
        "None": None,
        "a list": array.tolist(),
        "a sparse tensor": torch.from_numpy(np.array(array)).to_sparse(),
        "a tensor without memory": torch.empty(array.shape, device="meta"),
    }


def torch_checkpoint() -> dict[str, np.ndarray]:
    return state(filled(torch.nn.Transformer(16, 4, 1, 1, 24, batch_first=True)))


def loaded(name: str) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """A dialect, a checkpoint of it, and its hyperparameters: of PyTorch, or of a tutorial."""
    if name == "pytorch":
        return name, torch_checkpoint(), {"num_heads": 4}
    return SOURCES[name].dialect, checkpoint(name), given(name)


@pytest.mark.parametrize("name", ["pytorch", *sorted(SOURCES)])
@pytest.mark.slow_where(unless="transformer101")
def test_an_entry_of_any_wrong_kind_is_one_of_the_problems(name: str) -> None:
    """Every entry in turn, and every kind of mistake in turn."""
    dialect, entries, hyperparameters = loaded(name)
    for entry in entries:
        if entry.endswith(".pe"):
            continue
        for wrong in wrong_kinds(entries[entry]).values():
            with pytest.raises(ValueError, match="the checkpoint does not fit") as caught:
                read(dialect, entries | {entry: wrong}, **hyperparameters)
            assert entry in str(caught.value)
            assert "\n" not in str(caught.value)


def test_a_scalar_is_told_with_all_else() -> None:
    entries = torch_checkpoint()
    entries["encoder.layers.0.self_attn.out_proj.weight"] = np.array(1, "float32")
    del entries["encoder.norm.bias"], entries["decoder.layers.0.norm3.weight"]
    with pytest.raises(ValueError, match="4 problems") as caught:
        read("pytorch", entries | {"wrong.weight": np.ones(3, "float32")}, num_heads=4)
    for told in (
        "encoder.layers.0.self_attn.out_proj.weight must have shape [16, 16], got []",
        "encoder.norm.bias is missing",
        "decoder.layers.0.norm3.weight is missing",
        "wrong.weight is not known",
    ):
        assert told in str(caught.value)


def test_layers_that_are_skipped() -> None:
    """A number beyond all entries is no layer, and is not counted up to."""
    entries = torch_checkpoint()
    for number in ("999999", "9" * 5000):
        with pytest.raises(ValueError, match=r"the checkpoint does not fit, 1 problem: .* is not known"):
            read("pytorch", entries | {f"encoder.layers.{number}.norm1.weight": np.ones(16, "float32")}, num_heads=4)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_no_state_dict(dialect: str, implementation: Implementation) -> None:
    hyperparameters = DIALECTS[dialect].example.hyperparameters
    with pytest.raises(TypeError, match=r"got the module Linear: pass module.state_dict\(\)"):
        implementation.load(dialect, torch.nn.Linear(2, 2), **hyperparameters)
    for wrong, told in ((None, "NoneType"), ([1, 2], "list"), (np.ones(3), "ndarray")):
        with pytest.raises(TypeError, match=f"state_dict must be arrays by name or the path .*, got {told}"):
            implementation.load(dialect, wrong, **hyperparameters)
    with pytest.raises(TypeError, match="names in state_dict must be strings, got 3"):
        implementation.load(dialect, {3: np.ones(2)}, **hyperparameters)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("dawn", {"num_heads": 4.0}, "num_heads must be an integer of at least 1, got 4.0"),
        ("dawn", {"num_heads": "4"}, "num_heads must be an integer"),
        ("dawn", {"num_heads": True}, "num_heads must be an integer"),
        ("dawn", {"num_heads": np.array([4, 4])}, "num_heads must be an integer"),
        ("dawn", {"num_heads": 0}, "num_heads must be an integer"),
        ("dawn", {"eps": 1e-5}, "dawn takes num_heads, got eps"),
        ("transformer101", {"num_heads": 4}, "transformer101 takes no hyperparameters, got num_heads"),
        ("prenorm-blog, heads", {"num_heads": 4}, "separate heads takes no num_heads"),
        ("notebook-scratch", {"source_pad": 11}, "source_pad must be the id of a token below 11, got 11"),
        ("notebook-scratch", {"source_pad": -1}, "source_pad must be the id of a token or None, got -1"),
        ("prenorm-blog", {"target_pad": "0"}, "target_pad must be the id of a token or None, got '0'"),
        ("imdb-classifier, max", {"pool": ["max"]}, "pool must be a string"),
        ("imdb-classifier, mean, wide", {"num_heads": 1}, "1 heads are"),
        ("imdb-classifier, mean, wide", {"num_heads": 2}, "2 heads are"),
        ("pytorch", {"norm_first": "yes"}, "norm_first must be True or False, got 'yes'"),
        ("pytorch", {"activation": None}, "activation must be a string, got None"),
        ("pytorch", {"activation": "swish"}, "activation must be one of 'relu'"),
        ("pytorch", {"empty_rows": "none"}, "empty_rows must be one of 'zero', 'mean', 'nan'"),
        ("pytorch", {"empty_rows": 0}, "empty_rows must be a string, got 0"),
        ("pytorch", {"eps": -1.0}, "eps must be finite and at least"),
        ("pytorch", {"eps": float("nan")}, "eps must be finite and at least"),
        ("pytorch", {"eps": "1e-5"}, "eps must be a real number, got '1e-5'"),
    ],
)
def test_hyperparameters_of_wrong_names_and_kinds(name: str, wrong: dict[str, Any], message: str) -> None:
    dialect, entries, hyperparameters = loaded(name)
    with pytest.raises((TypeError, ValueError), match=message):
        read(dialect, entries, **(hyperparameters | wrong))


def test_hyperparameters_that_are_lacking() -> None:
    for dialect, lacking in (
        ("dawn", "num_heads"),
        ("notebook-scratch", "num_heads, source_pad"),
        ("bert", "num_heads"),
    ):
        with pytest.raises(TypeError, match=f"{dialect} takes .*, and needs {lacking}"):
            read(dialect, {})


def test_numbers_of_numpy_as_hyperparameters(tmp_path: Path) -> None:
    model = reference_numpy.load("dawn", checkpoint("dawn"), num_heads=np.int64(4))
    reference_numpy.save(model, tmp_path / "model.safetensors")
    assert reference_numpy.restore(tmp_path / "model.safetensors").configuration == model.configuration


def test_numbers_that_are_not_finite_are_told(implementation: Implementation) -> None:
    """They are read as they are, and come out again."""
    entries = checkpoint("transformer101")
    entries["output_linear.bias"] = np.full_like(entries["output_linear.bias"], np.nan)
    with pytest.warns(UserWarning, match="NaN or infinities are in output_linear.bias"):
        model = implementation.load("transformer101", entries)
    x = implementation.convert(np.ones((1, 3, 16), "float32"))
    assert np.isnan(implementation.subject.framework.numpy(model(x))).all()


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_state_dict(tmp_path: Path) -> None:
    entries = checkpoint("dawn")
    save_file({name: np.ascontiguousarray(array) for name, array in entries.items()}, tmp_path / "dawn.safetensors")
    from_file, configuration = read("dawn", tmp_path / "dawn.safetensors", num_heads=4)
    from_memory, _ = read("dawn", entries, num_heads=4)
    np.testing.assert_array_equal(from_file.output.weight, from_memory.output.weight)
    assert configuration.num_heads == 4


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_file_of_a_dtype_that_numpy_lacks(dtype: str, tmp_path: Path, implementation: Implementation) -> None:
    """All such entries are told at once, by every way to read a file."""
    path = tmp_path / "narrow.safetensors"
    narrow = torch.ones(2, 2).to(getattr(torch, dtype))
    torch_save({"first": narrow, "good": torch.ones(3), "second": narrow.clone()}, path)
    told = f"entries of dtypes that cannot be read: first \\({dtype[:8].upper().replace('LOAT', '')}.*second"
    for load in (lambda: implementation.load("dawn", path, num_heads=4), lambda: implementation.restore(path)):
        with pytest.raises(ValueError, match=told):
            load()


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_files_that_are_cut_off(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file({"weight": np.ones((30, 30), "float32")}, path)
    raw = path.read_bytes()
    path.write_bytes(raw[:cut])
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        read_safetensors(path)


def test_a_folder_is_no_file(tmp_path: Path, implementation: Implementation) -> None:
    for load in (lambda: implementation.load("dawn", tmp_path, num_heads=4), lambda: implementation.restore(tmp_path)):
        with pytest.raises(ValueError, match=r"is a folder, and a safetensors file is needed$"):
            load()


def test_warnings_point_at_the_caller(implementation: Implementation) -> None:
    """Both at the line that loads, through a dialect that hands on to another one too."""
    entries = {name: array.astype("float16") for name, array in checkpoint("prenorm-blog, heads").items()}
    entries["linear.bias"] = np.full_like(entries["linear.bias"], np.nan)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        implementation.load("prenorm-blog", entries)
        read("prenorm-blog", entries)
    told = [(warning.filename, str(warning.message)[:3]) for warning in caught]
    assert told == [(__file__, "NaN"), (__file__, "flo")] * 2


def test_a_last_norm_without_bias_may_be_another_norm() -> None:
    """Beside biases everywhere else; and there is no warning where nothing has one, or the last norm has."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    plain = torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, bias=False)
    unbiased = torch.nn.LayerNorm(16, bias=False)
    for norm in (unbiased, torch.nn.RMSNorm(16)):
        with pytest.warns(UserWarning, match="norm has no bias, .* it is taken for a layer norm$"):
            read("pytorch", state(torch.nn.TransformerEncoder(layer, 1, norm)), num_heads=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read("pytorch", state(torch.nn.TransformerEncoder(layer, 1, torch.nn.LayerNorm(16))), num_heads=4)
        whole = torch.nn.TransformerEncoder(plain, 1, unbiased, enable_nested_tensor=False)
        read("pytorch", state(whole), num_heads=4)
        read("pytorch", state(torch.nn.TransformerEncoder(layer, 1)), num_heads=4)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"positions": "after_padding"}, "positions='after_padding' needs a padding"),
        ({"positions": "learned", "padding": 1}, "positions='learned' takes no padding"),
        ({"padding": 1}, "positions=None takes no padding"),
        ({"positions": "sinusoidal"}, "positions must be 'learned' or 'after_padding', got 'sinusoidal'"),
        ({"positions": "after_padding", "padding": 11}, "padding must be the id of a token below 11, got 11"),
        ({"positions": "after_padding", "padding": -1}, "padding must be the id of a token or None, got -1"),
        ({"positions": "after_padding", "padding": True}, "padding must be the id of a token or None, got True"),
        ({"positions": "after_padding", "padding": 10}, "_embeddings.weight has 11 rows, and positions begin at 11"),
    ],
)
def test_positions_that_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match="the checkpoint does not fit") as caught:
        read("bert", bert_entries(positions=11), num_heads=4, **wrong)
    assert told in str(caught.value)


def test_one_position_after_padding_is_enough(implementation: Implementation, tmp_path: Path) -> None:
    model = implementation.load("bert", bert_entries(), num_heads=4, positions="after_padding", padding=9)
    few = implementation.load("bert", bert_entries(positions=11), num_heads=4, positions="after_padding", padding=9)
    tokens = implementation.convert(np.array([[3], [9]]))
    assert few(tokens).shape == model(tokens).shape == (2, 1, 16)
    implementation.save(few, tmp_path / "few.safetensors")
    implementation.restore(tmp_path / "few.safetensors")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"norm_eps": 0.0}, "norm_eps must be finite and at least 2\\*\\*-126, got 0.0"),
        ({"norm_eps": float("nan")}, "norm_eps must be finite"),
        ({"norm_eps": "1e-5"}, "norm_eps must be a real number, got '1e-5'"),
        ({"norm_eps": True}, "norm_eps must be a real number, got True"),
        ({"positions": "after_padding"}, "positions='after_padding' needs a position_padding"),
        ({"position_padding": 1}, "positions='sinusoidal' takes no position_padding"),
        ({"position_padding": -1, "positions": "after_padding"}, "position_padding must be the id of a token"),
        ({"scale": "width"}, "scale must be one of 'head_width', 'model_width' or a finite number, got 'width'"),
        ({"scale": float("inf")}, "scale must be one of"),
        ({"scale": True}, "scale must be one of"),
        ({"softcap": 0.0}, "softcap must be positive and finite or None, got 0.0"),
        ({"output_softcap": float("inf")}, "output_softcap must be positive and finite or None"),
        ({"scaled_output": 1}, "scaled_output must be True or False, got 1"),
        ({"attention_layers": AttentionLayer()}, "attention_layers must be a tuple of AttentionLayer"),
        ({"attention_layers": (None,)}, "attention_layers must be a tuple of AttentionLayer"),
        ({"relative_furthest": 0}, "relative_furthest must be an integer of at least 1, got 0"),
        ({"patch_size": 2.0, "positions": "none"}, "patch_size must be an integer of at least 1, got 2.0"),
        ({"patch_size": 2}, "images bring positions of their own, and positions='sinusoidal' has no place"),
        ({"window": (2,)}, "window must be a pair of distances of at least 0 or None, got \\(2,\\)"),
        ({"window": [1, 0]}, "window must be a pair"),
        ({"window": (1, -1)}, "window must be a pair"),
        ({"rotary": 10000.0}, "rotary must be a Rotary or None, got 10000.0"),
    ],
)
def test_configurations_that_are_refused(wrong: dict[str, Any], told: str) -> None:
    of_layers = {"window", "rotary"} & {*wrong}
    with pytest.raises((TypeError, ValueError), match=told):
        AttentionLayer(**wrong) if of_layers else Configuration(4, **wrong)


SCALINGS = (
    LinearScaling(factor=2.0),
    DynamicScaling(factor=2.0, original_length=4),
    YarnScaling(factor=4.0, original_length=8, attention_factor=1.5, truncate=False),
    Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=16),
    LongRopeScaling(short_factors=(1.0, 1.5), long_factors=(2.0, 4.0), original_length=4, factor=2.0),
)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: type(scaling).__name__)
def test_nested_configurations_are_restored(scaling: Any, tmp_path: Path) -> None:
    """Equal and hashable, so every tuple is a tuple again; an object of no known kind is refused."""
    layers = (AttentionLayer(window=(2, 0), rotary=Rotary(base=500.0, width=4, scaling=scaling)), AttentionLayer())
    configuration = Configuration(4, positions="none", attention_layers=layers, scale=0.25, softcap=3.0)
    write_model(tmp_path / "model", two_blocks(), configuration)
    _, restored = read_model(tmp_path / "model")
    assert restored == configuration
    assert hash(restored) == hash(configuration)
    arrays, metadata = read_safetensors(tmp_path / "model")
    metadata["configuration"] = metadata["configuration"].replace(type(scaling).__name__, "OtherScaling")
    write_safetensors(tmp_path / "other", arrays, metadata)
    with pytest.raises(ValueError, match="is no whole model: a configuration holds no 'OtherScaling'"):
        read_model(tmp_path / "other")


def two_blocks() -> Encoder:
    """Two blocks whose heads have four columns."""
    return fitted(Maker(dtype="float32").encoder(2), Configuration(4, positions="none"))


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


# --- names of other models --------------------------------------------------------------------------------------------


def test_names_of_another_dialect_are_told() -> None:
    """Dialects that have the same names, as Llama and Gemma, are told together, or read one another's."""
    for theirs in DIALECTS:
        entries = entries_of(theirs)
        alike = covered(DIALECTS.values(), entries)
        assert theirs in alike
        for ours in DIALECTS.keys() - {*alike}:
            with pytest.raises(ValueError, match=f"its names are those of dialect .*{theirs!r}.*; "):
                read(ours, entries, **DIALECTS[ours].example.hyperparameters)
        broken = entries | {"something.else": np.ones(1, "float32")}
        with pytest.raises(ValueError, match=r"does not fit, 1 problem: something.else is not known$"):
            read(theirs, broken, **DIALECTS[theirs].example.hyperparameters)
    assert covered(DIALECTS.values(), entries_of("qwen3")) == ["qwen3"]
    assert covered(DIALECTS.values(), entries_of("gemma")) == ["gemma", "llama"]


KINDS = {
    "ALBERT": "Albert", "BART": "Bart Marian MBart Pegasus Whisper", "BLOOM or Falcon": "Bloom Falcon",
    "CLIP": "CLIP", "DeBERTa": "Deberta DebertaV2", "GPT-J": "GPTJ", "GPT-Neo": "GPTNeo",
    "Gemma 3 with images, or another model of several kinds": "Gemma3", "Mamba": "Mamba",
    "Qwen 2 MoE, Phi 3.5 MoE or another mixture of experts": "Qwen2Moe", "MPNet": "MPNet", "OPT": "OPT",
    "relatives of LLaMA": "Cohere Glm", "relatives of T5": "LongT5", "relatives of ViT": "DeiT", "XLNet": "XLNet",
}  # fmt: skip


def knows_most(record: Dialect, names: Collection[str]) -> bool:
    """Whether a dialect's table has most of the names, whatever the number of the layer."""

    def of_any_layer(name: str) -> str:
        return re.sub(r"\{\w+\}|(?<=\.)\d+(?=\.)", "#", name)

    theirs = {of_any_layer(row.theirs) for variant in record.variants for row in variant.table}
    known = 0
    for given_name in names:
        name = given_name
        for old, new in record.renamed.items():
            name = name.replace(old, new)
        known += any(of_any_layer(name.removeprefix(prefix)) in theirs for prefix in (*record.prefixes, ""))
    return 2 * known > len(names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", " ".join(KINDS.values()).split())
def test_families_that_no_dialect_covers_are_known_by_name(kind: str) -> None:
    """In one line, whatever the dialect; the names are those of Hugging Face's own module."""
    transformers = pytest.importorskip("transformers")
    configuration = getattr(transformers, f"{kind}Config")()
    with torch.device("meta"):
        names = transformers.AutoModel.from_config(configuration).state_dict()
    family = next(family for family, kinds in KINDS.items() if kind in kinds.split())
    for dialect, record in DIALECTS.items():
        if family.startswith("relatives") and knows_most(record, names):
            continue
        with pytest.raises(
            ValueError, match=f"its names are those of {family}.*, which no dialect covers; conformance check"
        ):
            read(dialect, dict.fromkeys(names, np.ones(1, "float32")), **record.example.hyperparameters)


def test_every_family_is_known_by_names_of_its_own() -> None:
    assert {family.split(" (")[0] for family in UNCOVERED} == KINDS.keys() | {"ELECTRA"}
    with pytest.raises(ValueError, match="its names are those of ELECTRA, which"):
        read("bert", {f"electra.{name}": array for name, array in bert_entries().items()}, num_heads=4)
    for dialect in DIALECTS:
        assert (uncovered(entries_of(dialect)) or "relatives").startswith("relatives")


def test_what_can_be_judged_of_every_family_is_an_operation() -> None:
    for family, known in UNCOVERED.items():
        assert set(re.split(", | and ", known.operations)) <= OPERATIONS.keys(), family
        assert all(of_model_type(name) == family for name in known.model_types)
        with pytest.raises(ValueError, match=f"got '{known.model_types[0]}', of {re.escape(family)}, which no dialect"):
            read(known.model_types[0], {})
    covered = {name for one in DIALECTS.values() if one.config is not None for name in one.config.families}
    assert not any(map(of_model_type, covered))


@pytest.mark.parametrize(
    ("names", "family"),
    [
        ("model.layers.0.mlp.gate_proj.weight model.layers.0.self_attn.q_proj.weight model.norm.weight", "relatives"),
        ("shared.weight encoder.block.0.layer.0.SelfAttention.q.weight", "relatives of T5"),
        ("transformer.h.0.attn.attention.q_proj.weight transformer.wte.weight", "GPT-Neo"),
    ],
)
def test_a_family_that_no_dialect_covers_is_told_in_one_line(names: str, family: str) -> None:
    with pytest.raises(ValueError, match=f"its names are those of {family}.*, which no dialect covers") as caught:
        read("gpt2", dict.fromkeys(names.split(), np.ones((2, 2), "float32")), num_heads=2)
    assert len(str(caught.value)) < 250


def test_lists_of_entries_stop_at_five() -> None:
    entries = bert_entries() | {f"head.{i}.weight": np.ones(2, "float32") for i in range(12)}
    with pytest.raises(ValueError, match="12 problems: ") as caught:
        read("bert", entries, num_heads=4)
    assert str(caught.value).count("is not known") == 5
    assert str(caught.value).endswith("; and 7 more")
    few = {name: array for name, array in bert_entries().items() if ".self.query." in name or "embeddings" in name}
    with pytest.raises(ValueError, match="the checkpoint does not fit") as caught:
        read("bert", few, num_heads=4)
    assert str(caught.value).count("is missing") == 5


# --- the config.json beside a checkpoint ------------------------------------------------------------------------------

FILES: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "num_attention_heads": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
             "pad_token_id": 0, "is_decoder": False, "hidden_size": 8},
    "distilbert": {"model_type": "distilbert", "n_heads": 2, "activation": "gelu"},
    "gpt2": {"model_type": "gpt2", "n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
             "scale_attn_weights": True},
}  # fmt: skip


def beside(folder: Path, dialect: str, **told: Any) -> Path:
    """A checkpoint in a file, and a config.json beside it."""
    save_file(entries_of(dialect), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(FILES[dialect] | told))
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    ("dialect", "given", "told", "message"),
    [
        ("bert", {"num_heads": 4}, {}, "num_attention_heads is 2, and num_heads is 4$"),
        ("bert", {"eps": 1e-5}, {}, "layer_norm_eps is 1e-12, and eps is 1e-05$"),
        ("bert", {}, {"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05, and eps is 1e-12$"),
        ("bert", {}, {"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new', which is 'gelu_tanh' here, and .*'gelu'$"),
        ("bert", {}, {"hidden_act": "silu"}, "hidden_act is 'silu', and activation is 'gelu'$"),
        ("bert", {}, {"hidden_act": "gelu_fast"}, "'gelu_fast', which is not supported; .* are gelu, .*swish$"),
        ("bert", {}, {"hidden_act": None}, "hidden_act is None, which is not supported; .* are gelu, .*swish$"),
        ("bert", {}, {"layer_norm_eps": None}, "layer_norm_eps is None, and eps is 1e-12$"),
        ("bert", {}, {"is_folded": 3}, "is_folded is 3, which is not known and might change numbers$"),
        ("bert", {}, {"model_type": "yoso"}, "model_type is 'yoso', and this dialect reads 'bert', 'camembert', "),
        ("bert", {}, {"model_type": "granite"}, r"model_type is 'granite', of relatives of LLaMA .*, which no dialect"),
        ("bert", {}, {"model_type": "mistral"}, "model_type is 'mistral', .*; dialect 'llama' reads it$"),
        ("gpt2", {}, {"model_type": "gpt_neo"}, "'gpt_neo', of GPT-Neo, which no .* judges its attention, "),
        ("bert", {}, {"model_type": "roberta"}, "a roberta has positions='after_padding', and it is read with 'le"),
        ("bert", {"positions": "after_padding", "padding": 0}, {}, "a bert has positions='learned', and it is read "),
        ("bert", {}, {"is_decoder": True}, "is_decoder is True, of which only False is supported$"),
        ("bert", {"num_heads": 4}, {"layer_norm_eps": 1e-5}, "num_heads is 4; layer_norm_eps is 1e-05, and eps"),
        ("distilbert", {"num_heads": 1}, {}, "n_heads is 2, and num_heads is 1$"),
        ("distilbert", {}, {"activation": "relu"}, "activation is 'relu', and activation is 'gelu'$"),
        ("distilbert", {}, {"model_type": "bert"}, "model_type is 'bert', .*'distilbert'; dialect 'bert' reads it$"),
        ("gpt2", {"num_heads": 8}, {}, "n_head is 2, and num_heads is 8$"),
        ("gpt2", {}, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True, of which"),
        ("gpt2", {}, {"scale_attn_weights": False}, "scale_attn_weights is False, of which only True is supported"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(
    dialect: str, given: dict[str, Any], told: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"config.json says otherwise: .*{message}"):
        read(dialect, beside(tmp_path, dialect, **told), **({"num_heads": 2} | given))
    read(dialect, entries_of(dialect), **({"num_heads": 2} | given))  # arrays have no file beside them


@pytest.mark.parametrize("dialect", FILES)
def test_files_that_agree_or_say_nothing(dialect: str, tmp_path: Path, implementation: Implementation) -> None:
    path = beside(tmp_path, dialect)
    implementation.load(dialect, path, num_heads=2)
    for text in ("[]", "{}", json.dumps({"num_attention_heads": 99, "n_head": 99})):
        (tmp_path / "config.json").write_text(text)
        read(dialect, path, num_heads=2)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read as JSON"):
        implementation.load(dialect, path, num_heads=2)


def test_a_file_beside_a_tutorials_checkpoint_is_not_read(tmp_path: Path) -> None:
    save_file(entries_of("dawn"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{")
    read("dawn", tmp_path / "model.safetensors", num_heads=2)


# --- what a model is called with --------------------------------------------------------------------------------------

IDS = np.array([[1, 2, 3]])


def called(implementation: Implementation, name: str, *inputs: np.ndarray) -> np.ndarray:
    model = implementation.load(SOURCES[name].dialect, checkpoint(name), **given(name))
    return implementation.subject.framework.numpy(model(*implementation.convert(inputs)))


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("notebook-scratch", (np.array([[1, 11]]), IDS), "ids must lie in [0, 11)"),
        ("notebook-scratch", (np.array([[-1, 2]]), IDS), "ids must lie in [0, 11)"),
        ("notebook-scratch", (np.ones((1, 21), int), IDS), "21"),
        ("imdb-classifier, max", (IDS[0],), "tokens must have shape [B, T], got [3]"),
        ("imdb-classifier, max", (IDS.astype("float32"),), "tokens must have an integer dtype"),
    ],
    ids=["too large", "negative", "past the positions", "one axis", "floating"],
)
def test_tokens_that_are_refused(
    name: str, inputs: tuple[np.ndarray, ...], message: str, implementation: Implementation
) -> None:
    kind, told = error_of(called, implementation, name, *inputs)
    assert (kind is TypeError) == ("dtype" in message)
    assert message in told


@pytest.mark.parametrize("name", ["notebook-scratch", "prenorm-blog", "dawn"])
@pytest.mark.slow_where("jax_impl", unless="dawn")
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


def test_inputs_that_are_no_arrays_of_numbers(implementation: Implementation) -> None:
    module = filled(torch.nn.TransformerDecoderLayer(16, 4, 24, batch_first=True))
    x = np.ones((2, 3, 16), "float32")
    for model in (
        implementation.load("pytorch", state(module), num_heads=4),
        implementation.load("transformer101", checkpoint("transformer101")),
    ):
        own = implementation.convert(x)
        for wrong in (x.tolist(), 3, "x"):
            with pytest.raises(TypeError, match=f"input 2 must be an array, got {type(wrong).__name__}"):
                model(own, wrong)
        with pytest.raises(TypeError, match="input 1 must hold numbers, got object"):
            model(x.astype(object), own)
    with pytest.raises(TypeError, match="query must be an array, got NoneType"):
        model(None)


def test_token_types_that_do_not_fit(implementation: Implementation) -> None:
    model, ids = bert(implementation), implementation.convert(IDS)
    for wrong in (IDS * 0 + 2, IDS * 0 - 1):
        with pytest.raises(ValueError, match=r"ids must lie in \[0, 2\)"):
            model(ids, None, implementation.convert(wrong))
    with pytest.raises(ValueError, match=r"token_types must have shape \[1, 3\]"):
        model(ids, None, implementation.convert(IDS[:, :2] * 0))
    with pytest.raises(TypeError, match="token_types must have an integer dtype"):
        model(ids, None, implementation.convert(np.zeros((1, 3), "float32")))
    with pytest.raises(TypeError, match="keep must be boolean"):
        model(ids, ids)


def bert(implementation: Implementation) -> Any:
    return implementation.load("bert", bert_entries(), num_heads=4)


def test_memory_where_none_is_wanted() -> None:
    model = reference_numpy.load("pytorch", state(filled(torch.nn.TransformerDecoderLayer(16, 4, 24))), num_heads=4)
    with pytest.raises(ValueError, match="memory must be the encoder's output"):
        model(np.ones((1, 3, 16), "float32"))


def test_metadata_is_sorted(tmp_path: Path) -> None:
    """The library writes it in another order in every process; the arrays and their places stay."""
    path, arrays = tmp_path / "sorted.safetensors", {"b": np.arange(6.0).reshape(2, 3), "a": np.ones(1, np.float16)}
    metadata = {f"{number}": f'"ü\x7f\n\x01 {number}' for number in (*range(20, 9, -1), 3)}
    write_safetensors(path, arrays, metadata)
    read, told = read_safetensors(path)
    assert ({*read}, told) == ({*arrays}, metadata)
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert list(header["__metadata__"]) == sorted(metadata)


@pytest.mark.parametrize("dialect", ["bert", "gpt2", "qwen3", "vit"])
def test_names_of_which_none_is_the_dialects_are_told_once(dialect: str) -> None:
    names = [f"mine.{number}" for number in range(40)]
    with pytest.raises(ValueError, match=f"none of its names is one of dialect '{dialect}'; ") as caught:
        read(dialect, {name: np.ones(2) for name in names}, **DIALECTS[dialect].example.hyperparameters)
    assert str(caught.value).count("mine.") == 5
    assert "rename its entries to those of the dialect nearest to the model" in str(caught.value)
