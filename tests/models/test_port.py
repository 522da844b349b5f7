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

from conformance.models.probing import holes, probe
from specification import Causal, KeyPadding
from specification.checkpoints import read_safetensors
from specification.dialects import read
from specification.masks import And, Dense
from tests.models.test_dialects import filled, state
from tests.support.helpers import command, output_of
from tests.support.pretrained import bert_entries
from tests.support.tutorials import SIZES, SOURCES

SIZE = SIZES[1]
PACKAGES = ["reference_numpy", "torch_impl", "jax_impl"]


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


def saved_bert(**more: np.ndarray) -> tuple[str, ...]:
    write({name: array.astype("float32") for name, array in (bert_entries() | more).items()})
    return ("model.safetensors", "--dialect", "bert", "--set", "num_heads=4")


def of_torch(module: torch.nn.Module) -> tuple[Any, Any]:
    return read("pytorch", state(filled(module)), num_heads=4)


def ratios(output: str, dtype: str) -> dict[str, float]:
    """What is told of the whole in that dtype, by package."""
    (line,) = (line for line in output.splitlines() if f"end to end, {dtype}, error ratios of the whole models" in line)
    return {name: float(ratio) for name, ratio in re.findall(r"(\w+_\w+) ([-\w.+]+)[,;]", line)}


# --- what it is tried with --------------------------------------------------------------------------------------------


def read_tutorial(name: str) -> tuple[Any, Any]:
    source = SOURCES[name]
    return read(source.dialect, state(filled(source.module(SIZE))), **source.hyperparameters(SIZE))


@pytest.mark.parametrize("name", ["notebook-scratch", "prenorm-blog", "dawn"])
def test_tokens_are_padded_to_differing_lengths(name: str) -> None:
    inputs, options = probe(*read_tutorial(name))
    assert {name: type(mask) for name, mask in options.items()} == dict.fromkeys(options, Dense)
    assert options.keys() == {"source_mask", "target_mask", "memory_mask"}
    assert options["memory_mask"].array.shape == (inputs[1].shape[1], inputs[0].shape[1])
    for tokens in inputs:
        lengths = (tokens != 0).sum(axis=1)
        assert len(set(lengths)) == 3
        assert lengths.max() == tokens.shape[1]
        assert lengths.min() > 0
        assert all((row[:length] != 0).all() for row, length in zip(tokens, lengths, strict=True))


def parts(mask: Any) -> list[Any]:
    return [*parts(mask.left), *parts(mask.right)] if isinstance(mask, And) else [mask]


def kinds(mask: Any) -> list[type]:
    return [type(part) for part in parts(mask)]


def test_embeddings_are_masked() -> None:
    transformer = of_torch(torch.nn.Transformer(16, 4, 1, 1, 24, batch_first=True))
    _, masks = probe(*transformer)
    assert {name: kinds(mask) for name, mask in masks.items()} == {
        "source_mask": [KeyPadding, Dense],
        "target_mask": [Causal, KeyPadding, Dense],
        "memory_mask": [KeyPadding, Dense],
    }
    assert len(set(parts(masks["source_mask"])[0].keep.sum(axis=1))) == 3
    _, masks = probe(*of_torch(torch.nn.TransformerDecoderLayer(16, 4, 24)))
    assert {name: kinds(mask) for name, mask in masks.items()} == {
        "mask": [Causal, KeyPadding, Dense],
        "memory_mask": [KeyPadding, Dense],
    }
    _, masks = probe(*of_torch(torch.nn.TransformerEncoderLayer(16, 4, 24)))
    assert masks["key_padding"].sum(axis=1).tolist() == [16, 10, 2]
    assert kinds(masks["mask"]) == [Dense]
    (query, key, value), masks = probe(*of_torch(torch.nn.MultiheadAttention(16, 4, kdim=10, vdim=12)))
    assert (query.shape[-1], key.shape[-1], value.shape[-1]) == (16, 10, 12)
    assert kinds(masks["mask"]) == [KeyPadding, Dense]


def test_a_model_that_knows_of_no_padding_is_given_masks_too() -> None:
    (tokens,), options = probe(*read_tutorial("imdb-classifier, max"))
    assert isinstance(options["mask"], Dense)
    lengths = options["keep"].sum(axis=1)
    assert lengths[0] == tokens.shape[1]
    assert len(set(lengths)) == 3


