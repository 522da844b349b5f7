"""Folders of Hugging Face: config.json says everything, or the folder is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import reference_numpy
from specification.configuration import AttentionLayer, Configuration
from specification.dialects import DIALECTS, read, read_folder
from specification.loading.config_file import collapsed, sizes_of
from specification.parameters import Decoder, LanguageModel, Transformer, leaves
from specification.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
)
from tests.support.helpers import Implementation, command, output_of
from tests.support.pretrained import CONTENT

TYPES = {name: next(iter(record.config.families)) for name, record in DIALECTS.items() if record.config is not None}


def entries_of(dialect: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = {name: shape for name, (shape, _) in DIALECTS[dialect].example_entries().items()}
    return {name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def folder_of(path: Path, dialect: str, without: tuple[str, ...] = (), **told: Any) -> Path:
    """The example of a dialect's record, with other entries of config.json or without some."""
    path.mkdir(exist_ok=True)
    save_file(entries_of(dialect), path / "model.safetensors")
    content = {"model_type": TYPES[dialect]} | CONTENT[dialect] | told
    content = {name: value for name, value in content.items() if name not in without}
    (path / "config.json").write_text(json.dumps(content))
    return path


def layers_of(path: Path, dialect: str, **told: Any) -> tuple[AttentionLayer, ...]:
    return read_folder(folder_of(path, dialect, **told))[1].attention_layers


def test_every_dialect_of_hugging_face_is_tried() -> None:
    assert set(CONTENT) == set(TYPES)


@pytest.mark.parametrize("dialect", CONTENT)
def test_a_folder_is_what_the_dialect_reads(dialect: str, tmp_path: Path) -> None:
    """The same parameters as by `load`, and a configuration that the file decides."""
    record = DIALECTS[dialect]
    parameters, configuration = read_folder(folder_of(tmp_path, dialect))
    same, _ = read(dialect, entries_of(dialect), **record.example.hyperparameters)
    assert type(parameters) is type(same)
    assert all(map(np.array_equal, leaves(parameters).values(), leaves(same).values()))
    heads = next(
        CONTENT[dialect][key]
        for key in ("num_attention_heads", "n_heads", "n_head", "num_heads")
        if key in CONTENT[dialect]
    )
    assert configuration.num_heads == heads


# --- entries that are refused -----------------------------------------------------------------------------------------

YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"residual_multiplier": 0.22}, "residual_multiplier is 0.22, which is not known"),
    ("llama", {"sliding_window": 4}, "sliding_window is 4, which is not known"),
    (
        "llama",
        {"model_type": "mistral", "attention_bias": True},
        "a mistral has no biases, and attention_bias or mlp_bias",
    ),
    (
        "llama",
        {"hidden_act": "gelu_fast"},
        "'gelu_fast', which is not supported; supported activations are gelu, gelu_python",
    ),
    ("llama", {"rope_scaling": {"rope_type": "mrope"}}, "rope_type is 'mrope', which is not known"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "factor": 2.0}},
        "factor is 2.0 in the rope parameters, which is not known with rope_type 'default'",
    ),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}}, "beta_fast is 32 in the rope"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which is not known"),
    ("qwen2", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5, of which only 1.0"),
    ("qwen3", {"attention_bias": True}, "attention_bias is True, and there are no such entries"),
    ("llama", {"num_hidden_layers": 2}, "num_hidden_layers is 2 in config.json, and the entries say 1"),
    ("gemma", {"hidden_size": 16}, "hidden_size is 16 in config.json, and the entries say 8"),
    ("llama", {"num_attention_heads": 8}, "must have shape"),
    ("llama", {"num_key_value_heads": 4}, "must have shape"),
    ("qwen3", {"head_dim": 8}, "head_dim is 8 in config.json, and the entries say 4"),
    (
        "llama",
        {"quantization_config": {"bits": 4}},
        "quantised weights are not supported: save the model without quantisation",
    ),
    ("qwen2", {"layer_types": ["chunked_attention"]}, "layer_types is .'chunked_attention'., and must be"),
    ("qwen2", {"layer_types": ["full_attention"] * 2}, "and must be 1 of 'full_attention'"),
    ("qwen3", {"layer_types": ["sliding_attention"], "sliding_window": None}, "sliding_window must be an integer"),
    ("gemma2", {"sliding_window": 0}, "sliding_window must be an integer of at least 1, got 0"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True, of which only"),
    ("llama", {"is_causal": False}, "is_causal is False, of which only True"),
    ("gpt2", {"is_causal": None}, "is_causal is None, of which only True"),
    ("t5", {"is_causal": False}, "is_causal is False, of which only True"),
    ("gemma", {"hidden_activation": "relu"}, "hidden_activation is 'relu', of which only"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, which is not known"),
    ("gemma3", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters has rope_theta, and must be"),
    ("gpt_neox", {"rope_theta": 1e6}, "rope_theta is 1000000.0, which is not known"),
    ("gpt_neox", {"tie_word_embeddings": False}, "tie_word_embeddings is False, and embed_out.w"),
    ("phi3", {"rope_scaling": LONG | {"long_mscale": 1.2}}, "long_mscale is 1.2 in the rope parameters"),
    ("phi3", {"attention_bias": True}, "attention_bias is True, of which only False"),
    ("olmo2", {"num_experts": 8}, "num_experts is 8, which is not known"),
    ("olmo2", {"clip_qkv": 8.0}, "clip_qkv is 8.0, which is not known"),
    ("modernbert", {"norm_bias": True}, "norm_bias is True, and there are no such entries"),
    ("t5", {"relative_attention_num_buckets": 32}, "relative_attention_num_buckets is 32 in config.json, and the"),
    ("t5", {"is_gated_act": True}, "is_gated_act is True, and there are no such entries"),
    ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj is 'gated-tanh', which is not supported"),
    ("t5", {"is_decoder": True}, "is_decoder is True, of which only False"),
    ("vit", {"patch_size": 16}, "patch_size is 16 in config.json, and the entries say 3"),
    ("vit", {"qkv_bias": False}, "qkv_bias is False, and there are such entries"),
    ("bert", {"is_decoder": True}, "is_decoder is True, of which only False"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True, of which"),
    ("distilbert", {"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05, which is not known"),
    ("llama", {"hidden_act": []}, r"hidden_act is \[\], which is not supported"),
    ("llama", {"rope_scaling": "x"}, "attention_layers cannot be read from rope_scaling is 'x'"),
    ("llama", {"rope_scaling": [1]}, r"attention_layers cannot be read from rope_scaling is \[1\]"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "scale cannot be read from query_pre_attn_scalar is 0"),
    ("llama", {"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval is 0"),
    ("llama", {"rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 0}}, "attention_factor must be"),
    ("llama", {"rms_norm_eps": "1e-6"}, "eps must be a real number, got '1e-6'"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "max_position_embeddings is missing"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    *(
        ("llama", {"some_option": value}, "some_option is .*, which is not known and might change numbers")
        for value in (0, 0.0, True, "x", [0], {"a": None})
    ),
]


@pytest.mark.parametrize(("dialect", "told", "message"), REFUSED)
def test_what_could_change_numbers_is_refused(dialect: str, told: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_folder(folder_of(tmp_path, dialect, **told))


@pytest.mark.parametrize(
    ("here", "due", "told"),
    [
        ("module.model.", "model.", "names begin with 'module.', which accounts for all"),
        ("transformer.", "model.", "names begin with 'transformer.', which accounts for all"),
        ("layers.0.mlp.up.", "layers.0.mlp.up_proj.", "layers.0.mlp.up_proj.weight is missing"),
    ],
)
@pytest.mark.parametrize("fault", [False, True])
def test_names_with_another_prefix(here: str, due: str, told: str, fault: bool, tmp_path: Path) -> None:
    """The prefix is told where it accounts for all, and never another family where config.json names the dialect."""
    path = folder_of(tmp_path, "llama") / "model.safetensors"
    entries = {name.replace(due, here): array for name, array in load_file(path).items()}
    save_file(entries | ({"another": np.ones(2, "float32")} if fault else {}), path)
    with pytest.raises(ValueError, match="does not fit") as caught:
        read_folder(tmp_path)
    message = str(caught.value)
    if fault and "accounts" in told:  # no name is left that the two share
        assert "none of its names is one of dialect 'llama'; its names are another, " in message
        return
    assert (told in message) == (not fault or "is missing" in told)
    assert ("accounts for all" in message) == (not fault and "accounts" in told)
    assert "is missing" in message
    assert "is not known" in message
    assert "no dialect covers" not in message


def test_many_families_have_refusals() -> None:
    assert len(REFUSED) >= 40
    assert len({dialect for dialect, _, _ in REFUSED}) >= 15


@pytest.mark.parametrize(
    "told", [{"some_option": None}, {"some_option": False}, {"some_option": []}, {"some_option": ""}]
)
@pytest.mark.parametrize("dialect", ["llama", "t5"])
def test_entries_that_are_empty_are_not_refused(dialect: str, told: dict[str, Any], tmp_path: Path) -> None:
    assert read_folder(folder_of(tmp_path, dialect, **told))[1] == read_folder(folder_of(tmp_path, dialect))[1]


DECODERS = [name for name in CONTENT if DIALECTS[name].described.structure in (LanguageModel, Transformer)]


def test_every_decoder_must_be_causal() -> None:
    assert len(DECODERS) == 17
    assert all(DIALECTS[name].config.fixed["is_causal"] is True for name in DECODERS)


@pytest.mark.parametrize("key", ["num_attention_heads", "num_hidden_layers"])
def test_entries_that_must_be_there(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"config.json cannot be read: {key} is missing$"):
        read_folder(folder_of(tmp_path, "llama", without=(key,)))


def test_all_that_is_wrong_in_a_file_is_told_at_once(tmp_path: Path) -> None:
    wrong = {"hidden_act": "mish", "clip_qkv": 3.0, "rope_scaling": {"type": "su"}}
    with pytest.raises(ValueError, match=r"hidden_act is 'mish'.*; .*; clip_qkv is 3.0") as caught:
        read_folder(folder_of(tmp_path, "olmo2", without=("num_attention_heads",), **wrong))
    assert "num_attention_heads is missing" in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_softcap_of_none_is_another_than_that_of_the_file(tmp_path: Path) -> None:
    path = folder_of(tmp_path, "gemma2", attn_logit_softcapping=50.0) / "model.safetensors"
    _, meant = read_folder(tmp_path)
    options = {"num_heads": 4, "key_heads": 2, "attention_layers": meant.attention_layers, "scale": meant.scale}
    assert read("gemma2", path, **options)[1].softcap == 50.0
    with pytest.raises(ValueError, match=r"attn_logit_softcapping is 50.0, and softcap is None"):
        read("gemma2", path, **options, softcap=None)


@pytest.mark.parametrize("told", [{"tie_word_embeddings": False}, {"attention_bias": True}])
def test_entries_that_contradict_the_file_are_refused_by_load_too(told: dict[str, Any], tmp_path: Path) -> None:
    path = folder_of(tmp_path, "llama", **told) / "model.safetensors"
    ((key, value),) = told.items()
    with pytest.raises(ValueError, match=rf"by config.json {key} is {value}, and"):
        read("llama", path, num_heads=4, key_heads=2)


LATENT = pytest.mark.parametrize("dialect", ["deepseek_v2", "deepseek_v3"])


def change_entries(path: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    save_file(change(load_file(path / "model.safetensors")), path / "model.safetensors")


@LATENT
@pytest.mark.parametrize("absent", ["q_a_proj", "kv_a_proj_with_mqa", "o_proj", ""])
def test_a_latent_attention_has_all_of_its_biases_or_none(dialect: str, absent: str, tmp_path: Path) -> None:
    def add_biases(entries: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        layers = {name: array for name, array in entries.items() if "_a_proj" in name or "o_proj" in name}
        names = {name: name.replace("weight", "bias") for name in layers if not absent or absent not in name}
        return entries | {bias: np.ones(len(layers[name]), np.float32) for name, bias in names.items()}

    change_entries(folder_of(tmp_path, dialect, attention_bias=True), add_biases)
    if not absent:
        read_folder(tmp_path)
        return
    with pytest.raises(ValueError, match=rf"self_attn.{absent}.bias is missing") as caught:
        read_folder(tmp_path)
    assert "is not known" not in str(caught.value)


@LATENT
def test_layers_that_predict_further_tokens_are_left_out(dialect: str, tmp_path: Path) -> None:
    def add_layer(entries: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        copies = {name.replace(".1.", ".2.", 1): array.copy() for name, array in entries.items() if "layers.1." in name}
        own = ("eh_proj.weight", "enorm.weight", "embed_tokens.weight", "shared_head.norm.weight")
        return entries | copies | {f"model.layers.2.{name}": np.ones(2, np.float32) for name in own}

    alone, configuration = read_folder(folder_of(tmp_path, dialect, num_nextn_predict_layers=1))
    change_entries(tmp_path, add_layer)
    with_layer, same = read_folder(tmp_path)
    assert same == configuration
    assert all(map(np.array_equal, leaves(with_layer).values(), leaves(alone).values()))
    change_entries(tmp_path, lambda entries: {n: array for n, array in entries.items() if "eh_proj" not in n})
    with pytest.raises(ValueError, match=r"num_hidden_layers is 2 in config.json, and the entries say 3"):
        read_folder(tmp_path)


@LATENT
def test_a_scale_of_latent_attention_that_contradicts_the_file(dialect: str, tmp_path: Path) -> None:
    path = folder_of(tmp_path, dialect) / "model.safetensors"
    _, meant = read_folder(tmp_path)
    options: dict[str, Any] = {"num_heads": 2, "chosen": 2, "attention_layers": meant.attention_layers}
    options |= {"factor": meant.experts.scale} if meant.experts else {}
    assert read(dialect, path, **options)[1].scale == meant.scale == "head_width"
    with pytest.raises(ValueError, match=r"qk_nope_head_dim is 3 and qk_rope_head_dim is 4, .* and scale is 0.5"):
        read(dialect, path, **options, scale=0.5)


@pytest.mark.parametrize(
    ("rope", "told"),
    [
        ({"rope_type": "linear", "factor": 0.5}, "factor must be at least 1"),
        (LONG | {"short_factor": [1.0] * 3, "factor": 2.0}, "short_factors must hold 2"),
    ],
)
def test_rotations_that_no_model_can_have_are_refused_on_loading(rope: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        read_folder(folder_of(tmp_path, "llama", rope_parameters=rope, max_position_embeddings=8))
    assert str(tmp_path / "config.json") in str(caught.value)


def test_layers_that_mean_the_same_are_the_same() -> None:
    one, other = AttentionLayer(rotary=Rotary()), AttentionLayer()
    assert collapsed([one, one]) == collapsed((one,)) == (one,)
    assert collapsed(()) == collapsed([other])
    assert collapsed([one, other]) == (one, other)
    assert collapsed(None) is None


@pytest.mark.parametrize(
    ("dialect", "one"),
    [("llama", "self_attn.o_proj"), ("llama", "self_attn.k_proj"), ("llama", "mlp.down_proj"), ("gpt_neox", "dense"),
     ("vit", "attention.attention.key"), ("modernbert", "attn.Wo"), ("gpt_oss", "o_proj")],
)  # fmt: skip
@pytest.mark.parametrize("there", [True, False])
def test_biases_come_together(dialect: str, one: str, there: bool) -> None:
    """One alone, and all but one."""
    record = DIALECTS[dialect]
    entries = entries_of(dialect)
    known = {row.theirs for row in record.described.table}
    beside = {name.removesuffix("weight") + "bias": array for name, array in entries.items() if array.ndim == 2}
    prefix = (*record.prefixes, "")[0]
    biases = {
        name: array[:, 0]
        for name, array in beside.items()
        if re.sub(r"\.\d+\.", ".{i}.", name.removeprefix(prefix)) in known
    }
    chosen = next(name for name in biases if name.endswith(f"{one}.bias"))
    unbiased = {name: array for name, array in entries.items() if name not in biases}
    given = unbiased | {name: bias for name, bias in biases.items() if (name == chosen) == there}
    with pytest.raises(ValueError, match=r"bias is missing"):
        read(dialect, given, **record.example.hyperparameters)


# --- what the entries mean --------------------------------------------------------------------------------------------

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
MISTRAL = {"model_type": "mistral"}
SMOL = {"model_type": "smollm3", "num_hidden_layers": 1}


def turned(window: tuple[int, int] | None = None, **rotary: Any) -> AttentionLayer:
    return AttentionLayer(window=window, rotary=Rotary(**rotary))


MEANT: tuple[tuple[Any, ...], ...] = (
    ("llama", {}, turned()),
    ("llama", {"rope_theta": 5e5}, turned(base=5e5)),
    ("llama", {"rope_parameters": {"rope_theta": 5e5}}, turned(base=5e5)),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, turned(scaling=LinearScaling(factor=2.0))),
    (
        "llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 32},
        turned(scaling=DynamicScaling(factor=2.0, original_length=32)),
    ),
    (
        "qwen2", {"rope_scaling": YARN | {"type": "yarn"}, "rope_theta": 1e6},
        turned(base=1e6, scaling=YarnScaling(factor=4.0, original_length=16)),
    ),
    (  # a factor from lengths
        "qwen2",
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 8}, "max_position_embeddings": 32},
        turned(scaling=YarnScaling(factor=4.0, original_length=8)),
    ),
    (
        "llama", {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 5e5}},
        turned(
            base=5e5,
            scaling=Llama3Scaling(
                factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=16
            ),
        ),
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "su", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]},
         "max_position_embeddings": 64, "original_max_position_embeddings": 16},
        turned(
            scaling=LongRopeScaling(
                short_factors=(1.0, 1.0), long_factors=(2.0, 2.0), original_length=16, factor=4.0
            )
        ),
    ),
    ("llama", MISTRAL, turned((4095, 0))),
    ("llama", MISTRAL | {"sliding_window": None}, turned()),
    ("llama", MISTRAL | {"sliding_window": 3}, turned((2, 0))),
    ("llama", SMOL, turned(base=2e6)),
    ("llama", SMOL | {"no_rope_layers": [0]}, AttentionLayer()),
    ("qwen2", {"sliding_window": 4, "max_window_layers": 0}, turned()),
    ("qwen2", {"sliding_window": 4, "max_window_layers": 0, "use_sliding_window": True}, turned((3, 0))),
    ("gemma2", {"sliding_window": 4}, turned((3, 0))),
    ("gemma3", {"sliding_window": 4, "rope_local_base_freq": 500.0}, turned((3, 0), base=500.0)),
    (
        "gemma3", {"sliding_window_pattern": 1, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        turned(base=1e6, scaling=LinearScaling(factor=8.0)),
    ),
    ("gpt_neox", {"rotary_emb_base": 500}, turned(base=500.0, width=2)),
    ("modernbert", {"global_attn_every_n_layers": 2, "global_rope_theta": 1e3}, turned(base=1e3), turned((64, 64))),
    ("modernbert", {"layer_types": ["sliding_attention"] * 2, "local_attention": 9}, turned((4, 4))),
)  # fmt: skip
"""A dialect, entries of config.json, and the layers that they mean."""


@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: f"{meant[0]}-{'-'.join(meant[1])}")
def test_layers_out_of_files_old_and_new(meant: tuple[Any, ...], tmp_path: Path) -> None:
    dialect, told, *layers = meant
    assert layers_of(tmp_path, dialect, **told) == tuple(layers)


def test_yarns_scales_give_an_attention_factor(tmp_path: Path) -> None:
    (layer,) = layers_of(tmp_path, "qwen3", rope_scaling=YARN | {"type": "yarn", "mscale": 0.5, "mscale_all_dim": 1.0})
    assert isinstance(layer.rotary.scaling, YarnScaling)
    expected = (0.1 * 0.5 * np.log(4.0) + 1) / (0.1 * np.log(4.0) + 1)
    assert layer.rotary.scaling.attention_factor == pytest.approx(expected, rel=1e-15)


def test_choices_out_of_files(tmp_path: Path) -> None:
    def choice(dialect: str, name: str, **told: Any) -> Any:
        return asdict(read_folder(folder_of(tmp_path, dialect, **told))[1])[name]

    assert choice("gemma2", "scale") == 0.25
    assert choice("gemma2", "softcap") == 50.0
    assert choice("gemma2", "softcap", attn_logit_softcapping=None) is None
    assert choice("gemma2", "output_softcap", final_logit_softcapping=None) is None
    assert choice("gemma3", "output_softcap") is None
    assert choice("gemma", "activation", hidden_act="gelu") == "gelu_tanh"
    assert choice("llama", "activation", hidden_act="gelu") == "gelu"
    assert choice("gpt_neox", "norm_order") == "parallel"
    assert choice("gpt_neox", "norm_order", use_parallel_residual=False) == "pre"
    assert choice("t5", "scaled_output") is True
    assert choice("t5", "scaled_output", tie_word_embeddings=False) is False
    assert choice("t5", "scaled_output", tie_word_embeddings=True, scale_decoder_outputs=False) is False
    assert choice("t5", "scaled_output", model_type="mt5", feed_forward_proj="relu") is False
    assert choice("t5", "relative_furthest", relative_attention_max_distance=20) == 20
    assert choice("bert", "positions", model_type="roberta", pad_token_id=3) == "after_padding"
    assert choice("bert", "position_padding", model_type="roberta", pad_token_id=3) == 3
    assert choice("bert", "position_padding") is None
    assert choice("llama", "norm_eps", rms_norm_eps=1e-3) == 1e-3


def test_a_model_without_head_gives_hidden_states(tmp_path: Path) -> None:
    parameters, _ = read_folder(folder_of(tmp_path, "llama", architectures=["LlamaModel"]))
    assert isinstance(parameters, Decoder)
    for named in (None, "LlamaForCausalLM"):
        assert isinstance(read_folder(folder_of(tmp_path, "llama", architectures=named))[0], LanguageModel)
    assert read_folder(folder_of(tmp_path, "t5", architectures=["T5Model"]))[0].output is None


def test_a_t5s_decoder_has_as_many_layers_as_the_encoder_unless_the_file_says_otherwise() -> None:
    config = DIALECTS["t5"].config
    assert sizes_of(config, {"num_layers": 2})["j"] == ("num_layers", 2)
    assert sizes_of(config, {"num_layers": 2, "num_decoder_layers": 3})["j"] == ("num_decoder_layers", 3)


def test_the_padding_of_a_t5s_source_holds_in_generation_too() -> None:
    source, target = np.array([[3, 1, 4], [5, 0, 0]]), np.array([[0, 2], [0, 4]])
    told, plain = ({"num_heads": 4} | more for more in ({"source_padding": 0}, {}))
    masked, unmasked = (reference_numpy.load("t5", entries_of("t5"), **given) for given in (told, plain))
    assert np.array_equal(masked(source, target), unmasked(source, target, source_key_padding=source != 0))
    first, other = (reference_numpy.start(one, target, capacity=2, source=source)[0] for one in (masked, unmasked))
    assert np.array_equal(first[0], other[0])
    assert not np.array_equal(first[1], other[1])


def test_an_output_layer_of_its_own_is_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama", tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"tie_word_embeddings is False, and lm_head.weight is missing"):
        read_folder(folder)
    output = np.ones((6, 8), "float32")
    save_file(entries_of("llama") | {"lm_head.weight": output}, folder / "model.safetensors")
    assert np.array_equal(read_folder(folder)[0].output.weight, output.T)


# --- dtypes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_dtype_that_is_asked_for(dtype: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama")
    arrays = leaves(read_folder(folder, dtype)[0])
    assert {str(array.dtype) for array in arrays.values()} == {dtype}
    expected = entries_of("llama")["model.norm.weight"].astype(dtype)
    assert np.array_equal(arrays[".decoder.norm.weight"], expected)


def test_numbers_that_overflow_are_told_by_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llama")
    large = {"model.norm.weight": np.full(8, 1e5, "float32")}
    save_file(entries_of("llama") | large, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=r"^NaN or infinities are in norm.weight$"):
        read_folder(folder, "float16")


def test_narrow_entries_are_widened_unless_they_are_asked_for(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = folder_of(tmp_path, "llama")
    narrow = {name: array.astype(ml_dtypes.bfloat16) for name, array in entries_of("llama").items()}
    save_file(narrow, folder / "model.safetensors")
    kept = leaves(read_folder(folder, "bfloat16")[0])
    assert np.array_equal(kept[".decoder.norm.weight"], narrow["model.norm.weight"])
    assert len(recwarn) == 0
    with pytest.warns(UserWarning, match="bfloat16 entries of the checkpoint are widened to float32"):
        widened = leaves(read_folder(folder)[0])
    assert str(widened[".decoder.norm.weight"].dtype) == "float32"
    with pytest.raises(ValueError, match=r"dtype must be one of 'float16', .*got 'int8'"):
        read_folder(folder, "int8")


# --- files ------------------------------------------------------------------------------------------------------------


def sharded(path: Path, dialect: str = "llama") -> tuple[Path, dict[str, str]]:
    """The example in two files, with their index."""
    folder = folder_of(path, dialect)
    entries = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    half, where = len(entries) // 2, {}
    for number, part in ((1, list(entries)[:half]), (2, list(entries)[half:])):
        name = f"model-{number}-of-2.safetensors"
        save_file({entry: entries[entry] for entry in part}, folder / name)
        where |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder, where


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    folder, _ = sharded(tmp_path)
    found = leaves(read_folder(folder)[0])
    expected = leaves(read("llama", entries_of("llama"), **DIALECTS["llama"].example.hyperparameters)[0])
    assert all(map(np.array_equal, found.values(), expected.values()))


def told(folder: Path, **changed: Any) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def with_an_entry_twice(folder: Path, where: dict[str, str]) -> None:
    shard = folder / "model-2-of-2.safetensors"
    save_file(load_file(shard) | {next(iter(where)): np.ones(3, "float32")}, shard)


def pickled(folder: Path, where: dict[str, str]) -> None:
    (folder / INDEX).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")


def write_config(content: dict[str, str]) -> Callable[[Path, dict[str, str]], Any]:
    return lambda folder, _: (folder / "config.json").write_text(json.dumps(content))


INDEX = "model.safetensors.index.json"
BROKEN: tuple[tuple[Callable[[Path, dict[str, str]], Any], type[Exception], str], ...] = (
    (
        lambda folder, _: (folder / "model-2-of-2.safetensors").unlink(),
        FileNotFoundError, "index.json names model-2-of-2.safetensors, and there is no such file",
    ),
    (
        lambda folder, where: told(folder, weight_map=where | {"model.more.weight": "model-1-of-2.safetensors"}),
        ValueError, "index.json does not fit: model.more.weight is not in model-1-of-2.safetensors",
    ),
    (
        lambda folder, where: told(folder, weight_map=dict(list(where.items())[1:])),
        ValueError, "index.json does not fit: .* of model-1-of-2.safetensors is not named",
    ),
    (with_an_entry_twice, ValueError, "index.json does not fit: .* is in model-2-of-2.safetensors and in model-1-of-2"),
    (
        lambda folder, where: told(folder, weight_map=dict.fromkeys(where, "../model.safetensors")),
        ValueError, "must name a file of the same folder for .*, got '../model.safetensors'",
    ),
    (lambda folder, _: told(folder, weight_map={}), ValueError, "index.json has no weight_map"),
    (lambda folder, _: (folder / INDEX).write_text("{"), ValueError, "index.json cannot be read as JSON"),
    (
        lambda folder, _: (folder / "config.json").unlink(),
        FileNotFoundError, "config.json is not there; load reads the weights by a dialect$",
    ),
    (lambda folder, _: (folder / INDEX).unlink(), FileNotFoundError, "model.safetensors is not there$"),
    (
        pickled, FileNotFoundError,
        "model.safetensors is not there, and pytorch_model.bin, which is pickled, is not read",
    ),
    (write_config({}), ValueError, "config.json names no model_type"),
    (write_config({"model_type": "rwkv"}), ValueError, "model_type is 'rwkv', and the dialects read 'bert', .*, 'vit'"),
    (
        write_config({"model_type": "qwen2_moe"}),
        ValueError, "model_type is 'qwen2_moe', of Qwen 2 MoE, Phi 3.5 MoE or another mixture of experts, which no",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("breaks", "kind", "message"), BROKEN)
def test_folders_that_are_not_whole(
    breaks: Callable[[Path, dict[str, str]], Any], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    folder, where = sharded(tmp_path)
    breaks(folder, where)
    with pytest.raises(kind, match=message) as caught:
        read_folder(folder)
    assert str(folder) in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        read("bert", tmp_path / "nowhere")  # before its hyperparameters are
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="is a file, and a folder is needed"):
        read_folder(file)


# --- the three packages -----------------------------------------------------------------------------------------------


def test_the_packages_load_the_same(implementation: Implementation, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen3", rope_theta=500.0)
    model = implementation.load_pretrained(folder)
    assert model.configuration == read_folder(folder)[1]
    assert isinstance(model.configuration, Configuration)
    found = [implementation.subject.framework.numpy(array) for array in leaves(model.structure()).values()]
    assert all(map(np.array_equal, found, leaves(read_folder(folder)[0]).values()))
    narrow = implementation.load_pretrained(folder, dtype="bfloat16")
    assert all("bfloat16" in str(array.dtype) for array in leaves(narrow.structure()).values())
    with pytest.raises(ValueError, match=re.escape(str(folder / "config.json"))):
        implementation.load_pretrained(folder_of(tmp_path, "qwen3", logit_scale=2.0))


# --- the command line -------------------------------------------------------------------------------------------------

BOTH = ["reference_numpy", "torch_impl"]


@pytest.fixture
def without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX compiles every model."""
    for module in ("trace", "port"):  # the first imports the second, as it is
        monkeypatch.setattr(f"conformance.cli.{module}.packages_here", lambda: BOTH)


def test_port_takes_a_folder(tmp_path: Path, without_jax: None) -> None:
    folder, report = folder_of(tmp_path, "gemma3", sliding_window=3), tmp_path / "report.json"
    assert "every step keeps its bound in reference_numpy, torch_impl" in output_of("port", folder, "--json", report)
    assert json.loads(report.read_text())["dialect"] == "gemma3"
    code, output = command("port", folder_of(tmp_path, "gemma3", sliding_window=-1))
    assert (code, "sliding_window must be an integer of at least 1" in " ".join(output.split())) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", CONTENT)
def test_port_judges_every_dialect(dialect: str, tmp_path: Path) -> None:
    output_of("port", folder_of(tmp_path, dialect))


def test_port_lists_entries_of_a_folder_that_are_not_used(tmp_path: Path, without_jax: None) -> None:
    output = " ".join(command("port", folder_of(tmp_path, "vit"))[1].split())
    assert "entries that dialect vit does not use: pooler.dense.bias, pooler.dense.weight" in output


def test_port_lists_an_output_layer_that_architectures_leaves_out(tmp_path: Path, without_jax: None) -> None:
    folder = folder_of(tmp_path, "qwen3", architectures=["Qwen3ForSequenceClassification"])
    assert "does not use" not in command("port", folder)[1]
    save_file(entries_of("qwen3") | {"lm_head.weight": np.ones((6, 8), "float32")}, folder / "model.safetensors")
    assert "entries that dialect qwen3 does not use: lm_head.weight" in command("port", folder)[1]
    parameters, configuration = read_folder(folder)
    with pytest.raises(TypeError, match="got Decoder, which has no output layer; load_pretrained leaves it out where"):
        reference_numpy.greedy(parameters, np.array([[1, 2]]), 2, configuration=configuration)


def test_names_of_another_dialect_are_told_beside_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen3", model_type="llama", layer_types=["full_attention"])
    told = r"its names are those of dialect 'qwen3', and model_type is 'llama'; .*layer_types is"
    with pytest.raises(ValueError, match=told):
        read_folder(folder)
    folder = folder_of(tmp_path, "qwen3", model_type="qwen2")
    with pytest.raises(ValueError, match="its names are those of dialect 'qwen3'"):
        read_folder(folder)
    folder = folder_of(tmp_path, "qwen3", nothing=1)
    with pytest.raises(ValueError, match=r"config.json cannot be read: nothing is 1"):
        read_folder(folder)


def with_tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "a": 1, "b": 2, "c": 3, "d": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=30)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_trace_takes_a_folder_and_a_text(tmp_path: Path, without_jax: None) -> None:
    pytest.importorskip("tokenizers")
    folder = with_tokenizer(folder_of(tmp_path, "qwen3"))
    output = output_of("trace", folder, "d b x")
    assert "d b [UNK]" in output
    assert command("trace", "d b x", "--checkpoint", folder)[1] == output
    assert command("trace", folder, "a b " * 2)[0] == 0
    values = tmp_path / "steps.npz"
    assert command("trace", folder, "4,2,0", "--save", values)[0] == 0
    assert command("trace", folder, "d b x", "--against", values)[0] == 0
    assert command("trace", folder, "d c x", "--against", values)[0] == 1


def test_trace_takes_a_source_and_a_target(tmp_path: Path, without_jax: None) -> None:
    pytest.importorskip("tokenizers")
    output = command("trace", with_tokenizer(folder_of(tmp_path, "t5")), "a b / c")[1]
    assert "a b\nc\n" in output


def test_trace_without_what_it_needs(tmp_path: Path, without_jax: None) -> None:
    folder = folder_of(tmp_path, "qwen3")
    for words, message in (
        ((folder, "a b"), "tokenizer.json is not there: give token ids, such as 5,7,2, in place of a sentence"),
        ((folder, "a b", "--dialect", "qwen3"), "is a folder, whose config.json says"),
        (
            ("a b", "c"),
            "a folder must stand before the sentence where there are two words, got a b, which is not there",
        ),
        (("1,2", "--checkpoint", tmp_path / "nowhere"), "nowhere is not there"),
        ((folder, "1,2", "--against", tmp_path / "nowhere.npz"), "nowhere.npz is not there"),
        ((folder, "1,2", "--checkpoint", folder), "a folder must stand before the sentence"),
        ((folder_of(tmp_path / "images", "vit"), "1,2"), "this model takes embeddings or images"),
    ):
        code, output = command("trace", *words)
        assert (code, message in " ".join(output.split())) == (2, True), output
    (folder / "tokenizer.json").write_text("{}")
    pytest.importorskip("tokenizers")
    code, output = command("trace", folder, "a b")
    assert (code, "tokenizer.json cannot be read" in " ".join(output.split())) == (2, True)
