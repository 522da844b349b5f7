"""Making a failing case smaller, step by step: no drawing, and few calls for large cases.

First the case loses what it can do without (gradients, options, its dtype, how its heads are grouped), because every
later call is then cheaper. Then each dimension is cut to the smallest size that still fails, with the others as they
are: tiny sizes, then powers of two from below, then halving between a size that passes and one that fails. All this is
repeated until nothing changes. A case with its clean twin, or with planted special values, is cut with it alike.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.cases.arguments import KERNEL_ARGUMENTS, expected_dtype
from conformance.cases.case import Case, heads_and_keys, join_projections, numpy_dtype, output_alone
from conformance.cases.declaration import SIMPLEST_FIRST, Declaration, roundings
from conformance.cases.expectations import CaseExample, Planted, allowed_pairs, asked_case, change_cases, empty_rows
from conformance.cases.facts import operation_facts
from conformance.cases.features import alignment, has_masks, set_offset, supports_case
from conformance.cases.layouts import apply_memory
from conformance.cases.operation import OFFSET
from conformance.cases.signatures import definition, equals_default
from conformance.checks.catalogue import Check
from conformance.checks.comparison import breaks
from conformance.checks.levels import STRICT
from conformance.runner.dimensions import Dimension, Part, Parts, dimensions, sizes_of, take_parts
from conformance.runner.in_process import Runner
from specification.dtypes import FLOATING, compute_dtype_name
from specification.masks import And, Dense, Or

Change = Callable[[Case], Case | None]
"""Makes another case of one; None where there is none."""

TINY = (2, 3)
"""Sizes that are tried before powers of two."""
NEVER_LEFT_OUT = (
    *("num_heads", "length", "width", "dtype", OFFSET, "dropout_keep", "dropout_rate", "mask"),
    *("query_length", "key_length", "bidirectional"),
    *("ignore", "reduction"),
)
"""Options that are no features to do without, or that are taken out together or in steps."""


@dataclass(frozen=True)
class Reduced:
    """The smallest failing example. steady: it failed each time it was asked again."""

    example: CaseExample
    steady: bool = True


def shrink_example(
    example: CaseExample,
    declaration: Declaration,
    fails: Callable[[CaseExample], bool],
    seconds: float,
    masked: bool = False,
    keeps_dtype: bool = False,
    keeps_numbers: bool = False,
) -> Reduced:
    """The smallest failing example found in the time; itself if it cannot be cut.

    masked: its mask must stay. keeps_dtype: so must its dtype. keeps_numbers: it gets no other numbers.
    What passes when it is asked again is not taken for the
    smallest: then it is the smallest one that fails twice more, or else the example itself.
    """
    search = Search(example, declaration, fails, time.monotonic() + seconds, masked, keeps_dtype)
    search.run(keeps_numbers)
    for i, smaller in enumerate(search.failing[: -ASKED_AGAIN - 1 : -1]):
        if fails(smaller) and fails(smaller):
            return Reduced(smaller, steady=i == 0)
    return Reduced(example, steady=False)


ASKED_AGAIN = 8
"""Cases, from the smallest, that are asked again; if none of them fails, the first one is kept."""


def cuttable(example: CaseExample) -> bool:
    """Whether it is made of cases that can be cut alike."""
    return map_cases(example, lambda case: case) is not None


def map_cases(example: CaseExample, change: Change) -> CaseExample | None:
    """The example with all its cases changed alike; None where that cannot be, or nothing planted is left.

    What is planted stays attended to, or hidden: with that the rule changes which the example is of.
    """
    match example:
        case Case():
            return change(example)
        case Planted():
            clean, planted = change(example.clean), change(example.planted)
            if clean is None or planted is None:
                return None
            marks = {name: planted.inputs[name] != clean.inputs[name] for name in example.marks}
            smaller = Planted(clean, planted, allowed_pairs(clean), marks, example.infinite)
            left = any(mark.any() for mark in marks.values()) and smaller.is_attended == example.is_attended
            return smaller if left else None
        case (Case(), Case()):
            both = tuple(map(change, example))
            return None if any(case is None for case in both) else both
        case (Case() as case, tuple() as cuts):
            changed = change(case)
            return None if changed is None else (changed, tuple(min(n, changed.inputs["key"].shape[2]) for n in cuts))
        case (Case() as dirty, Case() as clean, np.ndarray() as reached, np.ndarray() as rows):
            after, before = change(dirty), change(clean)
            cut = [change(replace(clean, inputs=clean.inputs | {"x": array})) for array in (reached, rows)]
            if after is None or before is None or cut[0] is None or cut[1] is None:
                return None
            spoiled = tuple(marked.inputs["x"] for marked in cut if marked is not None)
            return (after, before, *spoiled) if spoiled[0].any() else None
    return None


# --- the search -------------------------------------------------------------------------------------------------------


class Search:
    """failing: what has failed, from the first to the smallest."""

    def __init__(
        self,
        example: CaseExample,
        declaration: Declaration,
        fails: Callable[[CaseExample], bool],
        end: float,
        masked: bool,
        keeps_dtype: bool,
    ) -> None:
        self.failing, self.declaration, self.fails, self.end = [example], declaration, fails, end
        self.masked, self.keeps_dtype = masked, keeps_dtype
        self.passed: set[tuple[int, ...]] = set()
        """Sizes to which the present example cannot be cut."""

    @property
    def example(self) -> CaseExample:
        return self.failing[-1]

    def run(self, keeps_numbers: bool) -> None:
        known = 0
        while known < len(self.failing) and cuttable(self.example):
            known = len(self.failing)
            self.leave_out()
            if known == 1 and not keeps_numbers:
                self.takes(map_cases(self.example, plain_numbers))
            self.cut_together()
            for dimension in self.dimensions():
                self.cut(dimension)

    def dimensions(self) -> list[Dimension]:
        """The largest first: the others are then cheaper to try. Last those that may only shrink together."""
        case = asked_case(self.example)
        sizes, found = sizes_of(case), dimensions(case, self.declaration)
        alone = [dimension.names[0] for dimension in found if len(dimension.names) == 1]
        pairs = [names for names in (("Q", "K"), ("D", "V")) if set(names) <= set(alone)]
        masked, declared = has_masks(case.operation), self.declaration
        units = {"D": declared.width_multiple, "Q": declared.length_multiple} if masked else {}
        equal = [Dimension(names, units.get(names[0], 1)) for names in pairs if len({sizes[n] for n in names}) == 1]
        return [*sorted(found, key=lambda dimension: -sizes[dimension.names[0]]), *equal]

    def takes(self, candidate: CaseExample | None) -> bool:
        """Whether the candidate fails too; it is then what is made smaller."""
        if candidate is None or time.monotonic() > self.end:
            return False
        case = asked_case(candidate)
        bare = self.masked and case.options.get("mask") is None
        if bare or not supports_case(case, self.declaration) or not self.fails(candidate):
            return False
        self.failing.append(candidate)
        return True

    def leave_out(self) -> None:
        of_planted = [open_mask] if isinstance(self.example, Planted) else []
        for change in [*simplifications(asked_case(self.example), self.declaration, self.keeps_dtype), *of_planted]:
            if self.takes(map_cases(self.example, change)):
                self.passed.clear()

    def cut_together(self) -> None:
        """All dimensions but the two, one or none that are largest to their least size at once."""
        case = asked_case(self.example)
        sizes, found = sizes_of(case), self.dimensions()
        for kept in range(3):
            parts: dict[str, Part] = {}
            for dimension in found[kept:]:
                parts |= dimension.parts(dimension.least)
            parts = {name: part for name, part in parts.items() if part.size < sizes[name]}
            if not parts or self.takes_parts(parts):
                return

    def takes_parts(self, parts: Parts) -> bool:
        """Whether the first of everything, of these sizes, fails too."""
        case = asked_case(self.example)
        sizes = sizes_of(case) | {name: part.size for name, part in parts.items()}
        key = tuple(sizes.values())
        moved = any(part.start for part in parts.values())
        if not moved and key in self.passed:
            return False
        candidate = map_cases(self.example, lambda case: self.promised_case(case, take_parts(case, parts)))
        if candidate is not None and sizes_of(asked_case(candidate)) == sizes and self.takes(candidate):
            if moved:
                self.passed.clear()
            return True
        if not moved:
            self.passed.add(key)
        return False

    def takes_last(self, dimension: Dimension, n: int) -> bool:
        return self.takes_parts(dimension.parts(n, self.size(dimension) - n))

    def promised_case(self, before: Case, smaller: Case | None) -> Case | None:
        """The smaller case; None where rows come to allow nothing, and the subject does otherwise there."""
        after = align_masks(smaller, self.declaration)
        if after is None or not has_masks(after.operation) or self.declaration.convention("empty_rows") == "zero":
            return after
        return after if empty_rows(after).any() <= empty_rows(before).any() else None

    def cut(self, dimension: Dimension) -> None:
        """Cut to the first few of a dimension, as few as still fail; then see whether the last of them fail alone.

        Where keys are hidden, cut to as few of the last as still fail: it may matter how many of the first are hidden.
        """
        size = self.size(dimension)
        smallest = smallest_failing(size, dimension, lambda n: self.takes_parts(dimension.parts(n)))
        case = asked_case(self.example)
        hiding = "bias" in case.inputs and np.isneginf(case.inputs["bias"].astype(float)).any()
        if (hiding or case.options.get("mask") is not None) and "K" in dimension.names:
            smallest_failing(smallest, dimension, lambda n: self.takes_last(dimension, n))
        elif OFFSET not in dimension.names:
            for last in (dimension.least, dimension.least + dimension.unit):
                if last < smallest and self.takes_last(dimension, last):
                    return

    def size(self, dimension: Dimension) -> int:
        return sizes_of(asked_case(self.example)).get(dimension.names[0], 0)


def smallest_failing(size: int, dimension: Dimension, fails: Callable[[int], bool]) -> int:
    """The smallest size at which it is seen to fail, at most `size`, which does; it need not pass at all below.

    Powers of two and their successors from below: most thresholds lie there, and what is wrong at certain sizes alone
    (64, 96 and 128, or no power of two past 128) is found at the smallest of them.
    """
    passing, failing, unit = dimension.least - dimension.unit, size, dimension.unit
    for n in ladder(dimension, size):
        if fails(n):
            failing = n
            break
        passing = n
    while failing - passing > unit:
        middle = passing + max((failing - passing) // 2 // unit, 1) * unit
        if fails(middle):
            failing = middle
        else:
            passing = middle
    return failing


def ladder(dimension: Dimension, size: int) -> Iterator[int]:
    """The least size, tiny ones, powers of two below the size and what follows them, in steps of the unit."""
    unit, powers = dimension.unit, (2**k for k in range(2, size.bit_length()))
    sizes = (dimension.least, *TINY, *(n for power in powers for n in (power, power + unit)))
    yield from (n for n in dict.fromkeys(sizes) if dimension.least <= n < size and n % unit == 0)


# --- what a case can do without ---------------------------------------------------------------------------------------


def align_masks(case: Case | None, declaration: Declaration) -> Case | None:
    """The case with causal masks where the subject has them, if it has them at one offset only."""
    if case is None or "offset" in declaration or case.options.get("mask") is None or not has_masks(case.operation):
        return case
    _, _, queries, keys = heads_and_keys(case)
    mask = set_offset(case.options["mask"], alignment(queries, keys, declaration))
    return replace(case, options=case.options | {"mask": mask})


def simplifications(case: Case, declaration: Declaration, keeps_dtype: bool) -> Iterator[Change]:
    """What may make the case simpler: less memory to look after, fewer features, float32."""
    if case.memory:
        yield lambda case: replace(case, memory={})
    if case.cotangents:
        yield lambda case: replace(case, cotangents={})
    if case.constants:
        yield lambda case: replace(case, constants=())
    if case.with_logsumexp:
        yield output_alone
    if operation_facts(case.operation).rows is not None:
        yield collapse_axes
    beside = ("bias", "sinks", *KERNEL_ARGUMENTS)
    biases = [name for name in case.inputs if name in beside or name.endswith(".bias")]
    if len(biases) > 1:
        yield remove_arguments(*biases)
    yield from (remove_arguments(name) for name in biases if "[" not in name)
    if case.options.get("dropout_keep") is not None or case.options.get("dropout_rate"):
        yield remove_arguments("dropout_keep", "dropout_rate")
    if case.options.get("ignore") is not None:
        yield count_all_targets
    if "positions" in case.inputs:
        yield restart_positions
    mask = case.options.get("mask")
    if mask is not None:
        yield remove_arguments("mask")
    if isinstance(mask, And | Or):
        yield from (half("left"), half("right"))
    own = definition(case.operation)
    for name, value in case.options.items():
        optional = own.get(name, inspect.Parameter.empty) is not inspect.Parameter.empty
        if optional and name not in NEVER_LEFT_OUT and not equals_default(case.operation, name, value):
            yield remove_arguments(name)
    if any("[" in name for name in case.inputs) and "num_heads" in case.options:
        yield lambda case: replace(case, inputs=join_projections(case.inputs))
    if case.operation.startswith("attention"):
        yield ungroup_heads
    if not keeps_dtype:
        yield from (change_dtype(dtype, declaration) for dtype in SIMPLEST_FIRST[:1] if dtype in declaration.dtypes)


def remove_arguments(*names: str) -> Change:
    """Without inputs or options of these names; None where there are none."""

    def change(case: Case) -> Case | None:
        inputs = {name: array for name, array in case.inputs.items() if name not in names}
        options = {name: value for name, value in case.options.items() if name not in names}
        same = len(inputs) == len(case.inputs) and len(options) == len(case.options)
        return None if same else replace(case, inputs=inputs, options=options)

    return change


def open_mask(case: Case) -> Case | None:
    """The same keys hidden, and all others seen by every query; None for masks that are no arrays, or are so already.

    Queries and keys can then be cut alike, and no row is left without a key.
    """
    mask = case.options.get("mask")
    array = mask.array if isinstance(mask, Dense) else mask
    if not isinstance(array, np.ndarray):
        return None
    new = np.broadcast_to(array.any(axis=-2, keepdims=True), array.shape).copy()
    if np.array_equal(new, array):
        return None
    return replace(case, options=case.options | {"mask": Dense(new) if isinstance(mask, Dense) else new})


def count_all_targets(case: Case) -> Case | None:
    """With class 0 as the target where none counts."""
    ignore, targets = case.options.get("ignore"), case.inputs["targets"]
    if ignore is None:
        return None
    options = {name: value for name, value in case.options.items() if name != "ignore"}
    inputs = case.inputs | {"targets": np.where(targets == ignore, 0, targets).astype(targets.dtype)}
    return replace(case, inputs=inputs, options=options)


def restart_positions(case: Case) -> Case | None:
    """With the smallest position at 0."""
    positions = case.inputs["positions"]
    first = int(positions.min()) if positions.size else 0
    return replace(case, inputs=case.inputs | {"positions": positions - first}) if first else None


def half(side: str) -> Change:
    """With one side of a mask that is made of two."""

    def change(case: Case) -> Case | None:
        mask = case.options.get("mask")
        whole = not isinstance(mask, And | Or)
        return None if whole else replace(case, options=case.options | {"mask": getattr(mask, side)})

    return change


def collapse_axes(case: Case) -> Case | None:
    """With one axis of rows, and one that is normalised."""
    kind = operation_facts(case.operation).rows
    if kind is None:
        return None
    name, trailing = kind.name, kind.trailing(case)
    shape = case.inputs[name].shape
    rows = shape[: len(shape) - trailing]
    if len(rows) <= 1 and trailing <= 1:
        return None
    count = int(np.prod(rows))

    def flat(array: np.ndarray) -> np.ndarray:
        """Of rows, whatever width they have."""
        inside = array.shape[len(rows) :]
        return array.reshape(count, *((int(np.prod(inside)),) if inside else ()))

    inputs = {n: array.reshape(-1) if n in ("weight", "bias") else array for n, array in case.inputs.items()}
    inputs |= {n: flat(inputs[n]) for n in (name, "targets", "token_mask") if n in inputs}
    options = dict(case.options)
    if options.get("dropout_keep") is not None:
        options["dropout_keep"] = flat(options["dropout_keep"])
    cotangents = {n: flat(a) if a.ndim else a for n, a in case.cotangents.items()}
    return replace(case, inputs=inputs, options=options, cotangents=cotangents)


def ungroup_heads(case: Case) -> Case | None:
    """With a key head of its own for every query head."""
    H, G = case.inputs["query"].shape[1], case.inputs["key"].shape[1]
    if H == G or G == 0:
        return None
    own = {name: np.repeat(case.inputs[name], H // G, axis=1) for name in ("key", "value") if name in case.inputs}
    return replace(case, inputs=case.inputs | own)


def change_dtype(dtype: str, declaration: Declaration) -> Change:
    """In another dtype, companions too; None where that does not hold a number."""

    def change(case: Case) -> Case | None:
        if case.dtype == dtype or "dtype" in case.options:
            return None
        other = replace(case, dtype=dtype, rounding=roundings(declaration, dtype))
        record = operation_facts(case.operation)
        wide = {name: compute_dtype_name(dtype) for name in case.inputs if record.is_wide(name)}
        with np.errstate(over="ignore", invalid="ignore"):
            floating = {n: a for n, a in case.inputs.items() if str(a.dtype) in FLOATING}
            inputs = {n: a.astype(numpy_dtype(wide.get(n, dtype))) for n, a in floating.items()}
            cotangents = {n: a.astype(numpy_dtype(expected_dtype(n, other))) for n, a in case.cotangents.items()}
        for was, new in ((floating, inputs), (case.cotangents, cotangents)):
            for n, old in was.items():
                if (np.isinf(new[n].astype(float)) & np.isfinite(old.astype(float))).any():
                    return None
        return replace(other, inputs=case.inputs | inputs, cotangents=cotangents)

    return change


def plain_numbers(case: Case, seed: int = 0) -> Case | None:
    """With numbers of mean 0 and spread 1 where there were others; what is not finite stays."""
    if case.special or any(name.startswith("logsumexps") for name in case.inputs):
        return None
    rng, inputs = np.random.default_rng(seed), dict(case.inputs)
    for name, array in inputs.items():
        if str(array.dtype) in FLOATING:
            finite, numbers = np.isfinite(array.astype(float)), rng.normal(size=array.shape)
            numbers = np.abs(numbers) if name in operation_facts(case.operation).positive else numbers
            inputs[name] = np.where(finite, numbers.astype(array.dtype), array)
    return apply_memory(replace(case, inputs=inputs), case.memory)


# --- what only a memory layout causes ---------------------------------------------------------------------------------


def depends_on_layout(
    runner: Runner, check: Check[Any, Any], example: CaseExample, level: str = STRICT, shared: object = None
) -> bool:
    """Ask once more, and with contiguous arrays: whether only the latter is right, which is a matter of ATT-13.

    Args:
        runner: of the subject.
        check: by which the example fails.
        example: as the check takes it.
        level: of what is wrong; what only higher profiles ask for does not count.
        shared: what the check has prepared, if it has; a layout changes nothing of it.

    Returns:
        whether the example fails again, but not with contiguous arrays; False where its arrays are contiguous.
    """
    if not has_layouts(example):
        return False
    prepared = check.prepare(example) if shared is None else shared

    def is_right(example: CaseExample) -> bool:
        return not breaks(runner(check, example, prepared), level)

    return is_right(lay_contiguous(example)) and not is_right(example)


def lay_contiguous(example: CaseExample) -> Any:
    """The example with all its cases in contiguous arrays."""
    return change_cases(example, lambda case: replace(case, memory={}))


def has_layouts(example: CaseExample) -> bool:
    """Whether a case in the example has arrays that do not lie contiguous."""
    if isinstance(example, Case | Planted):
        return bool(asked_case(example).memory)
    return type(example) is tuple and any(map(has_layouts, example))
