"""Ports of models with mixtures of experts and latent attention: right ones conform, mistakes are placed and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import conformance
import reference_numpy
from conformance.ports.checkpoints import Config, read_checkpoint
from reference_numpy.models import MODELS
from specification.configuration import Configuration
from specification.parameters import LanguageModel, mapped

DIALECTS = ("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v2", "deepseek_v3")
Entries = dict[str, np.ndarray]


def build_from(
    dialect: str, change: Callable[[Config, Entries], tuple[Config, Entries]]
) -> Callable[[Config, Entries], Callable[..., np.ndarray]]:
    """A port in float32 that reads a config and entries that are changed."""

    def build(config: Config, state_dict: Entries) -> Callable[..., np.ndarray]:
        given, entries = change({k: v for k, v in config.items() if k != "dtype"}, dict(state_dict))
        checkpoint = read_checkpoint(dialect, given, entries)
        parameters = mapped(lambda array: array.astype(np.float32), checkpoint.parameters)
        configuration: Configuration = checkpoint.configuration

        def model(tokens: np.ndarray, key_padding: np.ndarray | None = None) -> Any:
            return MODELS[LanguageModel](parameters, tokens, configuration=configuration, key_padding=key_padding)

        return model

    return build


def judge(dialect: str, change: Callable[[Config, Entries], tuple[Config, Entries]]) -> Any:
    return conformance.check(
        build_from(dialect, change), "model", dialect=dialect, effort="quick", seed=1, arrays="numpy"
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_right_port_conforms(dialect: str) -> None:
    report = judge(dialect, lambda config, entries: (config, entries))
    assert report.conforms, report
    assert 0.01 < report.worst < 0.6


def set_keys(**keys: Any) -> Callable[[Config, Entries], tuple[Config, Entries]]:
    return lambda config, entries: (config | keys, entries)


def change_entries(
    part: str, change: Callable[[np.ndarray], np.ndarray]
) -> Callable[[Config, Entries], tuple[Config, Entries]]:
    """Change the entries in whose names the part is."""
    return lambda config, entries: (
        config,
        {name: change(array) if part in name else array for name, array in entries.items()},
    )


def swap_entries(one: str, other: str) -> Callable[[Config, Entries], tuple[Config, Entries]]:
    def swap(config: Config, entries: Entries) -> tuple[Config, Entries]:
        names = {name: name.replace(one, "?").replace(other, one).replace("?", other) for name in entries}
        return config, {name: entries[names[name]] for name in entries}

    return swap


def exchange_parts(columns: np.ndarray) -> np.ndarray:
    """Of [2 F] alternating columns, the halves: read as halves, they are gate and inner projection."""
    return np.concatenate([columns[..., : columns.shape[-1] // 2, None], columns[..., columns.shape[-1] // 2 :, None]],
                          axis=-1).reshape(columns.shape)  # fmt: skip


FAULTS: dict[str, tuple[str, Any, str, str]] = {
    "one expert less": ("mixtral", set_keys(num_experts_per_tok=1), "feed_forward", "experts.one-less"),
    "gate and up exchanged": ("mixtral", swap_entries("w1", "w3"), "feed_forward", "experts.gate-swapped"),
    "router left out": ("olmoe", change_entries("mlp.gate.", np.zeros_like), "feed_forward", ""),
    "weights divided by their sum": (
        "qwen3_moe", set_keys(norm_topk_prob=True), "feed_forward", "experts.weights-normalized",
    ),
    "gate and up read as halves": (
        "gpt_oss", change_entries("gate_up_proj", exchange_parts), "feed_forward", "experts.gate-halves",
    ),
    "no router bias": (
        "gpt_oss", change_entries("router.bias", np.zeros_like), "feed_forward", "experts.no-router-bias",
    ),
    "no scale": ("deepseek_v3", set_keys(routed_scaling_factor=1.0), "feed_forward", "experts.no-scale"),
    "no choice bias": (
        "deepseek_v3", change_entries("correction_bias", np.zeros_like), "feed_forward", "experts.no-choice-bias",
    ),
    "no groups": ("deepseek_v3", set_keys(n_group=1, topk_group=1), "feed_forward", "experts.no-groups"),
    "no shared expert": (
        "deepseek_v2", change_entries("shared_experts.down", np.zeros_like), "feed_forward", "experts.shared-left-out",
    ),
    "rotated in halves": ("deepseek_v3", set_keys(rope_interleave=False), "self_attention", "attention.rotary-halves"),
    "no weight of the latent's norm": (
        "deepseek_v2", change_entries("kv_a_layernorm", np.ones_like), "self_attention", "latent.no-norm-weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_is_placed_and_named(name: str) -> None:
    dialect, change, sublayer, mistake = FAULTS[name]
    report = judge(dialect, change)
    assert not report.conforms
    first = report.violations[0]
    assert first.step.endswith(sublayer)
    assert first.diagnosis == ((mistake,) if mistake else ())


def test_experts_where_the_config_has_none_are_refused() -> None:
    """Which layers have experts is read off the entries, and config.json must agree."""
    from conformance.ports.checkpoints import draw_checkpoint
    from conformance.ports.configs import list_configs
    from specification.dialects import DIALECTS as RECORDS
    from specification.loading.config_file import of_entries

    config = list_configs("qwen3_moe")[0]
    names = draw_checkpoint("qwen3_moe", config, np.random.default_rng(0)).shapes
    record = RECORDS["qwen3_moe"].config
    assert record is not None
    assert of_entries(record, config, names) == []
    (problem,) = of_entries(record, config | {"mlp_only_layers": [1]}, names)
    assert problem == "by config.json layer 1 has no experts, and it has a router"


@pytest.mark.parametrize(
    ("dialect", "keys"),
    [
        ("deepseek_v3", {"first_k_dense_replace": 2, "num_hidden_layers": 3}),
        ("deepseek_v2", {"first_k_dense_replace": 0}),
        ("qwen3_moe", {"mlp_only_layers": [0]}),
    ],
)
def test_configs_say_which_layers_have_experts(dialect: str, keys: Config) -> None:
    from conformance.ports.checkpoints import draw_checkpoint
    from conformance.ports.configs import list_configs

    checkpoint = draw_checkpoint(dialect, list_configs(dialect)[0] | keys, np.random.default_rng(0))
    routed = [
        f"model.layers.{i}.mlp.gate.weight" in checkpoint.shapes for i in range(checkpoint.config["num_hidden_layers"])
    ]
    dense = keys.get("first_k_dense_replace", 1)
    assert routed == [i >= dense for i in range(len(routed))]


@pytest.mark.parametrize(
    ("dialect", "keys", "message"),
    [
        ("deepseek_v3", {"first_k_dense_replace": None}, "which layers have experts cannot be read"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "which layers have experts cannot be read"),
        ("deepseek_v3", {"n_group": None}, "n_group must be an integer of at least 1"),
        ("deepseek_v2", {"rope_interleave": False}, "rope_interleave is False, of which only True is supported"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": None}, "n_group must be an integer"),
    ],
)
def test_configs_that_mean_no_mixture_are_refused(dialect: str, keys: Config, message: str, tmp_path: Path) -> None:
    from conformance.ports.checkpoints import draw_checkpoint
    from conformance.ports.configs import list_configs

    config = list_configs(dialect)[0]
    entries = draw_checkpoint(dialect, config, np.random.default_rng(0)).state_dict()
    save_file(entries, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | keys))
    with pytest.raises(ValueError, match=message):
        reference_numpy.load_pretrained(tmp_path)


def test_experts_one_by_one_beside_stacked_ones_are_refused() -> None:
    from conformance.ports.checkpoints import draw_checkpoint, read_parameters
    from conformance.ports.configs import list_configs
    from specification.dialects import DIALECTS as RECORDS

    config = list_configs("olmoe")[0]
    entries = draw_checkpoint("olmoe", config, np.random.default_rng(0)).state_dict()
    stacked = entries | {"model.layers.0.mlp.experts.gate_up_proj": np.ones((6, 40, 24), np.float32)}
    with pytest.raises(ValueError, match="gate_up_proj is not known"):
        read_parameters(RECORDS["olmoe"], config, stacked)


def test_no_choice_of_experts_is_a_misfit() -> None:
    from conformance.ports.checkpoints import draw_checkpoint
    from conformance.ports.configs import list_configs
    from specification.fitting import misfits

    checkpoint = draw_checkpoint("mixtral", list_configs("mixtral")[0], np.random.default_rng(0))
    problems = misfits(checkpoint.parameters, replace(checkpoint.configuration, experts=None))
    assert problems[0] == "decoder.blocks.0.feed_forward is a mixture, and the configuration has no experts"