def test_holes_leave_something_to_every_query() -> None:
    for queries, keys in ((1, 1), (13, 16), (16, 13)):
        array = holes(queries, keys).array
        assert array.shape == (queries, keys)
        assert array[:, 0].all()
        assert array.all() == (keys == 1)


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dawn", "transformer101"])
@pytest.mark.slow_where("dawn")
def test_the_whole_is_told_too(name: str) -> None:
    output = output_of("port", *saved(name))
    assert "every step keeps its bound in reference_numpy, torch_impl, jax_impl" in output
    for dtype, packages in (("float32", PACKAGES), ("float64", PACKAGES[1:])):
        found = ratios(output, dtype)
        assert list(found) == packages
        assert all(0 <= ratio <= 1 for ratio in found.values())
    assert output.count("all keep it") == 2


TOLD = (
    "source_mask of [16, 10, 2] real keys and with holes, target_mask causal and of [13, 8, 1] real keys and with holes"
)


@pytest.mark.slow
def test_the_masks_are_told() -> None:
    write(state(filled(torch.nn.Transformer(16, 4, 1, 1, 24, batch_first=True))))
    assert TOLD in output_of("port", "model.safetensors", "--dialect", "pytorch", "--set", "num_heads=4")


@pytest.mark.parametrize("package", ["torch_impl", "jax_impl"])
@pytest.mark.slow_where("jax_impl")
def test_a_fault_in_a_step_shows_in_both(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding is forgotten: only a padded probe shows it."""
    words = saved("dawn")
    models = importlib.import_module(f"{package}.transformer")
    monkeypatch.setattr(models, "padding_mask", lambda tokens, padding: None)
    output = output_of("port", *words, code=1)
    assert f"the first error beyond its bound: {package} in encoder.blocks.0.attention" in output
    assert output.count(f"beyond it: {package}") == 2
    assert ratios(output, "float32")[package] > 1


def test_a_fault_in_loading_shows_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is wrong, but the parameters with which the model is made are."""
    words = saved("transformer101")
    models = importlib.import_module("torch_impl.models")
    right = models.as_tensor
    monkeypatch.setattr(models, "as_tensor", lambda array: 1.001 * right(array))
    output = output_of("port", *words, code=1)
    assert "every step keeps its bound" in output
    assert output.count("beyond it: torch_impl") == 2


def test_a_step_that_float32_excuses_is_named_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    words = saved("dawn")
    activations = importlib.import_module("torch_impl.feed_forward").ACTIVATIONS
    monkeypatch.setitem(activations, "relu", lambda x: (1 + 1e-9) * x.relu())
    output = output_of("port", *words, code=1)
    assert "steps in float64" in output
    assert "the first error beyond its bound: torch_impl in encoder.blocks.0.feed_forward" in output
    assert output.count("beyond it: torch_impl") == 1


DROPPED = {
    "the encoder's mask of the caller": ("pytorch, encoder", "models", "both", "blocks.0.attention"),
    "bert's mask of the caller": ("bert", "models", "both", "blocks.0.attention"),
    "the mask beside the padding, of tokens": ("dawn", "transformer", "both", "encoder.blocks.0.attention"),
    "the mask of the memory": ("pytorch", "blocks", "attend", "decoder.blocks.0.cross_attention"),
    "the target's mask": ("pytorch", "blocks", "attend", "decoder.blocks.0.self_attention"),
    "the target's holes": ("pytorch", "blocks", "attend", "decoder.blocks.0.self_attention"),
    "the source's mask": ("pytorch", "blocks", "attend", "encoder.blocks.0.attention"),
}


def dropping(fault: str, right: Any) -> Any:
    """The function without what the caller gave."""
    if DROPPED[fault][2] == "both":
        return lambda mask, other: mask if other is None else other

    def attend(p: Any, x: Any, memory: Any, mask: Any, *others: Any) -> Any:
        queries, keys = parts(mask)[-1].array.shape
        found = "the mask of the memory" if queries != keys else "the source's mask"
        found = "the target's" if Causal in kinds(mask) else found
        dropped = mask.left if fault == "the target's holes" else None
        return right(p, x, memory, dropped if fault.startswith(found) else mask, *others)

    return attend


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES[1:])
@pytest.mark.parametrize("fault", DROPPED)
def test_a_mask_that_is_dropped_is_found(fault: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, file, function, step = DROPPED[fault]
    if name in ("bert", "dawn"):
        words = saved_bert() if name == "bert" else saved("dawn")
    else:
        whole = torch.nn.Transformer(16, 4, 1, 1, 24, batch_first=True)
        write(state(filled(whole if name == "pytorch" else whole.encoder)))
        words = ("model.safetensors", "--dialect", "pytorch", "--set", "num_heads=4")
    module = importlib.import_module(f"{package}.{file}")
    monkeypatch.setattr(module, function, dropping(fault, getattr(module, function)))
    importlib.import_module("jax").clear_caches()  # what was compiled of the right one
    output = output_of("port", *words, code=1)
    assert re.findall(r"the first error beyond its bound: (.*)", output) == [f"{package} in {step}"]
    assert output.count(f"beyond it: {package}") == 2


def test_what_is_not_read_is_named() -> None:
    """Heads on top of a BERT, and tables of positions; and nothing is told where there is nothing."""
    _, output = command("port", *saved_bert())
    assert "no part of what dialect" not in output
    heads = {"pooler.dense.weight": np.ones((16, 16)), "embeddings.position_ids": np.ones(4)}
    output = output_of("port", *saved_bert(**heads))
    line = "entries that dialect bert does not use: embeddings.position_ids, pooler.dense.weight"
    assert line in output


@pytest.mark.parametrize("spoilt", ["", "output.LayerNorm.weight"])
@pytest.mark.slow_where("output")
def test_nan_is_not_green(spoilt: str) -> None:
    """All of it, and what only two steps take."""
    words = saved_bert()
    entries = read_safetensors("model.safetensors")[0]
    write({name: np.full_like(array, np.nan) if spoilt in name else array for name, array in entries.items()})
    output = output_of("port", *words, code=2)
    assert "every step that can be judged keeps its bound in reference_numpy, torch_impl, jax_impl" in output
    assert "NaN or infinities and could not be judged in full: " in output
    first, more = ("embedding.tokens", 13) if spoilt == "" else ("blocks.0.attention_norm", 5)
    assert f"{more + 1} steps give NaN or infinities" in output
    assert f"could not be judged in full: {first} and {more} more" in output
    assert "all keep it" not in output


def test_finite_numbers_without_a_bound_are_not_green() -> None:
    """NaN in some keys: what those queries give that do not see them is finite, and has no bound."""
    words = saved_bert()
    entries = dict(read_safetensors("model.safetensors")[0])
    entries["embeddings.word_embeddings.weight"][7] = np.nan
    write(entries)
    output = output_of("port", *words, code=2)
    assert "beyond" not in output
    assert "NaN or infinities and could not be judged in full: " in output


@pytest.mark.parametrize(("padding", "rows"), [(1, 3), (1, 17), (5, 21), (5, 40)])
@pytest.mark.slow_where(unless="1-3")
def test_few_positions_after_padding(padding: int, rows: int) -> None:
    table = {"embeddings.position_embeddings.weight": np.random.default_rng(0).normal(size=(rows, 16))}
    options = ("--set", "positions=after_padding", "--set", f"padding={padding}")
    output_of("port", *saved_bert(**table), *options)


def test_a_number_where_nan_belongs_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    words = saved_bert()
    entries = read_safetensors("model.safetensors")[0]
    write({name: np.full_like(array, np.nan) for name, array in entries.items()})
    blocks = importlib.import_module("torch_impl.blocks")
    right = blocks.normalize
    monkeypatch.setattr(blocks, "normalize", lambda *arguments: torch.nan_to_num(right(*arguments)))
    assert "the first error beyond its bound: torch_impl in embedding.norm" in output_of("port", *words, code=1)


def test_the_definition_is_not_compared_with_itself() -> None:
    words = saved("transformer101")
    entries = read_safetensors("model.safetensors")[0]
    write({name: array.astype("float64") for name, array in entries.items()})
    output = output_of("port", *words)
    assert "every step keeps its bound in torch_impl, jax_impl" in output
    assert list(ratios(output, "float64")) == PACKAGES[1:]


def test_what_cannot_be_judged_is_told_in_one_line() -> None:
    from safetensors.torch import save_file as torch_save

    torch_save({"weight": torch.ones(2).to(torch.float8_e4m3fn)}, "narrow.safetensors")
    for words, message in (
        (("narrow.safetensors", "--dialect", "dawn", "--set", "num_heads=4"), "cannot be read: weight (F8_E4M3)"),
        ((*saved("dawn"), "--set", "num_heads=2"), "--set gives num_heads twice"),
        ((*saved("transformer101"), "--set", "num_heads=2"), "transformer101 takes no hyperparameters, got num_heads"),
        ((*saved("dawn")[:3], "--set", "num_heads=nan"), "num_heads must be an integer of at least 1, got nan"),
        ((".", "--dialect", "dawn"), "is a folder, whose config.json says what --dialect and --set say of a file"),
        ((".", "--set", "num_heads=4"), "is a folder, whose config.json says what --dialect and --set say of a file"),
        ((".",), "config.json is not there"),
        (("narrow.safetensors",), "narrow.safetensors is a file, and needs --dialect"),
        (("nowhere",), "nowhere is not there"),
        (("nowhere.safetensors", "--dialect", "transformer101"), "nowhere.safetensors is not there"),
    ):
        output = output_of("port", *words, code=2)
        assert message in output
        assert len(output.splitlines()) == 1
