"""Rows, keys and the whole record that the dialects of Hugging Face's decoders share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from specification.configuration import AttentionLayer, Configuration, is_count
from specification.loading.reader import Reader
from specification.loading.record import Computed, ConfigFile, Dialect, Example, Tied, Variant
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, layers_of, rotary_of, upper_windows
from specification.loading.table import Row, Table, array, each, linear, norm, table
from specification.parameters import LanguageModel
from specification.rotary import Rotary

SIZES = {
    "hidden_size": "E",
    "intermediate_size": "F",
    "vocab_size": "vocabulary",
    "num_hidden_layers": "i",
    "head_dim": "D",
}
"""Of `ConfigFile.sizes`."""

HEADS_BIASED = "*self_attn.?_proj.bias"
"""Of `linear`: the biases of the four projections of an attention."""

CAUSAL = {"is_causal": True}
"""Of `ConfigFile.fixed`."""

ATTENTION_BIAS = {"attention_bias": "layers.0.self_attn.q_proj.bias"}
"""Of `ConfigFile.entries`."""

KEY_HEADS = Computed(
    ("num_key_value_heads",), lambda told: told.get("num_key_value_heads") or told["num_attention_heads"]
)
"""As many as there are heads of queries, where the file does not say it."""

KEYS: dict[str, str | Computed] = {
    "num_heads": "num_attention_heads",
    "key_heads": KEY_HEADS,
    "eps": "rms_norm_eps",
    "activation": "hidden_act",
}
"""Of `ConfigFile.keys`."""

DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
"""Of `ConfigFile.defaults`, as most families have them."""

Layers = tuple[AttentionLayer, ...]
ROTATING: Layers = (AttentionLayer(rotary=Rotary()),)
"""Layers that are all alike and rotate, as `load` takes them unless it is told."""

GEMMA_KEYS: dict[str, str | Computed] = {
    "activation": "hidden_activation",
    "scale": Computed(("query_pre_attn_scalar",), lambda told: told["query_pre_attn_scalar"] ** -0.5),
}
GEMMA_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
"""What Gemma 2 and 3 have in common."""

UPPER_WINDOWS = Computed((*ROPE_KEYS, *LAYER_KEYS, "use_sliding_window", "max_window_layers"), upper_windows)
UPPER_WINDOWS_DEFAULTS = {
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "layer_types": None,
}
"""The hyperparameter attention_layers of Qwen 2 and 3, and of `ConfigFile.defaults`, what it is computed from."""

TOKENS = np.array([[3, 1, 4, 2], [5, 2, 0, 0]])
EXAMPLE = Example(
    hyperparameters={"num_heads": 4, "key_heads": 2},
    inputs={"tokens": TOKENS},
    options={"key_padding": TOKENS != 0},
    about="Token 0 is padding, and masked by key_padding.",
    sizes={"D": 4},
    without=("lm_head.weight", "*_proj.bias"),
)
"""Of a decoder whose heads are together wider than the model, whose output is its token table, without biases."""
DENSE = tuple(f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
"""Of `Example.without`: entries of a first block without experts."""
STACKED = ("*.experts.gate_up_proj", "*.experts.down_proj")
"""Of `Example.without`: entries of modules that a file has expert by expert."""
EXPERTS = replace(
    EXAMPLE,
    hyperparameters={"num_heads": 4, "key_heads": 2, "chosen": 2},
    sizes={"D": 4, "X": 3, "M": 6},
    without=(*EXAMPLE.without, *STACKED, *DENSE),
)
"""Of a decoder with a mixture of experts in every block."""
NORMALIZED = Computed(("norm_topk_prob",), lambda told: "normalized" if told.get("norm_topk_prob") else "scores")
"""The hyperparameter weighting of a mixture of experts whose scores are a softmax or sigmoids (MOE-3)."""
ROUTER_TRAINING = ("output_router_logits", "router_aux_loss_coef")
"""Of `ConfigFile.without_effect`: keys of mixtures of experts that speak of training alone."""


# --- latent attention and its experts ---------------------------------------------------------------------------------

LATENT_SIZES = {
    "hidden_size": "E",
    "intermediate_size": "F",
    "moe_intermediate_size": "M",
    "n_routed_experts": "X",
    "vocab_size": "vocabulary",
    "num_hidden_layers": "i",
    "kv_lora_rank": "C",
    "q_lora_rank": "Cq",
    "v_head_dim": "V",
}
"""Of `ConfigFile.sizes`, of DeepSeek."""


def add_keys(*keys: str) -> Computed:
    """Make a size that is a sum."""
    return Computed(keys, lambda told: sum(told[key] for key in keys))


LATENT_WIDTHS = {
    "CR": add_keys("kv_lora_rank", "qk_rope_head_dim"),
    "Q": add_keys("qk_nope_head_dim", "qk_rope_head_dim"),
    "U": add_keys("qk_nope_head_dim", "v_head_dim"),
    "S": Computed(
        ("moe_intermediate_size", "n_shared_experts"),
        lambda told: told["moe_intermediate_size"] * told["n_shared_experts"],
    ),
}
"""Of `ConfigFile.computed_sizes`, of DeepSeek."""


def read_latent_layers(told: Mapping[str, Any], pairing: str = "interleaved") -> Layers:
    """Read how latent attentions rotate the last columns of a query, and the key that all heads share."""
    rotary = replace(rotary_of(told), width=told["qk_rope_head_dim"], pairing=pairing)
    return layers_of({**told, "sliding_window": None}, rotary)


def read_latent_heads(told: Mapping[str, Any]) -> int:
    """Read the number of heads, which is that of queries and of keys."""
    count, keys = told["num_attention_heads"], told.get("num_key_value_heads")
    if keys not in (None, count):
        raise ValueError(f"num_key_value_heads is {keys!r}, of which only num_attention_heads is supported")
    return int(count)


def read_group_count(told: Mapping[str, Any], key: str) -> int:
    """Read a number of groups of experts."""
    count = told[key]
    if not is_count(count) or count == 0:
        raise ValueError(f"{key} must be an integer of at least 1, got {count!r}")
    return int(count)


def read_latent_scale(told: Mapping[str, Any]) -> float | None:
    """Read the scale of the scores, 1 / sqrt(D + R) times the square of YaRN's factor; None without a factor."""
    given = told.get("rope_scaling") or told.get("rope_parameters") or {}
    weight = given.get("mscale_all_dim")
    if not weight or given.get("rope_type", given.get("type", "default")) == "default":
        return None
    grown = 0.1 * weight * math.log(given["factor"]) + 1 if given["factor"] > 1 else 1.0
    return (told["qk_nope_head_dim"] + told["qk_rope_head_dim"]) ** -0.5 * grown * grown


