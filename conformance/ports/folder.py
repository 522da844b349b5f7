"""A folder of Hugging Face's as a checkpoint to judge a port on, and small configs with its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from conformance.ports.checkpoints import Checkpoint, Config, read_checkpoint, read_hyperparameters
from conformance.ports.configs import list_configs
from specification.checkpoints import flatten
from specification.dialects import DIALECTS
from specification.loading.folder import config_of, weights_of

COUNTS = (
    *("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads", "head_dim", "d_kv"),
    *("max_position_embeddings", "n_positions", "image_size", "patch_size", "layer_types", "query_pre_attn_scalar"),
)
"""Keys that are sizes, or go with them, beside those that a dialect's record names."""
WINDOW = 4


def read_folder(dialect: str, folder: str | Path) -> Checkpoint:
    """Return the checkpoint of a folder, without entries that no model of the dialect reads, such as a pooler's.

    Raises:
        FileNotFoundError, ValueError: what is not there, or does not fit the dialect.
    """
    config = config_of(Path(folder))
    entries = {name: np.asarray(array, np.float32) for name, array in weights_of(Path(folder)).items()}
    whole = read_checkpoint(dialect, config, entries)
    read = np.zeros(len(whole.values), bool)
    for places in flatten(whole.places).values():
        read[places] = True
    used = whole.split_entries(read)
    return read_checkpoint(dialect, config, {name: array for name, array in entries.items() if used[name].any()})


def shrink_config(dialect: str, folder: str | Path) -> Config:
    """Return a small config with the options of a folder's: activation, eps, rotary embedding, and so on.

    A window is as small as the sequences that are drawn. Where rotary factors belong to a width of heads, that stays.
    """
    record, config = DIALECTS[dialect], config_of(Path(folder))
    if record.config is None or config["model_type"] not in record.config.families:
        raise ValueError(f"{folder} is a model of {config['model_type']}, and dialect {dialect} reads others")
    small = list_configs(dialect)[0]
    sizes = {*record.config.sizes, *COUNTS}
    found: dict[str, Any] = {key: value for key, value in config.items() if key not in sizes}
    found |= {key: value for key, value in small.items() if key in sizes}
    if found.get("sliding_window"):
        found["sliding_window"] = WINDOW
    heads, shared = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if shared is not None and "num_attention_heads" in found:
        count = found["num_attention_heads"]
        found["num_key_value_heads"] = count if shared == heads else 1 if shared == 1 else max(count // 2, 1)
    if config.get("layer_types"):
        found["layer_types"] = config["layer_types"][: found["num_hidden_layers"]]
    read_hyperparameters(record, found)
    return found
