"""A GPT-NeoX language model with Hugging Face's names, such as Pythia.

Attention and feed-forward network take the same input, each through its norm, and both are added to it, unless the
checkpoint's configuration says otherwise. A part of each head's columns is rotated. The projection of queries, keys and
values is fused head by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specification.configuration import AttentionLayer, Configuration
from specification.loading.decoders import CAUSAL, EXAMPLE, SIZES, causal, language_model_variant, output_or
from specification.loading.record import Computed, ConfigFile, Dialect, Tied
from specification.loading.rope import ROPE_KEYS, layers_of, rotary_of
from specification.loading.table import array, each, feed_forward, linear, norm, table
from specification.rotary import Rotary

NEOX_ROPE_KEYS = (*(key for key in ROPE_KEYS if key != "rope_theta"), "rotary_emb_base", "rotary_pct")
BIASED = "*attention.*.bias"
PROJECTIONS = tuple(f"self_attention.{part}" for part in ("query", "key", "value"))

TABLE = table(
    array("embed_in.weight", "decoder.embedding.tokens", "vocabulary", "E"),
    each(
        "layers.{i}.",
        "decoder.blocks.{i}.",
        norm("input_layernorm", "self_attention_norm"),
        linear("attention.query_key_value", PROJECTIONS, "E", "num_heads * 3 * D", bias=BIASED),
        linear("attention.dense", "self_attention.output", "num_heads * D", "E", bias=BIASED),
        norm("post_attention_layernorm", "feed_forward_norm"),
        feed_forward("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    ),
    norm("final_layer_norm", "decoder.norm"),
    output_or("embed_in.weight", "embed_out.weight"),
)


def configuration(
    *,
    num_heads: int,
    eps: float = 1e-5,
    activation: str = "gelu",
    attention_layers: tuple[AttentionLayer, ...] = (AttentionLayer(rotary=Rotary()),),
    parallel: bool = True,
    empty_rows: str = "zero",
) -> Configuration:
    """As in the dialect `llama`, with layer_norm_eps; parallel: use_parallel_residual of the configuration.

    How many columns are rotated is a part of attention_layers, and rotary_pct of the checkpoint's configuration.
    """
    return causal(
        num_heads,
        eps,
        activation,
        attention_layers,
        norm_order="parallel" if parallel else "pre",
        norm="layer_norm",
        empty_rows=empty_rows,
    )


def layers(told: Mapping[str, Any]) -> tuple[AttentionLayer, ...]:
    """Read the layers, which are alike."""
    rotary = rotary_of(told, base=told["rotary_emb_base"], share=told["rotary_pct"])
    return layers_of({**told, "sliding_window": None}, rotary)


DIALECT = Dialect(
    name="gpt_neox",
    about=__doc__,
    source="Black et al., GPT-NeoX-20B, 2022 (arXiv:2204.06745); `GPTNeoXForCausalLM` of Hugging Face transformers",
    variants=(
        language_model_variant(
            TABLE,
            configuration,
            replace(
                EXAMPLE,
                hyperparameters={"num_heads": 4, "attention_layers": (AttentionLayer(rotary=Rotary(width=2)),)},
                without=("embed_out.weight",),
            ),
        ),
    ),
    prefixes=("gpt_neox.",),
    renamed={"lm_head.": "embed_out."},
    ignored=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),  # tables, computed here
    config=ConfigFile(
        families={"gpt_neox": {}},
        keys={
            "num_heads": "num_attention_heads",
            "eps": "layer_norm_eps",
            "activation": "hidden_act",
            "attention_layers": Computed((*NEOX_ROPE_KEYS, "num_hidden_layers"), layers),
            "parallel": "use_parallel_residual",
        },
        defaults={
            "gpt_neox": {
                "layer_norm_eps": 1e-5,
                "hidden_act": "gelu",
                "rotary_emb_base": 10000.0,
                "rotary_pct": 0.25,
                "use_parallel_residual": True,
                "attention_bias": True,
                "tie_word_embeddings": False,
            }
        },
        fixed=CAUSAL,
        sizes=SIZES,
        entries={"attention_bias": "layers.0.attention.query_key_value.bias"},
        tied=Tied("embed_out.weight"),
        without_effect=("is_decoder",),
    ),
)
