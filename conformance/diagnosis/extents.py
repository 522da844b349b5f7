"""Mistakes with a number that the answers themselves tell: where a kernel ends, how often something counts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from conformance.cases.facts import operation_facts
from conformance.checks.comparison import LARGEST
from conformance.diagnosis.attention import EMPTY, power_of_two, stepped
from conformance.diagnosis.matching import SEVERAL, Failing, Mistake, giving, loose, worst_row
from conformance.diagnosis.steps import Steps, divided, exponentials_of, products_of, result
from specification.dtypes import HALF

MOST_COMPARED = 2**22
"""Numbers, of every head with every other."""
FEW = 6
"""Numbers tried, of those that one row's answers allow."""


def extents(failing: Failing) -> Iterator[Mistake]:
    """Mistakes in the output of attention."""
    if failing.case.operation != "attention" or not failing.steps.value.size:
        return
    yield from keys_at_most(failing)
    yield from columns_at_most(failing)
    yield from other_scales(failing)
    yield from sinks_counted(failing)
    yield from empty_rows(failing)
    yield from too_large_scores(failing)
    yield from hidden_rows(failing)
    yield from heads_in_order(failing)


def of_steps(name: str, steps: Steps) -> Mistake:
    return stepped(name, lambda failing: steps)


def roundest(numbers: np.ndarray) -> list[int]:
    """Powers of two and one less first, then sums of two powers, and so on. Of thousands some match by chance."""
    return sorted((int(n) for n in numbers), key=lambda n: (min(n.bit_count(), (n + 1).bit_count() + 1), n))[:FEW]


