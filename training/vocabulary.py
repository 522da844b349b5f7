"""The most frequent words, and texts as their numbers: lower case, split at spaces, cut at a maximum length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNKNOWN, PADDING = 0, 1
SPECIAL = ["<unk>", "<pad>"]
"""In the order of their numbers."""


def build(texts: Iterable[str], size: int, longest: int) -> Any:
    """Make a tokenizer of the most frequent words of texts, which are cut after the `longest` words.

    size: how many entries it has at most, with the two for unknown words and padding.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.enable_truncation(longest)
    return tokenizer


def read(path: Path) -> Any:
    """Read the file of a tokenizer.

    Raises:
        ValueError: for a file that is none, or has no numbers for unknown words and padding.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(f"{path} cannot be read as a vocabulary: {error}") from error
    if [tokenizer.id_to_token(number) for number in (UNKNOWN, PADDING)] != SPECIAL:
        raise ValueError(f"{path} does not begin with {' and '.join(SPECIAL)}")
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array(one.ids, np.int64) for one in tokenizer.encode_batch_fast(list(texts))]
