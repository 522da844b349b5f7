"""Numbers written out in words in two languages: parallel sentences as many as one likes, and true ones.

num2words writes them. A token is a word together with the space, hyphen or comma before it, so that the tokens of a
sentence, one after the other, are the sentence. German writes a number as one word: its tokens are the parts.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache

import numpy as np

LIMIT = 1_000_000
"""Numbers are smaller than this."""
FEW = 100
TENTH = 26
"""Of 256 values of a hash."""

WORD = r"[^\s,-]+"
PARTS = {
    "de": (
        "null|eins|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf|sechzehn|siebzehn|zwanzig|dreißig|sechzig"
        "|siebzig|ein|und|zig|hundert|tausend"
    )
}
"""By language: the parts of which words are made."""


@cache
def pattern(language: str) -> re.Pattern[str]:
    """Of one token."""
    parts = sorted(PARTS[language].split("|"), key=len, reverse=True) if language in PARTS else []
    return re.compile(rf"[\s,-]*(?:{'|'.join([*parts, WORD])})")


@cache
def in_words(number: int, language: str) -> str:
    from num2words import num2words

    return str(num2words(number, lang=language)).lower()


def tokens(text: str, language: str) -> list[str]:
    """Split a sentence; the tokens one after the other are the sentence in lower case."""
    return pattern(language).findall(text.lower().strip())


def held_out(number: int) -> bool:
    """Tell whether a number is for the test: a tenth of them, by a hash that does not depend on anything else.

    Those below FEW, which have words of their own, are not.
    """
    return number >= FEW and hashlib.sha256(str(number).encode()).digest()[0] < TENTH


def drawn_numbers(rng: np.random.Generator, count: int, *, test: bool, limit: int = LIMIT) -> list[int]:
    """Draw different numbers below the limit, as many of each length as there are, shared equally; in random order.

    count: how many; fewer where there are no more. test: those that are held out, or the others.
    """
    found: list[int] = []
    lengths = range(1, len(str(limit - 1)) + 1)
    for length in lengths:
        share = (count - len(found)) // (lengths[-1] - length + 1)
        low, high = 10 ** (length - 1) * (length > 1), min(10**length, limit)
        # Of ten numbers one is held out: with twelve times as many there are enough of either kind.
        chosen = rng.choice(high - low, min(high - low, 12 * share + 100), replace=False) + low
        found += [int(n) for n in chosen if held_out(int(n)) == test][:share]
    return [found[place] for place in rng.permutation(len(found))]