WHOLE_BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def likely(numbers: np.ndarray, size: int) -> list[int]:
    """Those of the numbers that are whole blocks of the size, then the roundest."""
    whole = [n for n in (size // block * block for block in WHOLE_BLOCKS) if n in numbers]
    return list(dict.fromkeys([*whole, *roundest(numbers)]))


def ends(words: str, n: int, size: int) -> Iterator[str]:
    """The words for the first n columns; and for whole blocks, where these are so many."""
    yield words.format(only=f"the first {n} columns", end=f"the first {n}")
    for block in WHOLE_BLOCKS:
        if n == size // block * block:
            yield words.format(only="the whole blocks", end="the last whole block") + f" (blocks of {block} columns)"


def without_bias(failing: Failing, name: str, bias: np.ndarray) -> Iterator[Mistake]:
    """A bias of the output's columns that is added to the first of them only."""
    right, size = failing.right("output"), bias.size
    wrong = last_ones(failing.off("output").reshape(-1, size), 1)
    for n in dict.fromkeys(size // block * block for block in WHOLE_BLOCKS) if wrong.size else ():
        if 0 < n <= wrong[0]:
            less = np.where(np.arange(size) < n, 0, bias)
            output = (right.reshape(-1, size) - less).reshape(right.shape)
            for words in ends(f"{name} is not added to columns past {{end}}", n, size):
                yield giving(words, "output", output)


def answering(failing: Failing, outputs: np.ndarray) -> np.ndarray:
    """Which of many outputs [n, V] are those of the worst row."""
    row = worst_row(failing)
    got = failing.answer("output")
    return np.flatnonzero((np.abs(outputs - got[row]) <= loose(failing, "output", got)[row]).all(axis=-1))


def in_row(array: np.ndarray, row: tuple[int, int, int]) -> np.ndarray:
    """What stands in an array that is broadcast to [B, H, Q, K]."""
    return array[tuple(i if size > 1 else 0 for i, size in zip(row, array.shape, strict=False))]


def keys_at_most(failing: Failing) -> Iterator[Mistake]:
    s, row = failing.steps, worst_row(failing)
    scores, value = failing.forward.scores[row], s.value[row[:2]]
    maximum = np.max(scores, initial=-np.inf)
    if s.sinks is not None:
        maximum = max(maximum, float(s.sinks[row[1], 0, 0]))
    if not np.isfinite(maximum):
        return
    exponentials = np.exp(scores - maximum)
    sink = 0.0 if s.sinks is None else np.exp(s.sinks[row[1], 0, 0] - maximum)
    terms = (exponentials * in_row(np.broadcast_to(s.factor, s.visible.shape), row))[:, None] * value
    K = len(scores)
    for end, order in (("past the first {}", slice(None)), ("before the last {}", slice(None, None, -1))):
        total = np.cumsum(exponentials[order])[:, None] + sink
        found = answering(failing, divided(np.cumsum(terms[order], axis=0), total))
        some = np.cumsum(exponentials[order]) > 0  # a row of which nothing is left tells no number
        for n in roundest(found[(found + 1 < K) & some[found]] + 1):
            seen = np.arange(K) < n if order == slice(None) else np.arange(K) >= K - n
            names = [f"keys {end.format(n)} are left out"]
            if K - n == 1:
                names.insert(n % 8 == 0, f"the {'last' if order == slice(None) else 'first'} key is left out")
            for name in names:
                yield of_steps(name, s.changed(visible=s.visible & seen))


def columns_at_most(failing: Failing) -> Iterator[Mistake]:
    """Scores from the first n columns of query and key."""
    s, row = failing.steps, worst_row(failing)
    if s.softcap is not None:
        return
    products = s.query[row][None] * s.key[row[:2]]
    K, D = products.shape
    if D < 2 or K * D > 2**22:
        return
    bias = in_row(np.broadcast_to(s.bias, s.visible.shape), row)
    scores = np.where(in_row(s.allowed, row), np.cumsum(products, axis=1).T * s.scale + bias, -np.inf)
    sinks = None if s.sinks is None else s.sinks[row[1], 0, 0]
    exponentials, total, _ = exponentials_of(scores, sinks)
    factor = in_row(np.broadcast_to(s.factor, s.visible.shape), row)
    outputs = (divided(exponentials, total) * factor) @ s.value[row[:2]]
    found = answering(failing, outputs)
    for n in roundest(found[found + 1 < D] + 1):
        name = f"scores are taken from the first {n} columns of query and key"
        fewer = s.changed(query=s.query[..., :n], key=s.key[..., :n])
        yield of_steps(name, fewer)
        if failing.case.options.get("scale") is None:
            yield of_steps(f"{name}, and so is the scale", fewer.changed(scale=n**-0.5))


# --- scales -----------------------------------------------------------------------------------------------------------


def other_scales(failing: Failing) -> Iterator[Mistake]:
    """A default scale of another width."""
    D = failing.case.inputs["query"].shape[-1]
    if failing.case.options.get("scale") is not None:
        return
    widths = dict.fromkeys([power_of_two(D), *(-(-D // n) * n for n in (8, 16, 32, 64, 128)), 32, 64, 80, 96, 128, 256])
    H = failing.case.inputs["query"].shape[1]
    for n in (n for n in [*widths, *(D * h for h in (H,) if h > 1)] if n != D):
        name = f"the default scale is taken from a width of {n}, not {D}"
        yield of_steps(name, failing.steps.changed(scale=n**-0.5))


# --- sinks and padding ------------------------------------------------------------------------------------------------


def totals_needed(failing: Failing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(by what the right output's numerators are divided, the right sum, the maximum), for every row."""
    s = failing.steps
    exponentials, total, maximum = exponentials_of(failing.forward.scores, s.sinks)
    numerators, got = (exponentials * s.factor) @ s.value, failing.answer("output")
    needed = np.sum(numerators**2, axis=-1, keepdims=True) / np.sum(numerators * got, axis=-1, keepdims=True)
    return needed, total, maximum


def sinks_counted(failing: Failing) -> Iterator[Mistake]:
    """How often the sink counts in each row: a whole number, and not the same in all."""
    s = failing.steps
    if s.sinks is None:
        return
    needed, total, maximum = totals_needed(failing)
    sink = np.exp(s.sinks - maximum)
    off = failing.off("output").any(axis=-1, keepdims=True)
    times = np.where(off & np.isfinite(needed), np.rint((needed - total) / sink + 1), 1)
    if not (np.all(np.abs(times) < 1000) and np.any(times != 1)):
        return
    values = {int(n) for n in np.unique(times[off])}
    n = values.pop()
    if values or n == 1 or n < 0 or (n == 0 and off.all()):
        return
    often = {0: "is ignored", 2: "counts twice"}.get(n, f"counts {n} times")
    where = "" if off.all() else " in some rows"
    weights = failing.forward.weights * divided(total, total + (times - 1) * sink)
    yield giving(f"the sink {often}{where}", "output", result(s, weights, total))


def more_keys(failing: Failing) -> Iterator[Mistake]:
    """The same number of keys too many in every row, whose scores and values are 0."""
    if failing.case.operation != "attention" or failing.steps.sinks is not None:
        return
    needed, total, maximum = totals_needed(failing)
    row = worst_row(failing)
    number = float(((needed - total) * np.exp(maximum))[row][0])
    if not 0.5 < number < 2**16:
        return
    n = round(number)
    extra = n * np.exp(-maximum)
    weights = failing.forward.weights * divided(total, total + extra)
    keys = "one key too many counts" if n == 1 else f"{n} keys too many count"
    output = result(failing.steps, weights, total)
    yield giving(f"{keys}, with a score of 0 and a value of 0", "output", output)


def empty_rows(failing: Failing) -> Iterator[Mistake]:
    """Rows that allow nothing get a multiple of the mean."""
    s = failing.steps
    empty = ~s.allowed.any(axis=-1, keepdims=True)
    if not empty.any() or s.sinks is not None or np.any(failing.off("output") & ~empty):
        return
    mean = np.where(empty, np.mean(s.value, axis=2, keepdims=True), 0)
    factor = float(np.sum(failing.answer("output") * mean) / np.sum(mean**2)) if mean.any() else 0.0
    if not np.isfinite(factor) or np.isclose(factor, 1, rtol=1e-3):
        return
    words = "the sum" if np.isclose(factor, s.key.shape[2], rtol=1e-3) else f"{factor:.4g} times the mean"
    output = np.where(empty, factor * mean, failing.forward.output)
    yield giving(f"{EMPTY} get {words} of all values", "output", output)


def too_large_scores(failing: Failing) -> Iterator[Mistake]:
    """Rows are NaN whose largest score is infinite in the 16 bits of the inputs, before it is scaled or after it."""
    s, dtype = failing.steps, failing.case.dtype
    if dtype not in HALF or s.softcap is not None or not s.scale:
        return
    got, right, scaled = failing.answer("output"), failing.right("output"), products_of(s)
    numbers, tried = np.isfinite(got), np.zeros(0)
    for products in (scaled / s.scale, scaled):
        held = np.where(np.abs(products) > LARGEST[dtype], np.copysign(np.inf, scaled), scaled)
        highest = np.where(s.allowed, held, -np.inf).max(axis=-1, keepdims=True)
        lost = s.allowed.any(axis=-1, keepdims=True) & np.isinf(highest)
        if lost.any() and not np.array_equal(lost, tried):
            output = np.where(lost, np.where(numbers, np.nan, got), right)
            yield giving(f"scores overflow in {dtype}, the dtype of the inputs", "output", output)
        tried = lost


def hidden_rows(failing: Failing) -> Iterator[Mistake]:
    """Rows are NaN or 0 where so many of their first or last keys are hidden, and others are not.

    Where a block has no key the running maximum is still -inf, and -inf less -inf is NaN.
    """
    allowed, right, got = failing.steps.allowed, failing.right("output"), failing.answer("output")
    off = failing.off("output").any(axis=-1)
    some = allowed.any(axis=-1)
    if not off.any() or np.any(off & ~some):
        return
    for value, words in ((np.nan, "NaN"), (0.0, "0")):
        if not np.array_equal(got[off], np.full_like(got[off], value), equal_nan=True):
            continue
        for order, which in ((slice(None), "first"), (slice(None, None, -1), "last")):
            hidden = np.where(some, np.argmax(allowed[..., order], axis=-1), 0)
            fewest, most = int(hidden[off].min()), int(np.max(hidden[~off & some], initial=0))
            if fewest > most:
                n = roundest_between(most + 1, fewest)
                output = np.where((hidden >= n)[..., None], value, right)
                keys = "key is" if n == 1 else f"{n} keys are"
                yield giving(f"rows whose {which} {keys} hidden are {words}", "output", output)


def roundest_between(least: int, most: int) -> int:
    """The largest multiple of the largest power of two of which there is one."""
    step = 1 << most.bit_length()
    while most // step * step < least:
        step //= 2
    return most // step * step


ORDERS = {
    "in reverse": lambda H, G: np.arange(H)[::-1],
    "interleaved: those of a group are G apart": lambda H, G: np.arange(H).reshape(G, -1).T.ravel(),
    "interleaved: neighbours are of different groups": lambda H, G: np.arange(H).reshape(-1, G).T.ravel(),
}
"""Which head's output each head gets, of H query heads and G key heads."""


def heads_in_order(failing: Failing) -> Iterator[Mistake]:
    """Heads get each other's outputs."""
    right, got = failing.right("output"), failing.answer("output")
    H, limits = right.shape[1], loose(failing, "output", got)
    if H < 2 or H * right.size > MOST_COMPARED:
        return
    near = np.array([(np.abs(got - right[:, [h]]) <= limits).all(axis=(0, 2, 3)) for h in range(H)])
    G, own = failing.case.inputs["key"].shape[1], np.diagonal(near)
    for words, order in ORDERS.items():
        if near[order(H, G), np.arange(H)].all():
            yield giving(f"heads get each other's outputs, {words}", "output", right[:, order(H, G)])
            return
    read, left = np.arange(H), set(np.flatnonzero(~own))
    for head in np.flatnonzero(~own):
        read[head] = next((other for other in np.flatnonzero(near[:, head]) if other in left), head)
        left.discard(read[head])
    if not left:
        yield giving("heads get each other's outputs, in another order", "output", right[:, read])


# --- where the wrong elements lie -------------------------------------------------------------------------------------

AXES = {
    "output": ("batch elements", "heads", "queries", "columns"),
    "gradient of query": ("batch elements", "heads", "queries", "columns"),
    "gradient of key": ("batch elements", "key heads", "keys", "columns"),
    "gradient of value": ("batch elements", "key heads", "keys", "columns"),
    "gradient of sinks": ("heads",),
    "gradient of bias": ("batch elements", "heads", "queries", "keys"),
}
TOGETHER = ("batch elements times heads", "")
THINGS = {"rows": "rows", "vocabulary": "", "classes": "classes", "length": "positions"}
"""What the axes of other operations hold, by their names in `cases/axes.py`; all others are columns."""
REPEATED = ("heads", "key heads", "batch elements", TOGETHER[0], "rows", "columns")
"""Of which those past the first ones may get the answers of others."""


def axes_of(name: str, ndim: int) -> tuple[str, ...]:
    """What stands along the axes of a result of attention; a bias may lack the first ones."""
    return AXES.get(name, ())[-ndim:]


def laid_out(failing: Failing, name: str) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Shapes in which a result is looked at, and what each axis holds; nothing for an axis that tells nothing."""
    case, shape = failing.case, failing.right(name).shape
    record = operation_facts(case.operation)
    if case.operation == "attention" and name in AXES:
        yield shape, axes_of(name, len(shape))
        if name == "output" and min(shape[:2]) > 1:
            yield (shape[0] * shape[1], math.prod(shape[2:])), TOGETHER
    elif not record.masked:
        axes = record.axes(case)[1].get("-> output" if name == "output" else name.removeprefix("gradient of "), ())
        if len(axes) == len(shape):
            kinds = [axis[0].rstrip(" 0123456789") if axis else "" for axis in axes]
            groups = [
                (kind, math.prod(n for k, n in zip(kinds, shape, strict=True) if k == kind))
                for kind in dict.fromkeys(kinds)
            ]
            things = (
                ("rows", "columns")
                if name.endswith(".weight")
                else (THINGS.get(k, "columns") if k else "" for k, _ in groups)
            )
            yield tuple(size for _, size in groups), tuple(things)


def last_ones(off: np.ndarray, axis: int) -> np.ndarray:
    """The indices of an axis at which something is wrong."""
    return np.flatnonzero(off.any(axis=tuple(i for i in range(off.ndim) if i != axis)))


def regions(failing: Failing, name: str) -> Iterator[str]:
    """Elements past some index of one axis, all of them 0 or the same as at another index."""
    for shape, axes in laid_out(failing, name):
        got, off = failing.answer(name).reshape(shape), failing.off(name).reshape(shape)
        for axis, things in enumerate(axes):
            wrong = last_ones(off, axis)
            if not things or not len(wrong) or wrong[0] == 0:
                continue
            n = int(wrong[0])
            rest = np.arange(n, off.shape[axis])
            after = np.take(got, rest, axis)
            beside = "" if name == "output" else f" in the {name}"
            written = last_ones(got != 0, axis)
            if len(written) and written[-1] < n:
                yield f"{things} past the first {roundest_between(int(written[-1]) + 1, n)} are 0{beside}"
            if not np.any(after) or len(wrong) < len(rest) or things not in REPEATED:
                continue
            if n > 1 and np.array_equal(after, np.broadcast_to(np.take(got, [n - 1], axis), after.shape)):
                yield f"{things} past the first {n} get the answer of the one before{beside}"
            elif n > 1 and np.array_equal(after, np.take(got, (rest - n) % n, axis)):
                yield f"{things} past the first {n} get the answers of the first ones again{beside}"


def displaced(failing: Failing, name: str) -> Iterator[str]:
    """Wrong elements that are right ones of another place, which lies equally far before or after each of them."""
    got, right, bounds = (
        array.reshape(-1)
        for array in (failing.answer(name), failing.right(name), loose(failing, name, failing.right(name)))
    )
    off, width = np.flatnonzero(failing.off(name)), failing.right(name).shape[-1] if failing.right(name).ndim else 1
    if len(off) < SEVERAL or np.ptp(got[off]) <= 2 * np.max(bounds):
        return
    if 2 * np.count_nonzero(np.abs(right[off] - got[off]) <= bounds[off]) >= len(off):  # only just wrong, by digits
        return
    for place in np.flatnonzero(np.abs(right - got[off[0]]) <= bounds):
        places = off + (step := int(place) - int(off[0]))
        if step == 0:
            continue
        if places.min() < 0 or places.max() >= right.size or np.any(np.abs(right[places] - got[off]) > bounds[places]):
            continue
        unit, count = ("row", abs(step) // width) if step % width == 0 else ("element", abs(step))
        where = "before" if step < 0 else "after"
        yield f"wrong elements hold what stands {count} {unit}{'s' * (count > 1)} {where} them"


def round_regions(failing: Failing, name: str) -> Iterator[str]:
    """Where the wrong elements lie, if they begin at a round number and go to the end."""
    for shape, axes in laid_out(failing, name):
        off = failing.off(name).reshape(shape)
        for axis, things in enumerate(axes):
            wrong = last_ones(off, axis)
            if not things or not len(wrong):
                continue
            n = int(wrong[0])
            if n >= 16 and n % 16 == 0 and 2 * len(wrong) > off.shape[axis] - n:
                yield f"only {things} past the first {n} are wrong"
