"""The tokens of either language, and sentences as their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from training.batches import padded
from training.task import Batch
from training.translation.numbers import tokens

SPECIAL = ("<pad>", "<start>", "<end>")
PADDING, START, END = range(3)


class Vocabulary(NamedTuple):
    """Of one language; words begin with the special ones."""

    language: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, language: str, sentences: Iterable[str]) -> Vocabulary:
        """Every token that occurs, in the order of the alphabet."""
        return cls(language, (*SPECIAL, *sorted({t for sentence in sentences for t in tokens(sentence, language)})))

    def encode(self, sentence: str) -> list[int]:
        """The numbers of a sentence's tokens, and the end.

        Raises:
            ValueError: for a token that the vocabulary does not have, and for a sentence without any.
        """
        numbers = {word: number for number, word in enumerate(self.words)}
        found = tokens(sentence, self.language)
        unknown = [token for token in found if token not in numbers]
        if unknown or not found:
            what = f"unknown word {unknown[0].strip()!r}" if unknown else "no words"
            raise ValueError(f"{sentence!r} has {what}: the model translates numbers written out in {self.language!r}")
        return [*(numbers[token] for token in found), END]

    def decode(self, numbers: Iterable[int]) -> str:
        """The sentence, up to its end."""
        return "".join(self.pieces(numbers))

    def pieces(self, numbers: Iterable[int]) -> list[str]:
        """The tokens up to the end."""
        kept = takewhile(lambda number: number != END, numbers)
        return [self.words[number] for number in kept if number >= len(SPECIAL)]


class Vocabularies(NamedTuple):
    """Of both languages. longest: the tokens of the longest sentence of the target, with its end."""

    source: Vocabulary
    target: Vocabulary
    longest: int

    @property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.source.words, self.target.words

    def to_str(self) -> str:
        return json.dumps({"longest": self.longest, **{name: getattr(self, name)._asdict() for name in LANGUAGES}})

    @classmethod
    def read(cls, path: Path) -> Vocabularies:
        """Read what `to_str` has made.

        Raises:
            ValueError: for a file that holds something else.
        """
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            source, target = (Vocabulary(told[name]["language"], tuple(told[name]["words"])) for name in LANGUAGES)
            longest = int(told["longest"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read as vocabularies: {error}") from error
        if any(one.words[: len(SPECIAL)] != SPECIAL for one in (source, target)):
            raise ValueError(f"{path}: the words of a language must begin with {', '.join(SPECIAL)}")
        return cls(source, target, longest)


LANGUAGES = ("source", "target")


def batch_of(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], lengths: tuple[int, int]) -> Batch:
    """A batch of encoded sentences, padded to two lengths. The decoder is given what comes before each token."""
    before = [[START, *target[:-1]] for target in targets]
    source, given, due = (
        padded(rows, length, PADDING)
        for rows, length in ((sources, lengths[0]), (before, lengths[1]), (targets, lengths[1]))
    )
    return Batch((source, given), due)
