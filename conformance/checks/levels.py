"""Levels of the rules, and the profiles that they make.

A finding has a level. A profile asks for everything at its level and below: `robust` asks for what is `core` or
`robust`. `WHOLE` and the levels of probes and checks are what the judge reads; SPEC.md is written from `WHOLE` and
`PARTS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from specification import RULES
from specification.rules import MODEL_RULES, Rule

CORE, ROBUST, STRICT = LEVELS = ("core", "robust", "strict")
"""From the lowest: what a model needs to compute the right numbers, what real data needs, what a reference keeps."""
DEFAULT = ROBUST
"""The profile that decides a verdict unless another is chosen."""


class Part(NamedTuple):
    """A part of a rule that has another level than the rest, in words.

    The level of a probe tells it from the rest where it is about that probe's cases; elsewhere checks or error bounds
    do.
    """

    rule: str
    level: str
    what: str


WHOLE = dict.fromkeys(("MASK-7", "ATT-4", "ATT-6", "ATT-10", "NORM-5", "DIST-5"), ROBUST)
"""Rules that have no part in the core. Every other rule is core, but for `PARTS`, and for the calls that it refuses."""

PARTS = (
    Part("ATT-5", ROBUST, "sinks of -inf, or far from the scores"),
    Part("ATT-8", ROBUST, "lengths of 0"),
    Part("ATT-9", STRICT, "weights of 16-bit inputs in float32"),
    Part("ATT-13", STRICT, "the same bits twice"),
    Part("ATT-14", ROBUST, "log-sum-exps far from 0"),
    Part("MLA-1", ROBUST, "NaN in tokens, and no tokens"),
    Part("MLA-1", STRICT, "weights of 16-bit inputs in float32, angles to more digits than float64 has"),
    Part("MLA-2", ROBUST, "NaN in tokens, and no tokens"),
    Part("MLA-2", STRICT, "as MLA-1"),
    Part("NORM-3", STRICT, "the bias exactly, not just within the bound of any other row"),
    Part("NORM-7", STRICT, "constant rows as in NORM-3"),
    Part("NORM-7", ROBUST, "gradients in constant rows"),
    Part("POS-6", STRICT, "edges of buckets where logarithms in floating point err"),
    Part("FFN-2", STRICT, "the activation not rounded to 16 bits before the product"),
    Part("ACT-1", ROBUST, "NaN and infinity"),
    Part("ACT-1", STRICT, "results whose sigmoid is below the normal numbers"),
    Part("POS-3", ROBUST, "NaN and infinity"),
    Part("POS-3", STRICT, "angles to more digits than float64 has at long positions"),
    Part("LOSS-1", ROBUST, "no target that counts"),
    Part("LOSS-1", ROBUST, "NaN and infinity"),
    Part("LOSS-1", STRICT, "logits far from 0, whose log-sum-exp as one number loses digits"),
    Part("LOSS-2", ROBUST, "no target that counts"),
    Part("LOSS-2", ROBUST, "NaN and infinity"),
    Part("MOE-2", ROBUST, "NaN and infinity, no token"),
    Part("MOE-2", STRICT, "of equal scores the lower index"),
    Part("MOE-4", ROBUST, "NaN in experts that nobody chose"),
    Part("MOE-4", STRICT, "the gate's activation not rounded to 16 bits before the product"),
    Part("MOE-5", ROBUST, "NaN and infinity, no token"),
    Part("MOE-6", ROBUST, "NaN and infinity, no token"),
    Part("OPT-1", ROBUST, "NaN, infinity, squares near the ends of the range"),
    Part("OPT-1", STRICT, "1 - beta and 1 - beta^t to their last digits"),
    Part("OPT-2", ROBUST, "NaN and infinity"),
    Part("OPT-3", ROBUST, "NaN, infinity, squares that leave the range"),
)


def rank(level: str) -> int:
    return LEVELS.index(level)


def higher(one: str, other: str) -> str:
    return max(one, other, key=rank)


def is_required(level: str, profile: str) -> bool:
    """Whether the profile asks for what has this level."""
    return rank(level) <= rank(profile)


def least_level(rule: str, of_probe: str = CORE) -> str:
    """The lowest level that a violation of the rule can have. of_probe: the level of the rule's probe that found it."""
    return higher(WHOLE.get(rule, CORE), of_probe)


def lowest_levels(broken: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Of each rule the lowest level at which it is broken. broken: pairs of a rule and a level."""
    lowest: dict[str, str] = {}
    for rule, level in broken:
        lowest[rule] = min(lowest.get(rule, level), level, key=rank)
    return lowest


def highest_profile(broken: Iterable[str]) -> str | None:
    """The highest profile that asks for none of the broken levels; None if not even the lowest is kept."""
    lowest = min(map(rank, broken), default=len(LEVELS))
    return LEVELS[lowest - 1] if lowest else None


def describe_levels(rule: str, refuses: bool) -> str:
    """The levels of a rule and its parts in words, for SPEC.md. refuses: whether there are calls that it refuses."""
    whole, parts = WHOLE.get(rule, CORE), [*(part for part in PARTS if part.rule == rule)]
    words = {level: [part.what for part in parts if part.level == level] for level in LEVELS}
    if refuses and whole == CORE:
        words[ROBUST].append("refused calls")
    return "; ".join([whole, *(f"{level}: {', '.join(what)}" for level, what in words.items() if what)])


# --- the rules that are judged ----------------------------------------------------------------------------------------


CONTRACT = Rule(
    "CALL",
    "contract",
    "The function takes the operation's arguments, returns its framework's arrays, in time, and prints nothing.",
)
JUDGED = {CONTRACT.id: CONTRACT} | RULES
EVERY_RULE = JUDGED | MODEL_RULES
"""With those of whole models, which have no probes of single operations."""
STATE_RULE = "ATT-13"
"""The rule of what results must not depend on: earlier calls, chance, memory layouts."""
ISOLATION_RULE, NO_ISOLATION = "MASK-7", {"isolation": "finite"}
"""The rule of what stands behind a mask, and the convention under which a subject promises nothing of it."""
