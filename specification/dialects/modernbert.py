"""The encoder of any ModernBERT checkpoint with Hugging Face's names.

Norms come before each sublayer, except for the first attention, which has none. Positions are rotary; two of three
layers have a window, and another base. The feed-forward network is gated, and its two projections of the input are
fused, as those of queries, keys and values are. What stands on top of the encoder (heads for masked tokens, classes or
answers) is part of the file and not of the hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specification.configuration import AttentionLayer, Configuration
from specification.loading.decoders import TOKENS
from specification.loading.reader import Reader
from specification.loading.record import Computed, ConfigFile, Dialect, Example, Variant
from specification.loading.rope import FULL, SLIDING, alternating, kinds_of, layers_of, rotary_by_kind
from specification.loading.table import array, each, linear, norm, table
from specification.parameters import Encoder
from specification.rotary import Rotary

PROJECTIONS = tuple(f"attention.{part}" for part in ("query", "key", "value"))


ATTENTION_NORM = each("layers.{i}.", "blocks.{i}.", norm("attn_norm", "attention_norm"))

TABLE = table(
    array("embeddings.tok_embeddings.weight", "embedding.tokens", "vocabulary", "E"),
    norm("embeddings.norm", "embedding.norm", biased="*norm.bias"),
    tuple(row._replace(when=(row.theirs,)) for row in ATTENTION_NORM),
    each(
        "layers.{i}.",
        "blocks.{i}.",
        linear("attn.Wqkv", PROJECTIONS, "E", "3 * E", bias="*attn.W*.bias"),
        linear("attn.Wo", "attention.output", bias="*attn.W*.bias"),
        norm("mlp_norm", "feed_forward_norm", biased="*norm.bias"),
        linear("mlp.Wi", ("feed_forward.gate", "feed_forward.inner"), "E", "2 * F", bias="*mlp.W*.bias"),
        linear("mlp.Wo", "feed_forward.outer", "F", "E", bias="*mlp.W*.bias"),
    ),
    norm("final_norm", "norm", biased="*norm.bias"),
)


def configuration(
    *,
    num_heads: int,
    eps: float = 1e-5,
    activation: str = "gelu",
    attention_layers: tuple[AttentionLayer, ...] = (AttentionLayer(rotary=Rotary(base=160000.0)),),
    empty_rows: str = "zero",
) -> Configuration:
    """eps and activation: norm_eps and hidden_activation of the file. The others as in the dialect `llama`."""
    return Configuration(
        num_heads=num_heads,
        norm_order="pre",
        norm_eps=eps,
        activation=activation,
        empty_rows=empty_rows,
        positions="none",
        attention_layers=tuple(attention_layers),
    )


def check(read: Reader, given: Mapping[str, Any]) -> None:
    """No norm may be missing but that of the first layer."""
    biased = "layers.1.attn_norm.bias" in read.entries
    for i in range(1, read.sizes["i"]):
        for part in ("weight", "bias")[: 1 + biased]:
            if f"layers.{i}.attn_norm.{part}" not in read.entries:
                read.problems.append(f"layers.{i}.attn_norm.{part} is missing")


def layers(told: Mapping[str, Any]) -> tuple[AttentionLayer, ...]:
    """Read the layers. local_attention counts the keys on both sides of a query, and not its own."""
    kinds = kinds_of(told, alternating(told, told["global_attn_every_n_layers"], full_first=True))
    rotaries = rotary_by_kind(told, {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}, scaled=(FULL, SLIDING))
    side = told["local_attention"] // 2
    content = {**told, "sliding_window": side + 1}
    return layers_of(content, [rotaries[kind] for kind in kinds], kinds, future=side)


DIALECT = Dialect(
    name="modernbert",
    about=__doc__,
    source="Warner et al., ModernBERT, 2024 (arXiv:2412.13663); `ModernBertModel` of Hugging Face transformers",
    variants=(
        Variant(
            structure=Encoder,
            table=TABLE,
            configuration=configuration,
            called_with="tokens, `key_padding`",
            gives="hidden states [B, T, E]",
            check=check,
            example=Example(
                hyperparameters={"num_heads": 2},
                inputs={"tokens": TOKENS},
                options={"key_padding": TOKENS != 0},
                about="Token 0 is padding, and masked by key_padding.",
                sizes={"i": 2},
                without=("*.bias", "layers.0.attn_norm.weight"),
            ),
        ),
    ),
    prefixes=("model.",),
    ignored=(r"(head|decoder|classifier)\..*",),
    config=ConfigFile(
        families={"modernbert": {}},
        keys={
            "num_heads": "num_attention_heads",
            "eps": "norm_eps",
            "activation": "hidden_activation",
            "attention_layers": Computed(
                (
                    *("rope_parameters", "rope_scaling", "max_position_embeddings", "num_hidden_layers", "layer_types"),
                    *("local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
                ),
                layers,
            ),
        },
        defaults={
            "modernbert": {
                "norm_eps": 1e-5,
                "hidden_activation": "gelu",
                "local_attention": 128,
                "global_attn_every_n_layers": 3,
                "global_rope_theta": 160000.0,
                "local_rope_theta": 10000.0,
                "norm_bias": False,
                "attention_bias": False,
                "mlp_bias": False,
            }
        },
        fixed={"position_embedding_type": "absolute"},
        sizes={"hidden_size": "E", "intermediate_size": "F", "vocab_size": "vocabulary", "num_hidden_layers": "i"},
        entries={
            "norm_bias": "embeddings.norm.bias",
            "attention_bias": "layers.0.attn.Wqkv.bias",
            "mlp_bias": "layers.0.mlp.Wi.bias",
        },
        without_effect=(
            *("classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias", "tie_word_embeddings"),
            *("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"),
            *("sparse_pred_ignore_index", "sparse_prediction"),
        ),
    ),
)
