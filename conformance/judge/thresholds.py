"""At which sizes a violation shows: where it begins, past which size, or at which multiples.

The smallest case is asked again at a fixed set of sizes along each of its dimensions, with the others as they are. What
is larger than the case is made of its own arrays, repeated, times normal numbers. A threshold is the simplest rule of a
small family that agrees with all that was seen; where none does, it lists what was seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import cast

import numpy as np

from conformance.cases.case import Case
from conformance.cases.expectations import CaseExample, asked_case
from conformance.cases.facts import operation_facts
from conformance.cases.features import supports_case
from conformance.cases.operation import HEADS, OFFSET, Axis, Sizes
from conformance.checks.catalogue import DESCRIPTION
from conformance.checks.comparison import worst
from conformance.checks.findings import AxisName, Kind, Threshold
from conformance.checks.results import Violation
from conformance.judge.smallest_case import error_finder
from conformance.runner.dimensions import PRODUCTS, Dimension, Part, dimensions, sizes_of, take_parts, work
from conformance.runner.in_process import Runner
from conformance.runner.shrinking import align_masks, cuttable, map_cases, plain_numbers

FEW = 4
"""Large dimensions up to which pairs of them are tried."""
SECONDS = 2.5
"""For one violation, at most."""
TRIVIAL = 2
"""A dimension of this size or less is not what the violation is about, unless a larger one is right."""
TINIEST = 4
"""What is wrong up to a size is wrong at this one at least; below, special sizes (1 key) may just not show it."""
LARGE = 128
"""A size at which a dimension that looks trivial is tried: a multiple of every likely block."""
MOST = 2**22
"""Multiplications of the largest case that is asked."""
MOST_OF_SLOW = 2**13
"""The same in float64, whose oracle is slow, and where each pair of a mask is asked for by itself."""
HARDLY = 30.0
"""An error of so few bounds may be lost in the wider bounds of a larger case."""
MANY = 4
"""Right sizes, and wrong ones, by which a rule about multiples is no chance."""
ONE_HEAD = {"G": 1, "S": 1}
MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)

Wrong = Callable[[Sizes], bool | None]
"""Whether the subject is wrong on a case of these sizes; None where it was not asked."""
Seen = dict[int, bool]
"""Whether it is wrong, by the size of one dimension."""


def find_thresholds(
    violation: Violation, runner: Runner, seconds: float = SECONDS, passing: list[CaseExample] | None = None
) -> tuple[Threshold, ...]:
    """At which sizes the violation shows and at which not; empty where that depends on no size, or cannot be told.

    passing: takes the examples in which it does not show.
    """
    if not violation.steady or violation.depends_on_state or not cuttable(violation.example) or runner.overrun:
        return ()
    probing = Probing(violation, runner, time.monotonic() + seconds)
    thresholds = tuple(probing.thresholds())
    if passing is not None:
        passing += probing.passing
    return thresholds


class Probing:
    """One violation's case, asked at other sizes."""

    def __init__(self, violation: Violation, runner: Runner, end: float) -> None:
        self.example, self.end, self.declaration = violation.example, end, runner.declaration
        self.case, self.findings = asked_case(violation.example), error_finder(violation, runner)
        self.ratio, self.rounds = violation.ratio, violation.loses_digits
        slow = (self.case.dtype == "float64" and not self.case.special) or violation.check == DESCRIPTION
        self.most = MOST_OF_SLOW if slow else MOST
        self.costs: list[tuple[int, float]] = []
        """Of the cases that were asked: about how many multiplications, and how many seconds."""
        self.sizes, self.dimensions = sizes_of(self.case), dimensions(self.case, runner.declaration)
        self.before = sizes_of(asked_case(violation.example if violation.uncut is None else violation.uncut))
        self.seen: dict[tuple[int, ...], float | None] = {}
        self.passing: list[CaseExample] = []

    def thresholds(self) -> Iterator[Threshold]:
        large = [dimension for dimension in self.dimensions if not self.trivial(dimension)]
        large.sort(key=self.size, reverse=True)
        for axis, passed in self.products({dimension.names[0] for dimension in large}):
            yield passed
            large = [dimension for dimension in large if dimension.names[0] not in axis]
        for one, other in combinations(large, 2):
            together = product(one.names[0], other.names[0], self.sizes, self.wrong) if len(large) < FEW else None
            if together is not None:
                yield together
                large = [dimension for dimension in large if dimension not in (one, other)]
                break
        for dimension in large:
            near, axes = (
                nearby_sizes(self.size(dimension), self.before.get(dimension.names[0], 0)),
                self.axes(dimension),
            )
            threshold = multiples(self.every(dimension, near), axes) or rule(self.probe_along(dimension, near), axes)
            if threshold is not None and not (self.rounds and may_be_chance(threshold)):
                yield threshold
        small = [dimension for dimension in self.dimensions if self.trivial(dimension)]
        for dimension in small if not self.rounds else ():
            if dimension.names != (OFFSET,) and self.probe_along(dimension, [LARGE]).get(LARGE) is False:
                threshold = rule(
                    self.probe_along(dimension, [*range(1, 10), *nearby_sizes(16, 65), LARGE]), self.axes(dimension)
                )
                if (
                    threshold is not None
                    and not threshold.is_listed
                    and (threshold.kind != "up to" or TINIEST in threshold.wrong)
                ):
                    yield threshold

    def axes(self, dimension: Dimension) -> tuple[AxisName, ...]:
        """Of dimensions that change together, all of them."""
        return tuple(axis_name(name, self.sizes) for name in dimension.names)

    def trivial(self, dimension: Dimension) -> bool:
        """Whether a violation is not about its size. A single pair of columns hides which ones are paired."""
        unit = operation_facts(self.case.operation).width_unit if "E" in dimension.names else 1
        return self.size(dimension) <= max(TRIVIAL * unit, dimension.least)

    def size(self, dimension: Dimension) -> int:
        return self.sizes[dimension.names[0]]

    def products(self, large: set[str]) -> Iterator[tuple[Axis, Threshold]]:
        """Axes of an argument, made of several large dimensions, that must not pass a size.

        All of the axis is tried in its last dimension, with one head. Then two query heads to a key head must fail at
        the last size that passed if they are part of the axis, and pass if they are not.
        """
        named: set[str] = set()
        for axis in PRODUCTS if {"G", "E"} <= self.sizes.keys() else ():
            last = next(dimension for dimension in self.dimensions if axis[-1] in dimension.names)
            if axis[-1] in named or not large & set(axis) or sum(self.sizes[name] > 1 for name in axis) < 2:
                continue
            threshold = self.product_threshold(last, math.prod(self.sizes[name] for name in axis))
            if threshold is not None and self.decides(axis, last, threshold):
                named.add(axis[-1])
                yield axis, replace(threshold, axes=(PRODUCTS[axis],))

    def decides(self, axis: Axis, last: Dimension, threshold: Threshold) -> bool:
        """Whether it is wrong at other factors as well, of which each by itself is right."""
        if axis == HEADS:
            return bool(self.wrong({"G": 3, "S": 1 << max(threshold.above, 1).bit_length() - 1}))
        pairs = self.wrong(ONE_HEAD | {"S": 2} | dict.fromkeys(last.names, threshold.above))
        return pairs is None or pairs is ("S" in axis)

    def product_threshold(self, last: Dimension, count: int) -> Threshold | None:
        """Where it begins to be wrong with one head; None where that is no matter of a size to be passed.

        Heads may also be wrong where their number is no power of two.
        """
        seen = self.probe_along(last, [count, *nearby_sizes(count, 0)], ONE_HEAD)
        threshold = rule(seen) if seen.get(count) else None
        if threshold is not None and threshold.kind == "no power of two" and "S" in last.names:
            return threshold
        while threshold is not None and threshold.kind == "first":
            passing = max(n for n, bad in seen.items() if not bad and n <= threshold.above)
            if passing == threshold.above:
                return threshold
            more = self.probe_along(last, [(passing + threshold.above + 1) // 2], ONE_HEAD)
            seen |= more
            threshold = rule(seen) if more else None
        return None

    def probe_along(self, dimension: Dimension, sizes: list[int], others: Sizes | None = None) -> Seen:
        """What is seen at these sizes of a dimension, and at that of the case; not where an error may be hidden.

        others: sizes of other dimensions, in which the case's own size says nothing.
        """
        ratios = self.ratios(dimension, sizes, others)
        return {size: ratio > 1 for size, ratio in ratios.items() if ratio > 1 or not may_be_hidden(size, ratios)}

    def every(self, dimension: Dimension, sizes: list[int]) -> Seen:
        return {size: ratio > 1 for size, ratio in self.ratios(dimension, sizes).items()}

    def ratios(self, dimension: Dimension, sizes: list[int], others: Sizes | None = None) -> dict[int, float]:
        ratios: dict[int, float] = {self.size(dimension): self.ratio} if others is None else {}
        for size in sizes:
            if size >= dimension.least and size % dimension.unit == 0:
                ratio = self.error_ratio((others or {}) | dict.fromkeys(dimension.names, size))
                ratios |= {} if ratio is None else {size: ratio}
        return ratios

    def wrong(self, sizes: Sizes) -> bool | None:
        ratio = self.error_ratio(sizes)
        return None if ratio is None else ratio > 1

    def error_ratio(self, sizes: Sizes) -> float | None:
        """The error in bounds, 0 for none, at these sizes; None where the subject cannot be asked."""
        key = tuple((self.sizes | sizes).values())
        if key not in self.seen:
            self.seen[key] = self.measure_error(sizes)
        return self.seen[key]

    def measure_error(self, sizes: Sizes) -> float | None:
        """What is right is asked again with other numbers, for which it may be wrong: larger cases may hide errors.

        In smaller ones what is wrong may only have been cut off: a maximum that grows at a later key.
        """
        for seed in (1, 2, 3):
            example = self.resize_example(sizes, seed)
            if (
                example is None
                or time.monotonic() > self.end
                or not supports_case(asked_case(example), self.declaration)
            ):
                return None
            reached, needed = sizes_of(asked_case(example)), work(asked_case(example))
            if any(reached[name] != size for name, size in sizes.items()) or not self.affords(needed):
                return None
            start = time.monotonic()
            findings = self.findings(example)
            self.costs.append((needed, time.monotonic() - start))
            if findings is not None:
                return worst(findings).ratio
        assert example is not None  # of the last seed
        self.passing.append(example)
        return 0.0

    def affords(self, needed: int) -> bool:
        """Whether a case of so much work is likely to end in time, by what larger ones than the smallest took."""
        took, seconds = max(self.costs, default=(1, 0.0))
        ends = time.monotonic() + seconds * needed / max(took, 1) < self.end
        return needed <= self.most and (ends or needed <= work(self.case))

    def resize_example(self, sizes: Sizes, seed: int) -> CaseExample | None:
        parts = {name: Part(0, size) for name, size in sizes.items()}

        def change(case: Case) -> Case | None:
            return align_masks(take_parts(case, parts, np.random.default_rng(seed)), self.declaration)

        example = map_cases(self.example, change)
        smaller = all(size <= self.sizes[name] for name, size in sizes.items())
        if smaller and seed > 1 and not self.rounds and isinstance(example, Case):
            return plain_numbers(example, seed) or example
        return example


def may_be_hidden(size: int, ratios: dict[int, float]) -> bool:
    """Whether an error of a right size may lie within its bound: at the next smaller wrong size it is hardly larger."""
    below = [n for n, ratio in ratios.items() if ratio > 1 and n < size]
    return bool(below) and ratios[max(below)] < HARDLY


def nearby_sizes(size: int, largest: int) -> list[int]:
    """Sizes to try near one that fails: neighbours, powers of two and their neighbours, multiples, smaller ones."""
    power = 1 << (size - 1).bit_length()  # the first one that is not below
    blocks = [-(-(size + 1) // block) * block for block in (64, 32, 16, 8, 4)]
    sizes = [size - 1, size + 1, power, 2 * power, power + 1, 2 * power + 1, size + 2, 3 * power // 2, *blocks]
    sizes += [power // 2, power // 2 + 1, power - 1, 2 * power - 1, size + 3, 5 * power // 4, 3 * power, 4 * power]
    sizes += [*(2**k for k in range(size.bit_length())[::-1][:6]), 3 * power // 8, largest, 5, 6, 7]
    return [n for n in dict.fromkeys(sizes) if n > 0]


# --- two dimensions together ------------------------------------------------------------------------------------------


def product(one: str, other: str, sizes: Sizes, wrong: Wrong) -> Threshold | None:
    """Whether it is the product of two sizes that must not pass a number: where it passes it, or None.

    The product must decide at another ratio of the two as well. Where a power of two lies between what passes and what
    fails, it is told at that.
    """
    a, b = sizes[one], sizes[other]
    if wrong({one: a - 1, other: b}) is not False or wrong({one: a, other: b - 1}) is not False:
        return None
    for less_one, less_other in ((0, 0), (1, 0), (0, 1)):  # the first number of the last row counts, for one

        def much(x: int, y: int) -> int:
            return (x - less_one) * (y - less_other)  # noqa: B023

        failing, passing = much(a, b), max(much(a - 1, b), much(a, b - 1))
        for x in (a // 2, 2 * a, a // 4, 4 * a):
            if x <= less_one + 1:
                continue
            y = -(-failing // (x - less_one)) + less_other
            if wrong({one: x, other: y}) and wrong({one: x, other: passing // (x - less_one) + less_other}) is False:
                return simplest_product(one, other, sizes, wrong, range(passing, failing + 1))
    return None


def simplest_product(one: str, other: str, sizes: Sizes, wrong: Wrong, between: range) -> Threshold:
    """between: from a product that passes to one that fails."""
    simplest = (one, sizes[one], other, sizes[other])
    power = 1 << between[-1].bit_length() - 1  # the largest one that is not above
    if power in between:
        side = 1 << power.bit_length() // 2
        for x, y, fixed in (
            (one, other, side),
            (other, one, side),
            (one, other, sizes[other]),
            (other, one, sizes[one]),
        ):
            size = power // fixed
            if wrong({x: size + 1, y: fixed}) and wrong({x: size, y: fixed}) is False:
                simplest = (x, size + 1, y, fixed)
                break
    x, more, y, fixed = simplest
    axes = axis_name(x, sizes), axis_name(y, sizes)
    return Threshold(axes, "product", (more,), (more - 1,), beside=fixed)


# --- one dimension ----------------------------------------------------------------------------------------------------


def axis_name(name: str, sizes: Sizes) -> AxisName:
    """Without groups the heads of query and key are the same."""
    return cast(AxisName, "H" if name == "G" and sizes.get("S") == 1 else name.rstrip(" 0123456789"))


def may_be_chance(threshold: Threshold) -> bool:
    """Whether rounding errors that grow with the size may come to it: they pass their bounds anywhere."""
    return threshold.is_listed or threshold.above % 8 not in (0, 7)


def is_power(n: int) -> bool:
    return n & (n - 1) == 0


def rule(seen: Seen, axes: tuple[AxisName, ...] = ()) -> Threshold | None:
    """The simplest rule that agrees with what was seen; None where all sizes are wrong, or all right."""
    wrong, right = (tuple(n for n, bad in sorted(seen.items()) if bad is kind) for kind in (True, False))
    if not right or not wrong:
        return None
    least, most = wrong[0], wrong[-1]

    def agrees(predicate: Callable[[int], bool], above: int = 0) -> bool:
        return all((n > above and predicate(n)) is bad for n, bad in seen.items())

    def make_threshold(kind: Kind, above: int = 0, multiple: int = 0) -> Threshold:
        return Threshold(axes, kind, wrong, right, above, multiple)

    if agrees(lambda n: True, least - 1):
        return make_threshold("first", least - 1)
    for above in (0, least - 1):
        if agrees(lambda n: not is_power(n), above):
            return make_threshold("no power of two", above)
        for multiple in MULTIPLES:
            if agrees(lambda n, m=multiple: n % m != 0, above):  # type: ignore[misc]
                return make_threshold("no multiple", above, multiple)
        for multiple in reversed(MULTIPLES):
            if agrees(lambda n, m=multiple: n % m == 0, above):  # type: ignore[misc]
                return make_threshold("multiple", above, multiple)
        if agrees(is_power, above) and len(wrong) > 2:
            return make_threshold("power of two", above)
    if agrees(lambda n: n <= most) and most + 1 in seen:
        return make_threshold("up to")
    if agrees(lambda n: n <= most, least - 1) and least - 1 in seen and len(wrong) > 2:
        return make_threshold("from", least - 1)
    if least - 1 in seen and right[0] < least and len(wrong) > sum(n > least for n in right):
        return make_threshold("first", least - 1)
    return make_threshold("listed")


def multiples(seen: Seen, axes: tuple[AxisName, ...] = ()) -> Threshold | None:
    """A rule about multiples, past some size, that agrees with all that was seen; no error hides in just such sizes."""
    threshold = rule(seen, axes)
    sure = threshold is not None and threshold.kind == "no multiple"
    return threshold if sure and min(sum(seen.values()), sum(not bad for bad in seen.values())) >= MANY else None
