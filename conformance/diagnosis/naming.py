"""Diagnoses for all violations."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from conformance.cases.case import Case
from conformance.cases.expectations import allowed_pairs
from conformance.checks.check import Check
from conformance.checks.findings import Finding, KnownMistake
from conformance.checks.results import NO_DIAGNOSIS, WRONG_IN, Results, Violation
from conformance.diagnosis.matches import BY_NAN, DIAGNOSIS, DOUBTING, EXTENT
from conformance.diagnosis.matching import BACKWARD_ONLY, MOST, PROJECTIONS, kind
from conformance.diagnosis.memory import STRIDES, because_of_memory
from conformance.diagnosis.precision import AT_MOST
from conformance.runner.in_process import JudgeError, Runner
from conformance.runner.shrinking import call

PARAMETER = re.compile(r" \((blocks of \d+ [ a-z]+|from part \d+ on|a row is filled up to [^)]*|-?[.e\d][-+.e\d]*)\)$")
"""In which mistakes of one family differ."""
MULTIPLE = re.compile(r"^(.*) is (\S+) times what it must be")
FACTOR = re.compile(rf"{MULTIPLE.pattern} \((.*)\)$")
"""Of what, the factor, and its reasons."""
AMONG_ELEMENTS = re.compile(r"batch element")
AMONG_HEADS = re.compile(r"\b(head 0|each head|query head)\b")
IN_A_GROUP = re.compile(r"query heads? .*\bgroup\b|\bgroup's$")
"""Mistakes that mix up batch elements, heads, or the query heads of a group."""
MOVED = "wrong elements hold what stands "
"""How names of results in another place begin."""
DIGITS = 1e-2
"""A number of which one digit may be rounded is off by less; 16 bits hold as many digits."""
HIDDEN = re.compile(r"\bwhose (?:first|last) (?:(\d+) keys are|key is) hidden\b")
"""In how many keys of a row that are hidden."""
WITHOUT_NUMBERS = re.compile(r"\bNaN\b|\boverflow")
"""Mistakes that make no wrong number."""
OF_DIGITS = re.compile(r"\b(round|added up|float\d+\b|bfloat16|16 bits)|^perhaps")
"""Mistakes that lose digits."""
OUTPUT_CONFORMS = re.compile(rf"^{WRONG_IN}[^;]*; .*\boutput\b")


def diagnosed(results: Results, runner: Runner) -> None:
    """Add to every violation the known mistakes that its case's answers match, and which of its results are wrong.

    Of several mistakes those come first that match most violations. NaN and infinity match too much: of their cases
    those alone that match another violation too, or else what they show by themselves.
    """
    lines = {key: diagnosis(violation, runner) for key, violation in results.violations.items()}
    special = {key for key in lines if getattr(results.violations[key].case, "special", False)}
    often = Counter(family(name) for key, found in lines.items() if key not in special for name in set(found))
    for key, found in lines.items():
        names = [line for line in found if not line.startswith(WRONG_IN)]
        if key in special:
            names = [name for name in names if often[family(name)]] or [name for name in names if name in BY_NAN]
        last = [line for line in found if line.startswith(WRONG_IN)]
        ordered = sorted(names, key=lambda name: -often[family(name)])[:MOST]
        results.violations[key] = replace(results.violations[key], diagnosis=(*ordered, *last))


def diagnosis(violation: Violation, runner: Runner) -> tuple[str, ...]:
    """Names of mistakes, or why there are none. No verdict depends on them; the rule of a peer's rounding does."""
    try:
        return names_of(violation, runner)
    except JudgeError as error:
        return (f"{NO_DIAGNOSIS}{error}",)


