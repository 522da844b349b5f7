"""Reviews of films with their labels: the movie sentences of `data/`, or the layout of the original aclImdb folder."""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path
from typing import NamedTuple

LABELS = ("negative", "positive")
SENTENCES = Path(__file__).parent / "data" / "movie_sentences.tsv.xz"
HELD_OUT = 10
"""One in so many sentences is held out: those whose SHA-256's first 8 bytes, a big-endian number, divide by it."""
FOLDERS = {"neg": 0, "pos": 1}
"""Those of aclImdb, and their labels. It also has reviews without a label, in "unsup", which are not read."""


class Reviews(NamedTuple):
    """Texts, and their labels as places in `LABELS`."""

    texts: list[str]
    labels: list[int]


class Split(NamedTuple):
    training: Reviews
    held_out: Reviews


def read(folder: Path | None) -> Split:
    """Read `train/pos/*.txt`, `train/neg/*.txt`, and `test/` alike, or the movie sentences where no folder is given.

    Raises:
        ValueError: for a folder that does not have the layout of aclImdb, or has a review without a word.
    """
    return movie_sentences() if folder is None else Split(labelled(folder / "train"), labelled(folder / "test"))


def movie_sentences() -> Split:
    """Read the sentences; those with a rating above 0 are positive."""
    split = Split(Reviews([], []), Reviews([], []))
    for line in lzma.decompress(SENTENCES.read_bytes()).decode().splitlines():
        rating, text = line.split("\t")
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        part = split.held_out if number % HELD_OUT == 0 else split.training
        part.texts.append(text)
        part.labels.append(int(float(rating) > 0))
    return split


def labelled(folder: Path) -> Reviews:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: reviews are in train/pos, train/neg, test/pos and test/neg")
    strange = sorted(one.name for one in folder.iterdir() if one.is_dir() and one.name not in (*FOLDERS, "unsup"))
    if strange:
        raise ValueError(f"{folder} has the unknown label {strange[0]!r}: labels are pos and neg")
    found = Reviews([], [])
    for name, label in FOLDERS.items():
        files = sorted((folder / name).glob("*.txt"))
        if not files:
            raise ValueError(f"{folder / name} has no reviews (*.txt)")
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{file} cannot be read as text: {error}") from error
            if not text.split():
                raise ValueError(f"{file} has no words")
            found.texts.append(text)
            found.labels.append(label)
    return found
