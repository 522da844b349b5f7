"""The encoder of any ViT checkpoint with Hugging Face's names.

An image is cut into patches, each of which a projection makes an embedding; a class token comes first, and a learned
position is added to each. Norms come before each sublayer. What stands on top of the encoder (pooler, classifier) is
part of the file and not of the hidden states.

Positions belong to the grid of patches of the image_size that the model was trained with, and no entry says how wide it
is. Images of another shape with as many patches are read row by row all the same.
"""

from __future__ import annotations

import numpy as np

from specification.configuration import Configuration
from specification.loading.record import ConfigFile, Dialect, Example, Variant
from specification.loading.table import Row, array, each, feed_forward, linear, norm, table
from specification.parameters import Encoder

PARTS = ("query", "key", "value")
BIASED = "*attention.attention.*.bias"
PATCHES = "embeddings.patch_embeddings.projection"

TABLE = table(
    array("embeddings.cls_token", "embedding.class_token", "1", "1", "E"),
    array("embeddings.position_embeddings", "embedding.positions", "1", "positions", "E"),
    (
        Row(f"{PATCHES}.weight", "embedding.patches.weight", ("E", "channels", "P", "P"), turned=True),
        Row(f"{PATCHES}.bias", "embedding.patches.bias", ("E",)),
    ),
    each(
        "encoder.layer.{i}.",
        "blocks.{i}.",
        norm("layernorm_before", "attention_norm"),
        linear("attention.attention.query", "attention.query", bias=BIASED),
        linear("attention.attention.key", "attention.key", bias=BIASED),
        linear("attention.attention.value", "attention.value", bias=BIASED),
        linear("attention.output.dense", "attention.output"),
        norm("layernorm_after", "feed_forward_norm"),
        feed_forward("intermediate.dense", "output.dense"),
    ),
    norm("layernorm", "norm"),
)


def configuration(*, num_heads: int, patch_size: int, eps: float = 1e-12, activation: str = "gelu") -> Configuration:
    """eps and activation: layer_norm_eps and hidden_act of the checkpoint's configuration."""
    return Configuration(
        num_heads=num_heads,
        norm_order="pre",
        norm_eps=eps,
        activation=activation,
        positions="none",
        patch_size=patch_size,
    )


DIALECT = Dialect(
    name="vit",
    about=__doc__,
    source="Dosovitskiy et al., ViT, 2021 (arXiv:2010.11929); `ViTModel` of Hugging Face transformers",
    variants=(
        Variant(
            structure=Encoder,
            table=TABLE,
            configuration=configuration,
            called_with="images [B, channels, height, width]",
            gives="hidden states [B, 1 + patches, E]",
            counted={"patch_size": "P"},
            example=Example(
                hyperparameters={"num_heads": 2},
                inputs={"images": np.arange(-18.0, 18.0, dtype="float32").reshape(1, 1, 6, 6) / 12},
                about="The image has one channel, and four patches.",
                sizes={"P": 3, "channels": 1},
                unread={"pooler.dense.weight": ("E", "E"), "pooler.dense.bias": ("E",)},
            ),
        ),
    ),
    prefixes=("vit.",),
    renamed={  # of a module of transformers 5, whose files keep the names of old
        **{
            f"attention.{short}_proj.": f"attention.attention.{name}." for short, name in zip("qkv", PARTS, strict=True)
        },
        "attention.o_proj.": "attention.output.dense.",
        "mlp.fc1.": "intermediate.dense.",
        "mlp.fc2.": "output.dense.",
        "layers.": "encoder.layer.",
    },
    ignored=(r"(pooler|classifier|decoder)\..*", r"embeddings\.mask_token"),
    config=ConfigFile(
        families={"vit": {}},
        keys={"num_heads": "num_attention_heads", "eps": "layer_norm_eps", "activation": "hidden_act"},
        defaults={"vit": {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "qkv_bias": True}},
        sizes={
            "hidden_size": "E",
            "intermediate_size": "F",
            "num_hidden_layers": "i",
            "num_channels": "channels",
            "patch_size": "P",
        },
        entries={"qkv_bias": "encoder.layer.0.attention.attention.query.bias"},
        without_effect=("encoder_stride", "image_size", "pooler_act", "pooler_output_size"),
    ),
)