LATENT_KEYS: dict[str, str | Computed] = {
    "num_heads": Computed(("num_attention_heads", "num_key_value_heads"), read_latent_heads),
    "scale": Computed(("rope_scaling", "rope_parameters", "qk_nope_head_dim", "qk_rope_head_dim"), read_latent_scale),
    "chosen": "num_experts_per_tok",
    "factor": "routed_scaling_factor",
}
"""Of `ConfigFile.keys`, of DeepSeek."""
UPPER_EXPERTS = Computed(
    ("first_k_dense_replace", "num_hidden_layers"),
    lambda told: [i >= told["first_k_dense_replace"] for i in range(told["num_hidden_layers"])],
)
"""Of `ConfigFile.routed`, of DeepSeek."""
LATENT_ENTRIES = {
    "attention_bias": "layers.0.self_attn.*_a_proj*.bias",
    "q_lora_rank": "layers.0.self_attn.q_a_proj.*",
}
"""Of `ConfigFile.entries`, of DeepSeek."""
LATENT_BIASES = "*self_attn.*_proj*.bias"
COMPRESSED, COMPRESSED_BIAS = "*self_attn.q_a_proj.weight", "*self_attn.q_a_proj.bias"
"""Patterns of entries: the biases of a latent attention, and the first projection of compressed queries."""
LATENT_WITHOUT_EFFECT = (
    *("num_nextn_predict_layers", "num_mtp_layers"),
    *("head_dim", "qk_head_dim", "aux_loss_alpha", "seq_aux", "ep_size"),
)
"""Of `ConfigFile.without_effect`: what the entries show, and what speaks of training or of heads that no model has."""
LATENT_EXAMPLE = replace(
    EXAMPLE,
    hyperparameters={
        "num_heads": 2,
        "chosen": 2,
        "attention_layers": (AttentionLayer(rotary=Rotary(width=4, pairing="interleaved")),),
    },
    about="Token 0 is padding, and masked by key_padding. The first block has no experts.",
    sizes={"i": 2, "X": 3, "M": 6, "S": 6, "C": 5, "CR": 9, "Cq": 6, "Q": 7, "U": 7, "V": 4},
    without=(
        *("lm_head.weight", "*_proj.bias", "*_with_mqa.bias", "*self_attn.q_proj.weight", *STACKED),
        *("layers.0.mlp.gate.*", "layers.0.mlp.shared_experts.*", "layers.0.mlp.experts.*"),
        *(name.replace("0", "1") for name in DENSE),
    ),
)
"""Of a decoder with latent attention."""