def names_of(violation: Violation, runner: Runner) -> tuple[str, ...]:
    """Names of mistakes; none where nothing known matches, or nothing was answered.

    A name must explain the case before it was cut down, too. Where the smaller one is too small to tell anything, or
    one of the two tells no more than what may be, the larger one does. Where nothing explains that, which may be wrong
    in several ways at once, others like the smaller one must be explained. A smaller case whose output is wrong may be
    reached from one whose gradients alone are wrong (an exponential that is nearly lost makes NaN there): then its name
    counts if it is the only one.
    """
    if violation.finding.kind != "value" or violation.example is None:  # no numbers that could be compared
        return ()
    if because_of_memory(runner, violation.check, violation.example, violation.finding.level):
        return (STRIDES,)
    found = asked(violation, violation.example, runner)
    names = tuple(line for line in found if not line.startswith(WRONG_IN))
    if violation.uncut is not None and not violation.case.special:  # 0 * NaN hides a mistake among many numbers
        larger = asked(violation, violation.uncut, runner)
        before = tuple(n for n in larger if not n.startswith(WRONG_IN))
        certain = explaining(names, before) or tuple(
            n for n in replacing(violation, names, before) if may_hold(n, violation)
        )
        if not certain and shows_more(violation, names, larger):
            certain = names
        elif not certain and not before and not all(name.startswith(AT_MOST) for name in names):
            others = asked(violation, violation.example, runner, DOUBTING)
            certain = tuple(name for name in names if name in others)
        names = certain
    return (*in_families(names), *(line for line in found if line.startswith(WRONG_IN)))


