"""Sentences about sizes: "first wrong at 257 keys (256 are right), and wrong at 258, 512"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conformance.checks.findings import AxisName, Threshold

SHOWN = 6
"""Sizes that are given as examples."""
WORDS: dict[str, tuple[str, str]] = {
    "": ("place", "places"),
    "B": ("batch element", "batch elements"),
    "BH": ("head of all batch elements", "heads of all batch elements"),
    "G": ("key head", "key heads"),
    "S": ("query head to a key head", "query heads to a key head"),
    "H": ("head", "heads"),
    "Q": ("query", "queries"),
    "K": ("key", "keys"),
    "D": ("column of query and key", "columns of query and key"),
    "V": ("column of value", "columns of value"),
    "parts": ("part", "parts"),
    "rows": ("row", "rows"),
    "W": ("column of a row", "columns of a row"),
    "E": ("column", "columns"),
    "E of key": ("column of the key's input", "columns of the key's input"),
    "E of value": ("column of the value's input", "columns of the value's input"),
    "model": ("column of the model", "columns of the model"),
    "inner": ("column inside", "columns inside"),
    "output": ("column of the output", "columns of the output"),
    "vocabulary": ("row of the table", "rows of the table"),
    "classes": ("class", "classes"),
    "length": ("position", "positions"),
    "T": ("position", "positions"),
    "offset": ("position of offset", "positions of offset"),
    "H D": ("column of the query's projection", "columns of the query's projection"),
    "G D": ("column of the key's projection", "columns of the key's projection"),
    "G V": ("column of the value's projection", "columns of the value's projection"),
    "H V": ("column of all heads' outputs", "columns of all heads' outputs"),
}
"""One and several of each axis."""


def describe_thresholds(thresholds: Iterable[Threshold]) -> str:
    return "; ".join(map(describe_threshold, thresholds))


def describe_threshold(threshold: Threshold) -> str:
    """The rule, and some of the sizes that were tried."""
    wrong, right, first = threshold.wrong, threshold.right, threshold.wrong[0]
    examples = f"({list_sizes(wrong, first)} wrong; {list_sizes(right, first)} right)"
    if threshold.kind == "first":
        again = [size for size in right if size > first]
        also = f", and wrong at {list_sizes(wrong[1:], first)}" if wrong[1:] else ""
        also += f"; right again at {list_sizes(again, first)}" if again else ""
        return f"{summarize_threshold(threshold)}{also}"
    if threshold.kind == "product":
        return summarize_threshold(threshold)
    if threshold.kind == "up to":
        return f"wrong up to {count_words(threshold, wrong[-1])} {examples}"
    if threshold.kind == "from":
        return f"wrong from {first:,} to {count_words(threshold, wrong[-1])} {examples}"
    if threshold.kind == "listed":
        several = words_for(threshold.axes, 2)
        return f"wrong for {list_sizes(wrong, first)} {several}; right for {list_sizes(right, first)}"
    return f"{summarize_threshold(threshold)} {examples}"


def summarize_threshold(threshold: Threshold) -> str:
    """The rule alone; empty for one that says nothing without its sizes."""
    first = threshold.wrong[0]
    if threshold.kind == "first":
        before = threshold.last_right
        return f"first wrong at {count_words(threshold, first)} ({before:,} {'is' if before == 1 else 'are'} right)"
    if threshold.kind == "product":
        (one, other), beside = threshold.axes, threshold.beside
        at = f"{first:,} {words_for((one,), first)} and {beside:,} {words_for((other,), beside)} together"
        passing = f"{first - 1:,} {words_for((one,), first - 1)}"
        return f"first wrong at {at} (their product is {first * beside:,}; with {passing} it is right)"
    if threshold.kind in ("up to", "from", "listed"):
        return ""
    what = "length" if threshold.axes in (("length",), ("T",)) else f"number of {words_for(threshold.axes, 2)}"
    past = f", past {threshold.above:,}," if threshold.above else ""
    return f"wrong where the {what}{past} is {describe_kind(threshold)}"


def describe_kind(threshold: Threshold) -> str:
    if threshold.kind == "no multiple":
        return "odd" if threshold.multiple == 2 else f"no multiple of {threshold.multiple}"
    if threshold.kind == "multiple":
        return "even" if threshold.multiple == 2 else f"a multiple of {threshold.multiple}"
    return "a power of two" if threshold.kind == "power of two" else threshold.kind


def count_words(threshold: Threshold, count: int) -> str:
    return f"{count:,} {words_for(threshold.axes, count)}"


def words_for(axes: Sequence[AxisName], count: int) -> str:
    """The words for one or several of the axes that change together."""
    return " and ".join(WORDS[axis][count != 1] for axis in axes)


def list_sizes(sizes: Sequence[int], near: int) -> str:
    """Some of the sizes, in order: those nearest to one, and some farther ones."""
    ordered = sorted(sizes, key=lambda n: abs(n - near))
    nearest, others = ordered[: SHOWN // 2], ordered[SHOWN // 2 :]
    step = max(1, -(-len(others) // (SHOWN - SHOWN // 2)))
    return ", ".join(f"{size:,}" for size in sorted([*nearest, *others[::-1][::step]]))