# --- configurations and records ---------------------------------------------------------------------------------------


def causal(num_heads: int, eps: float, activation: str, attention_layers: Layers, **choices: Any) -> Configuration:
    """Make the configuration of a decoder with rotary positions; choices are where it differs from Llama's."""
    plain: dict[str, Any] = {"norm_order": "pre", "norm": "rms_norm", "positions": "none", "target_mask": "causal"}
    options = plain | choices
    return Configuration(
        num_heads, norm_eps=eps, activation=activation, attention_layers=tuple(attention_layers), **options
    )


def llama_configuration(
    *,
    num_heads: int,
    key_heads: int,
    eps: float = 1e-6,
    activation: str = "silu",
    attention_layers: Layers = ROTATING,
    empty_rows: str = "zero",
) -> Configuration:
    """key_heads: heads of keys and values.

    eps and activation: rms_norm_eps and hidden_act of the checkpoint's configuration. attention_layers: how each layer
    rotates queries and keys, and how far it looks, as in `Configuration`.

    empty_rows: what a position gets that may attend to nothing, as padding before the first token. transformers 5.23
    gives what "zero" says with its default attention, and with attn_implementation="eager" what "mean" does.
    """
    return causal(num_heads, eps, activation, attention_layers, empty_rows=empty_rows)


def language_model_variant(
    table: Table, configuration: Callable[..., Configuration], example: Example = EXAMPLE
) -> Variant:
    """Make the record's variant of a language model."""
    return Variant(
        structure=LanguageModel,
        table=table,
        configuration=configuration,
        called_with="tokens, `key_padding`",
        gives="logits [B, T, vocabulary]",
        heads_share="",
        example=example,
    )


def decoder_dialect(
    name: str,
    about: str,
    source: str,
    *block: Table,
    layers: Computed,
    defaults: Mapping[str, Mapping[str, Any]],
    configuration: Callable[..., Configuration] = llama_configuration,
    keys: Mapping[str, str | Computed] | None = None,
    fixed: Mapping[str, Any] | None = None,
    entries: Mapping[str, str] = ATTENTION_BIAS,
    sizes: Mapping[str, str] = SIZES,
    computed_sizes: Mapping[str, Computed] | None = None,
    renamed: Mapping[str, str] | None = None,
    ignored: tuple[str, ...] = (),
    without_effect: tuple[str, ...] = (),
    example: Example = EXAMPLE,
    ignored_layers: tuple[str, ...] = (),
    routed: Computed | None = None,
    marks: tuple[str, ...] = (),
    check: Callable[[Reader, Mapping[str, Any]], None] | None = None,
) -> Dialect:
    """Make the record of a language model that is built as Llama is.

    Args:
        name, about, source: of the record.
        *block: the rows of a block.
        layers: the hyperparameter attention_layers, out of config.json.
        defaults: by model_type and key, what is meant where config.json does not say; these are its families.
        configuration: a function of the hyperparameters.
        keys: of `ConfigFile.keys`, beside those of `KEYS` that the configuration takes.
        fixed: of `ConfigFile.fixed`, beside `CAUSAL`.
        entries, sizes, computed_sizes, renamed, ignored, ignored_layers, without_effect, routed: of the record.
        example, marks, check: of the variant.
    """
    every_key = KEYS | {"attention_layers": layers} | dict(keys or {})
    taken = inspect.signature(configuration).parameters
    config = ConfigFile(
        families={family: {} for family in defaults},
        keys={name: key for name, key in every_key.items() if name in taken},
        defaults=defaults,
        fixed=CAUSAL | dict(fixed or {}),
        sizes=sizes,
        computed_sizes=dict(computed_sizes or {}),
        entries=entries,
        routed=routed,
        tied=Tied("lm_head.weight"),
        without_effect=without_effect,
    )
    variant = replace(language_model_variant(language_model(*block), configuration, example), marks=marks, check=check)
    return Dialect(
        name=name,
        about=about,
        source=source,
        variants=(variant,),
        prefixes=("model.",),
        renamed=dict(renamed or {}),
        ignored=ignored,
        ignored_layers=ignored_layers,
        config=config,
    )