def replacing(violation: Violation, names: tuple[str, ...], before: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the larger case where the smaller one has none, or one of the two has no more than hints.

    A smaller case that is clearly wrong refutes names that do not explain it. A factor may explain it though it has
    none: one number is too little to tell a factor by. Nor does it show where its number comes from.
    """
    if not any(all(name.startswith(AT_MOST) for name in several) for several in (names, before)):
        return ()
    if names or violation.loses_digits:
        return before
    return tuple(name for name in before if name.startswith(MOVED) or is_factor(name, violation.finding))


def is_factor(name: str, finding: Finding) -> bool:
    """Whether the name is of a factor of this result, which its number has, to the digits that the name tells."""
    found = MULTIPLE.match(name)
    if found is None or found[1] != finding.name or not finding.expected:
        return False
    return math.isclose(finding.got / finding.expected, float(found[2]), rel_tol=DIGITS)


def shows_more(violation: Violation, names: tuple[str, ...], larger: tuple[str, ...]) -> bool:
    """Whether one known mistake explains the smaller case's output, where only gradients of the larger are wrong.

    larger: what is said of the larger case: that its output conforms, and mistakes in gradients.
    """
    return (
        violation.finding.name == "output"
        and len(set(map(family, names))) == 1
        and not names[0].startswith(AT_MOST)
        and any(OUTPUT_CONFORMS.search(line) for line in larger)
        and all(line.startswith(("gradient of ", BACKWARD_ONLY, WRONG_IN)) for line in larger)
    )


def may_hold(name: str, violation: Violation) -> bool:
    """Whether the case that is shown may be wrong in this way, too.

    Not by a gradient where its output is wrong, nor by an output that is right, nor by NaN where it is a number, nor
    past its last key, nor by hidden keys where fewer are hidden, nor by roundings of another dtype or where a number is
    0, nor among batch elements, heads or query heads of a group where there is one. Where no more than digits of 16
    bits are lost, a wrong computation is unlikely: most would show as more.
    """
    if violation.rounds_16_bits and not OF_DIGITS.search(name):
        return False
    if violation.finding.name == "output" and name.startswith("gradient of"):
        return False
    if violation.finding.name != "output" and name.startswith("output is"):
        return False
    if not several_there(name, violation.case):
        return False
    if violation.of_numbers and WITHOUT_NUMBERS.search(name):
        return False
    hidden = HIDDEN.search(name)
    if hidden and (~allowed_pairs(violation.case)).sum(axis=-1).max(initial=0) < int(hidden[1] or 1):
        return False
    if name.startswith(AT_MOST):
        finding, other = violation.finding, call(violation.uncut).dtype != violation.case.dtype
        if other or (finding.got == 0 and finding.expected != 0):
            return False
    extent = EXTENT.search(name)
    sizes = [size for array in violation.case.inputs.values() for size in array.shape]
    return extent is None or int(extent[1]) < max(sizes, default=0)


def several_there(name: str, case: Case) -> bool:
    """Whether the case has the several batch elements, heads or query heads of a group that the name speaks of."""
    query, key = case.inputs.get("query"), case.inputs.get("key")
    if query is None or key is None or query.ndim != 4:
        return True
    (B, H), G = query.shape[:2], key.shape[1]
    name = name.partition(" (")[0] if MULTIPLE.match(name) else name  # not its reasons
    several = ((AMONG_ELEMENTS, B > 1), (AMONG_HEADS, H > 1), (IN_A_GROUP, H > G))
    return all(there for mixed_up, there in several if mixed_up.search(name))


def explaining(names: tuple[str, ...], before: tuple[str, ...]) -> tuple[str, ...]:
    """Of the names that explain the case that is shown, those that explain the one before it was cut down too.

    Without its parameter where that comes from a size in which the two differ. The larger case may show a mistake in
    more projections. One of the two may not show that the output is right, and the mistake in the backward pass only.
    """
    known = {anywhere(name): name for name in before[::-1]}
    found = (max(name, known[anywhere(name)], key=told) for name in names if anywhere(name) in known)
    both = tuple(dict.fromkeys((*found, *factors_explained(names, before))))
    families = set(map(family, before))
    return both or tuple(dict.fromkeys(family(name) for name in names if family(name) in families))


def factors_explained(names: tuple[str, ...], before: tuple[str, ...]) -> Iterator[str]:
    """Names of factors that differ between two cases, and have a reason in common."""
    reasons = {found[1]: found[3].split(", or ") for found in map(FACTOR.match, before) if found}
    for found in filter(None, map(FACTOR.match, names)):
        common = [reason for reason in found[3].split(", or ") if reason in reasons.get(found[1], [])]
        if common and found[0] not in before:
            yield f"{found[1]} is {found[2]} times what it must be ({', or '.join(common)})"
        elif not common and any(same_factor(found, other) for other in map(FACTOR.match, before) if other):
            yield f"{found[1]} is {found[2]} times what it must be"


def same_factor(one: re.Match[str], other: re.Match[str]) -> bool:
    return one[1] == other[1] and math.isclose(float(one[2]), float(other[2]), rel_tol=DIGITS)


def causes(names: Iterable[str]) -> set[str]:
    """The names, to be compared between cases; a factor by what it is of and each of its reasons, not by its digits."""
    found: set[str] = set()
    for name in names:
        factor = FACTOR.match(name)
        found |= {f"{factor[1]}: {reason}" for reason in factor[3].split(", or ")} if factor else {name}
    return found


def anywhere(name: str) -> str:
    """The name without what is measured, and without where the mistake is."""
    return kind(name.removeprefix(BACKWARD_ONLY))


def told(name: str) -> tuple[bool, int]:
    """How much a name says beside what the mistake is."""
    return name.startswith(BACKWARD_ONLY), projections(name)


def projections(name: str) -> int:
    """How many projections the name lists."""
    listed = PROJECTIONS.search(name)
    return listed[1].count(",") + 1 if listed else 0


def family(name: str) -> str:
    """The name without its parameter."""
    return PARAMETER.sub("", name)


def in_families(names: Iterable[str]) -> tuple[str, ...]:
    """Each mistake once; without its parameter where it may have several values."""
    names = list(names)
    families: dict[str, list[str]] = {}
    for name in names:
        forward = name.removeprefix(BACKWARD_ONLY)
        if forward == name or forward not in names:
            families.setdefault(family(PROJECTIONS.sub("", name)), []).append(name)
    return tuple(members[0] if len(members) == 1 else family(members[0]) for members in families.values())


def asked(violation: Violation, example: Any, runner: Runner, how: Check[Any, Any] = DIAGNOSIS) -> tuple[str, ...]:
    found = runner(how, (violation.check, example, violation.finding), None)
    return tuple(finding.detail.name for finding in found if isinstance(finding.detail, KnownMistake))
