"""Rows, keys and the whole record that the dialects of Hugging Face's decoders share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specification.configuration import AttentionLayer, Configuration
from specification.loading.record import Computed, ConfigFile, Dialect, Example, Tied, Variant
from specification.loading.rope import LAYER_KEYS, ROPE_KEYS, upper_windows
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
    ignored: tuple[str, ...] = (),
    without_effect: tuple[str, ...] = (),
) -> Dialect:
    """Make the record of a language model that is built as Llama is.

    Args:
        name, about, source: of the record.
        *block: the rows of a block.
        layers: the hyperparameter attention_layers, out of config.json.
        defaults: by model_type and key, what is meant where config.json does not say; these are its families.
        configuration: a function of the hyperparameters.
        keys: of `ConfigFile.keys`, beside `KEYS`.
        fixed: of `ConfigFile.fixed`, beside `CAUSAL`.
        entries, ignored, without_effect: of the record.
    """
    config = ConfigFile(
        families={family: {} for family in defaults},
        keys=KEYS | {"attention_layers": layers} | dict(keys or {}),
        defaults=defaults,
        fixed=CAUSAL | dict(fixed or {}),
        sizes=SIZES,
        entries=entries,
        tied=Tied("lm_head.weight"),
        without_effect=without_effect,
    )
    variant = language_model_variant(language_model(*block), configuration)
    return Dialect(
        name=name,
        about=about,
        source=source,
        variants=(variant,),
        prefixes=("model.",),
        ignored=ignored,
        config=config,
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
