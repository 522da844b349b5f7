"""KerasHub: its BertBackbone, filled by its own converter of Hugging Face's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras_hub.src.utils.transformers import convert_bert
from keras_hub.src.utils.transformers.safetensor_utils import SafetensorLoader


class Entries(SafetensorLoader):
    """Gives entries in the place of a file of safetensors. What the pooler has is not in every checkpoint: zeros."""

    def __init__(self, state_dict: Mapping[str, np.ndarray], width: int) -> None:
        self.prefix = None  # and no file, which the loader's own constructor looks for
        pooler = {"pooler.dense.weight": np.zeros((width, width)), "pooler.dense.bias": np.zeros(width)}
        self.state_dict = pooler | dict(state_dict)

    def get_tensor(self, hf_weight_key: str) -> np.ndarray:
        return self.state_dict[self.get_prefixed_key(hf_weight_key, self.state_dict)]


def build_bert(config: dict[str, Any], state_dict: Mapping[str, np.ndarray]) -> Callable[..., Any]:
    backbone = convert_bert.backbone_cls(**convert_bert.convert_backbone_config(config), dropout=0.0)
    convert_bert.convert_weights(backbone, Entries(state_dict, config["hidden_size"]), config)

    def encode(tokens: Any, key_padding: Any = None, token_types: Any = None) -> Any:
        inputs = {
            "token_ids": tokens,
            "segment_ids": keras.ops.zeros_like(tokens) if token_types is None else token_types,
            "padding_mask": keras.ops.ones_like(tokens) if key_padding is None else key_padding,
        }
        return backbone(inputs)["sequence_output"]

    return encode