def latent_dialect(name: str, about: str, source: str, *, choice_bias: bool = False, **options: Any) -> Dialect:
    """Make the record of a language model that is built as DeepSeek's are.

    Args:
        name, about, source: of the record.
        choice_bias: whether the router has one (MOE-2).
        **options: of `decoder_dialect`; keys are those beside `LATENT_KEYS`.
    """
    keys = LATENT_KEYS | options.pop("keys")
    return decoder_dialect(
        name,
        about,
        source,
        latent_heads(),
        require_entry("mlp.up_proj.weight", gated()),
        mixture("M", everywhere=False, choice_bias=choice_bias, shared="S"),
        NORMS_BEFORE,
        keys=keys,
        entries=LATENT_ENTRIES,
        sizes=LATENT_SIZES,
        computed_sizes=LATENT_WIDTHS,
        without_effect=(*ROUTER_TRAINING, *LATENT_WITHOUT_EFFECT),
        example=LATENT_EXAMPLE,
        ignored_layers=("eh_proj.weight",),  # which predict the tokens after the next one, for training
        routed=UPPER_EXPERTS,
        check=check_query_bias,
        **options,
    )


def separate_heads(bias: bool | str = HEADS_BIASED, output_bias: bool | str = HEADS_BIASED) -> Table:
    """Write the rows of an attention with four projections.

    Args:
        bias: of queries, keys and values, as in `linear`.
        output_bias: of the output.
    """
    return each(
        "self_attn.",
        "self_attention.",
        linear("q_proj", "query", "E", "num_heads * D", bias=bias),
        linear("k_proj", "key", "E", "key_heads * D", bias=bias),
        linear("v_proj", "value", "E", "key_heads * D", bias=bias),
        linear("o_proj", "output", "num_heads * D", "E", bias=output_bias),
    )


def head_norms(queries: str = "D", keys: str = "D") -> Table:
    """Write the rows of the norms of queries and keys, of these sizes."""
    return each(
        "self_attn.",
        "self_attention.",
        norm("q_norm", "query_norm", size=queries, biased=False),
        norm("k_norm", "key_norm", size=keys, biased=False),
    )


def gated(bias: bool | str = False) -> Table:
    """Write the rows of a gated feed-forward network."""
    return each(
        "mlp.",
        "feed_forward.",
        linear("gate_proj", "gate", "E", "F", bias=bias),
        linear("up_proj", "inner", "E", "F", bias=bias),
        linear("down_proj", "outer", "F", "E", bias=bias),
    )


def require_entry(name: str, *rows: Table) -> Table:
    """Give rows the condition that their layer has an entry of this name; for layers of several kinds."""
    return tuple(row._replace(when=(name,)) for row in table(*rows))


GATED_NAMES = ("gate_proj", "up_proj", "down_proj")
"""Of the projections gate, inner and outer of a gated feed-forward network."""


def experts(module: str, inner: str, names: tuple[str, ...]) -> Table:
    """Write the rows of gated experts, as files have them, an entry for each expert, or stacked as modules have them.

    Args:
        module: the name of the mixture in a layer.
        inner: the name of an expert's inner width.
        names: of gate, inner and outer projection of an expert.
    """
    own = each(
        f"{module}.experts.{{X}}.",
        "feed_forward.experts.",
        linear(names[0], "gate[{X}]", "E", inner, bias=False),
        linear(names[1], "inner[{X}]", "E", inner, bias=False),
        linear(names[2], "outer[{X}]", inner, "E", bias=False),
    )
    sides = ("feed_forward.experts.gate.weight", "feed_forward.experts.inner.weight")
    outer, together = "feed_forward.experts.outer.weight", f"{module}.experts.gate_up_proj"
    stacked = (
        Row(together, sides, ("X", f"2 * {inner}", "E"), turned=True, stacked=True),
        Row(f"{module}.experts.down_proj", outer, ("X", "E", inner), turned=True, stacked=True),
    )
    single = f"{module}.experts.*.{names[2]}.weight"
    whole = tuple(row._replace(unless=(single,)) for row in require_entry(together, stacked))
    return table(require_entry(single, own), whole)


def mixture(
    inner: str = "F",
    *,
    everywhere: bool = True,
    choice_bias: bool = False,
    shared: str = "",
    module: str = "mlp",
    names: tuple[str, ...] = GATED_NAMES,
) -> Table:
    """Write the rows of a mixture of gated experts.

    Args:
        inner: the name of an expert's inner width.
        everywhere: whether all layers have one.
        choice_bias: whether the router has one (MOE-2).
        shared: the name of the shared expert's inner width; empty where there is none.
        module, names: as in `experts`.
    """
    router = linear(f"{module}.gate", "feed_forward.router", "E", "X", bias=False)
    bias = array(f"{module}.gate.e_score_correction_bias", "feed_forward.choice_bias", "X")
    every = each(
        f"{module}.shared_experts.",
        "feed_forward.shared.",
        linear(names[0], "gate", "E", shared, bias=False),
        linear(names[1], "inner", "E", shared, bias=False),
        linear(names[2], "outer", shared, "E", bias=False),
    )
    parts = table(router, bias if choice_bias else (), every if shared else ())
    return table(parts if everywhere else require_entry(f"{module}.gate.weight", parts), experts(module, inner, names))


def check_query_bias(read: Reader, given: Mapping[str, Any]) -> None:
    """Miss the bias of compressed queries where latent attentions have others: a row has one condition."""
    if read.has_any((LATENT_BIASES,)) and read.has_any((COMPRESSED,)) and not read.has_any((COMPRESSED_BIAS,)):
        read.problems.append("self_attn.q_a_proj.bias is missing, and other projections have a bias")


def latent_heads() -> Table:
    """Write the rows of latent attention, whose queries may be compressed too."""
    bias, direct = LATENT_BIASES, linear("q_proj", "query", "E", "num_heads * Q", bias=False)
    return each(
        "self_attn.",
        "self_attention.",
        tuple(row._replace(unless=(COMPRESSED,)) for row in direct),
        require_entry(
            COMPRESSED,
            linear("q_a_proj", "query_down", "E", "Cq", bias=False),
            norm("q_a_layernorm", "query_norm", size="Cq", biased=False),
            linear("q_b_proj", "query", "Cq", "num_heads * Q", bias=False),
        ),
        require_entry(COMPRESSED_BIAS, array("q_a_proj.bias", "query_down.bias", "Cq")),
        linear("kv_a_proj_with_mqa", "key_value_down", "E", "CR", bias=bias),
        norm("kv_a_layernorm", "key_value_norm", size="C", biased=False),
        linear("kv_b_proj", "key_value_up", "C", "num_heads * U", bias=False),
        linear("o_proj", "output", "num_heads * V", "E", bias=bias),
    )


def norms(**paths: str) -> Table:
    """Write the rows of a block's norms without bias: by their names, the paths."""
    return table(*(norm(theirs, ours, biased=False) for theirs, ours in paths.items()))


def language_model(*block: Table) -> Table:
    """Write the table of a language model: tokens, blocks, a norm without bias, and an output that may be tied.

    Args:
        *block: the rows of a block.
    """
    return table(
        array("embed_tokens.weight", "decoder.embedding.tokens", "vocabulary", "E"),
        each("layers.{i}.", "decoder.blocks.{i}.", *block),
        norm("norm", "decoder.norm", biased=False),
        output_or("embed_tokens.weight"),
    )


def output_or(tokens: str, output: str = "lm_head.weight") -> Table:
    """Write the rows of an output layer that is the token table where the checkpoint has none."""
    return (
        Row(output, "output.weight", ("vocabulary", "E"), turned=True, when=(output,)),
        Row(tokens, "output.weight", ("vocabulary", "E"), turned=True, unless=(output,)),
    )


NORMS_BEFORE = norms(input_layernorm="self_attention_norm", post_attention_layernorm="feed_forward_norm")
"""Of a block, before each sublayer; the second one's name tells what comes before it."""

NORMS_AROUND = norms(
    input_layernorm="self_attention_norm",
    post_attention_layernorm="self_attention_output_norm",
    pre_feedforward_layernorm="feed_forward_norm",
    post_feedforward_layernorm="feed_forward_output_norm",
)
"""Of a block, before and after each sublayer."""
