"""Known mistakes of attention, its weights and its log-sum-exp, in every call that has what they are about.

Each is the definition with other steps: a mask inverted, a scale left out, one step done wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from conformance.cases.case import Case
from conformance.cases.declaration import OTHER_LAYOUT
from conformance.checks.comparison import LARGEST, PRECISION
from conformance.diagnosis.matching import Arrays, Bounds, Failing, Mistake, in_worst_row, resulting, told_from
from conformance.diagnosis.steps import (
    Steps,
    added_up,
    divided,
    exponentials_of,
    forward,
    highest,
    masked_scores,
    pulled_back,
    result,
    scores_of,
    steps_of,
)
from specification import Causal, Dense, KeyLengths, Segments, SlidingWindow
from specification.dtypes import compute_dtype_name
from specification.masks import And, Or

LARGE = 2**14
"""Pairs from which on a mistake is tried on one row first."""
Change = Callable[[Failing], Steps | None]
"""The steps of a mistake; None where the case has no place for it."""


def stepped(name: str, change: Change) -> Mistake:
    """Attention by other steps."""

    def changed(failing: Failing) -> Steps | None:
        steps = change(failing)
        return None if steps is None else as_emptied(failing, steps)

    def results(failing: Failing) -> dict[str, Any] | None:
        steps = changed(failing)
        return None if steps is None else {"output": forward(steps).output}

    def likely(failing: Failing) -> bool:
        if failing.case.operation != "attention" or failing.steps.visible.size < LARGE or "output" not in failing.wrong:
            return True
        steps = changed(failing)
        return steps is not None and in_worst_row(failing, steps)

    return resulting(name, results)._replace(likely=likely)


def as_emptied(failing: Failing, steps: Steps) -> Steps:
    """With rows that the mistake leaves no key as this implementation fills them: with NaN, the mean or zeros.

    The mean of one value is what is right.
    """
    emptied = rows_emptied(failing.steps, steps)
    if "output" not in failing.got or not emptied.any():
        return steps
    rows = failing.answer("output")[np.broadcast_to(~steps.allowed.any(axis=-1), emptied.shape)]
    filled = "nan" if np.isnan(rows).all() else "mean" if rows.any() and steps.visible.shape[-1] > 1 else "zero"
    return steps.changed(empty_rows=filled)


def rows_emptied(right: Steps, wrong: Steps) -> np.ndarray:
    """Which rows [B, H, Q] have a key, and none by other steps, where it is said nowhere else what they hold then."""
    said = wrong.sinks is not None or wrong.empty_rows not in ("zero", "any")
    if said or right.operation == "attention_logsumexp":
        return np.zeros(right.allowed.shape[:3], bool)
    return np.asarray(right.allowed.any(axis=-1) & ~wrong.allowed.any(axis=-1))


def with_options(case: Case, **options: Any) -> Case:
    return replace(case, options=case.options | options)


# --- masks ------------------------------------------------------------------------------------------------------------


def seen_otherwise(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """With another mask, where there is one."""

    def changed(failing: Failing) -> Steps | None:
        visible = failing.steps.visible
        if failing.case.options.get("mask") is None:
            return None
        return failing.steps.changed(visible=np.broadcast_to(change(visible), visible.shape))

    return changed


def causal_always(last: bool, beside: bool, masked: bool = True) -> Change:
    """Causal whether a mask says so or not. last: aligned to the last query and key. beside: what a mask forbids is
    forbidden, too. masked: also in calls that have a mask.
    """

    def changed(failing: Failing) -> Steps | None:
        visible = failing.steps.visible
        if not masked and failing.case.options.get("mask") is not None:
            return None
        Q, K = visible.shape[2:]
        triangle = np.tri(Q, K, K - Q if last else 0, dtype=bool)
        return failing.steps.changed(visible=visible & triangle if beside else np.broadcast_to(triangle, visible.shape))

    return changed


def asked_otherwise(change: Callable[[Case], Case | None]) -> Change:
    def changed(failing: Failing) -> Steps | None:
        other = change(failing.case)
        return None if other is None else steps_of(other)

    return changed


def described(kind: type, change: Callable[[Any, Case], Any]) -> Change:
    """With every description of this kind changed, also in masks that are combined; None where there is none."""

    def mapped(mask: Any, case: Case) -> Any:
        if isinstance(mask, And | Or):
            return type(mask)(mapped(mask.left, case), mapped(mask.right, case))
        return change(mask, case) if isinstance(mask, kind) else mask

    def changed(case: Case) -> Case | None:
        mask = case.options.get("mask")
        found = mapped(mask, case)
        same = found is mask or any(side is None for side in sides(found))
        return None if same else with_options(case, mask=found)

    return asked_otherwise(changed)


def sides(mask: Any) -> list[Any]:
    return [*sides(mask.left), *sides(mask.right)] if isinstance(mask, And | Or) else [mask]


def offset_changed(change: Callable[[Any, int, int], Any], kind: type = Causal) -> Change:
    """A causal mask or a window at another offset; `change` gets the offset, Q and K."""

    def changed(mask: Any, case: Case) -> Any:
        Q, K = case.inputs["query"].shape[2], case.inputs["key"].shape[2]
        return replace(mask, offset=change(0 if mask.offset is None else mask.offset, Q, K))

    return described(kind, changed)


def window_changed(left: int, right: int) -> Change:
    def changed(mask: Any, case: Case) -> Any:
        sides = (None if side is None else side + step for side, step in ((mask.left, left), (mask.right, right)))
        low, high = sides
        if (low is not None and low < 0) or (high is not None and high < 0):
            return None
        return SlidingWindow(low, high, mask.offset)

    return described(SlidingWindow, changed)


def lengths_changed(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def changed(mask: Any, case: Case) -> Any:
        lengths = change(np.asarray(mask.lengths).astype(int))
        return KeyLengths(np.clip(lengths, 0, case.inputs["key"].shape[2]))

    return described(KeyLengths, changed)


def side_left_out(side: str) -> Change:
    """A window without one of its ends."""
    return described(
        SlidingWindow, lambda mask, case: None if getattr(mask, side) is None else replace(mask, **{side: None})
    )


def combined_otherwise(combine: Callable[[Any], Any]) -> Change:
    """Two masks of which both must allow a pair, put together in another way."""

    def changed(case: Case) -> Case | None:
        mask = case.options.get("mask")
        return with_options(case, mask=combine(mask)) if isinstance(mask, And) else None

    return asked_otherwise(changed)


def by_order(mask: Any, case: Case) -> Any:
    """Segments in which a query sees those before its own, too."""
    queries, keys = (np.asarray(ids) for ids in (mask.query_ids, mask.key_ids))
    return Dense((queries[:, :, None] >= keys[:, None])[:, None])


def ids_changed(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def changed(mask: Any, case: Case) -> Any:
        return Segments(*(change(np.asarray(ids)) for ids in (mask.query_ids, mask.key_ids)))

    return described(Segments, changed)


def same_digits(dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Numbers for ids that fall together exactly where these do in this dtype."""

    def change(ids: np.ndarray) -> np.ndarray:
        return ids.astype(np.float32).astype(dtype).astype(float).astype(np.int64)

    return change


def empty_rows_as(mode: str) -> Change:
    def changed(failing: Failing) -> Steps | None:
        if failing.steps.sinks is not None or failing.case.operation == "attention_logsumexp":
            return None
        return failing.steps.changed(empty_rows=mode)

    return changed


def transposed(visible: np.ndarray) -> np.ndarray:
    return visible.swapaxes(2, 3) if visible.shape[2] == visible.shape[3] else visible


def by_columns(visible: np.ndarray) -> np.ndarray:
    """The array's numbers read as if its first index ran fastest."""
    *lead, Q, K = visible.shape
    return visible.reshape(*lead, K, Q).swapaxes(-1, -2)


def over_flat_heads(visible: np.ndarray) -> np.ndarray:
    """[B, 1, Q, K] repeated H times one after the other, and cut as [B, H, Q, K]."""
    B, H, *pairs = visible.shape
    if not np.array_equal(visible, np.broadcast_to(visible[:, :1], visible.shape)):
        return visible
    return np.tile(visible[:, 0], (H, 1, 1)).reshape(B, H, *pairs)


def wrapped(modulus: int) -> Callable[[np.ndarray], np.ndarray]:
    """Row i begins at i * K modulo so much."""

    def read(visible: np.ndarray) -> np.ndarray:
        *lead, Q, K = visible.shape
        if modulus >= Q * K:
            return visible
        places = (np.arange(Q) * K % modulus)[:, None] + np.arange(K)
        return visible.reshape(*lead, Q * K)[..., np.minimum(places, Q * K - 1)]

    return read


def first_of_block(block: int) -> Change:
    """Mask and bias of the first row stand for every row of a block."""

    def changed(failing: Failing) -> Steps | None:
        s, Q = failing.steps, failing.case.inputs["query"].shape[2]
        if Q < 2 or (failing.case.options.get("mask") is None and "bias" not in failing.case.inputs):
            return None
        if block >= 2 * Q:
            return None
        rows = np.arange(Q) // block * block
        bias, allowed = (a[:, :, rows] if a.shape[2] > 1 else a for a in (s.bias, s.open))
        return s.changed(visible=s.visible[:, :, rows], bias=bias, open=allowed)

    return changed


def rows_counted_anew(n: int) -> Change:
    """Rows of the mask are counted from 0 in every block of n queries."""
    return seen_otherwise(lambda m: m[:, :, np.arange(m.shape[2]) % n])


def rounded_down(n: int, number: Any) -> Any:
    return number // n * n


def rounded_up(n: int, number: Any) -> Any:
    return -(-number // n) * n


EMPTY = "rows that allow nothing"
"""How the names of mistakes begin that are made in such rows only."""
EVERY_CALL = "every call is causal"
"""How the names of mistakes begin that show in calls without a mask, too."""

MASK_CHANGES: dict[str, Change] = {
    "the mask is inverted: True is taken for forbidden": seen_otherwise(np.logical_not),
    "the mask is ignored": seen_otherwise(np.ones_like),
    "the mask is transposed": seen_otherwise(transposed),
    "the mask of batch element 0 is used for all": seen_otherwise(lambda m: m[:1]),
    "the mask of head 0 is used for all heads": seen_otherwise(lambda m: m[:, :1]),
    "the causal mask is aligned to the first query and key (top left)": offset_changed(lambda o, Q, K: 0),
    "the causal mask is aligned to the last query and key (bottom right)": offset_changed(lambda o, Q, K: K - Q),
    "the causal mask is off by one: a query does not see its own key": offset_changed(lambda o, Q, K: o - 1),
    "the causal mask is off by one: a query sees the key after its own": offset_changed(lambda o, Q, K: o + 1),
    "the window's left end is left out": window_changed(-1, 0),
    "the window's right end is left out": window_changed(0, -1),
    "the window is one too wide on the left": window_changed(1, 0),
    "the window is one too wide on the right": window_changed(0, 1),
    "the window's offset is ignored": offset_changed(lambda o, Q, K: 0, SlidingWindow),
    "the window is aligned to the last query and key (bottom right)": offset_changed(
        lambda o, Q, K: K - Q, SlidingWindow
    ),
    "the window is unbounded on the left": side_left_out("left"),
    "the window is unbounded on the right": side_left_out("right"),
    "of two masks that are combined only the first counts": combined_otherwise(lambda mask: mask.left),
    "of two masks that are combined only the second counts": combined_otherwise(lambda mask: mask.right),
    "two masks are combined by or, not by and": combined_otherwise(lambda mask: Or(mask.left, mask.right)),
    "each batch element has the mask of the one before": seen_otherwise(lambda m: np.roll(m, 1, axis=0)),
    "each batch element has the mask of the next one": seen_otherwise(lambda m: np.roll(m, -1, axis=0)),
    "the mask of batch element (b * H + h) % B is used": seen_otherwise(over_flat_heads),
    "each row has the mask of the first row": seen_otherwise(lambda m: m[:, :, :1]),
    "each row has the mask of the last row": seen_otherwise(lambda m: m[:, :, -1:]),
    "every row is taken for a length: as many of the first keys are seen as it allows": seen_otherwise(
        lambda m: np.arange(m.shape[3]) < m.sum(axis=3, keepdims=True)
    ),
    "the causal mask's offset has the other sign": offset_changed(lambda o, Q, K: -o),
    "the window's offset has the other sign": offset_changed(lambda o, Q, K: -o, SlidingWindow),
    "the window is as wide on the right as on the left": described(
        SlidingWindow, lambda mask, case: replace(mask, right=mask.left)
    ),
    "an end that a window lacks is taken for 0": described(
        SlidingWindow, lambda mask, case: replace(mask, left=mask.left or 0, right=mask.right or 0)
    ),
    **{
        f"{EVERY_CALL} from the {place}, {words}": causal_always(last, **how)
        for place, last in (("first query and key (top left)", False), ("last query and key (bottom right)", True))
        for words, how in (
            ("whatever its mask", {"beside": False}),
            ("beside its mask", {"beside": True}),
            ("where it has no mask", {"beside": True, "masked": False}),
        )
    },
    "each head has the mask of the next one": seen_otherwise(lambda m: np.roll(m, -1, axis=1)),
    "a query sees the segments before its own, too": described(Segments, by_order),
    "key lengths count one key too few": lengths_changed(lambda n: n - 1),
    "key lengths count one key too many": lengths_changed(lambda n: n + 1),
    "segment ids are compared in bfloat16": ids_changed(same_digits(ml_dtypes.bfloat16)),
    "segment ids are compared in float16": ids_changed(same_digits(np.float16)),
    "segment ids are compared in float32": ids_changed(same_digits(np.float32)),
    **{f"segment ids are compared modulo 2^{n}": ids_changed(lambda ids, n=n: ids % 2**n) for n in (8, 16)},  # type: ignore[misc]
    **{
        f"{of} rounded {way} to whole blocks (blocks of {n} keys)": change
        for n in (8, 16, 32, 64, 128, 256)
        for way, whole in ((("down"), partial(rounded_down, n)), ("up", partial(rounded_up, n)))
        for of, change in (
            ("the causal mask's offset is", offset_changed(lambda o, Q, K, f=whole: f(o))),  # type: ignore[misc]
            ("the window's offset is", offset_changed(lambda o, Q, K, f=whole: f(o), SlidingWindow)),  # type: ignore[misc]
            ("key lengths are", lengths_changed(whole)),
        )
    },
    f"{EMPTY} get the mean of all values": empty_rows_as("mean"),
    f"{EMPTY} get NaN": empty_rows_as("nan"),
    **{
        f"every block of queries has the mask of the first one (blocks of {n} rows)": rows_counted_anew(n)
        for n in (2, 4, 8, 16, 32, 64, 128, 256)
    },
    "the mask is read column by column": seen_otherwise(by_columns),
    **{f"the mask's row offset wraps around (at 2^{n})": seen_otherwise(wrapped(2**n)) for n in (16, 15, 8)},
    **{
        f"mask and bias of a block's first row are used for all its rows (blocks of {n} rows)": first_of_block(n)
        for n in (2, 4, 8, 16, 32, 64, 128, 256)
    },
}


# --- scale, softcap, bias, sinks, heads -------------------------------------------------------------------------------


def scaled(scale: Callable[[float, Failing], float]) -> Change:
    def changed(failing: Failing) -> Steps | None:
        own = failing.steps.scale
        new = float(scale(own, failing))
        return None if new == own or not np.isfinite(new) else failing.steps.changed(scale=new)

    return changed


def width(failing: Failing) -> int:
    return max(1, failing.case.inputs["query"].shape[-1])


def model_width(failing: Failing) -> int:
    return max(1, failing.case.inputs["query"].shape[1] * width(failing))


def number_of_keys(failing: Failing) -> int:
    return max(1, failing.steps.key.shape[2])


def value_width(failing: Failing) -> int:
    inputs = failing.case.inputs
    return max(1, inputs["value"].shape[-1]) if "value" in inputs else width(failing)


def left_out(name: str, **fields: Any) -> Change:
    """Without one input or option."""

    def changed(failing: Failing) -> Steps | None:
        given = failing.case.inputs.get(name, failing.case.options.get(name))
        return None if given is None else failing.steps.changed(**fields)

    return changed


def heads_read(
    order: Callable[[int, int], np.ndarray], of: tuple[str, ...] = ("key", "value"), grouped: bool = True
) -> Change:
    """Query heads read other heads of keys and values; `order` gets H and G. grouped: only where they share these."""

    def changed(failing: Failing) -> Steps | None:
        H, G = failing.case.inputs["query"].shape[1], failing.case.inputs["key"].shape[1]
        if not 1 < G <= H or (grouped and G == H):
            return None
        read, share = np.clip(order(H, G), 0, G - 1) * (H // G), H // G
        if np.array_equal(read, np.arange(H) // share * share):
            return None
        s = failing.steps
        return s.changed(**{name: getattr(s, name)[:, read] for name in of})

    return changed


def of_other_heads(name: str, order: Callable[[int, int], np.ndarray]) -> Change:
    """Query heads have each other's sinks or bias; `order` gets H and G."""

    def changed(failing: Failing) -> Steps | None:
        s, (H, G) = failing.steps, (failing.case.inputs[n].shape[1] for n in ("query", "key"))
        read = order(H, max(G, 1))
        if name == "sinks":
            return None if s.sinks is None else s.changed(sinks=s.sinks[read])
        return None if s.bias.shape[1] < 2 else s.changed(bias=s.bias[:, read], open=s.open[:, read])

    return changed


OTHER_HEADS: dict[str, Callable[[int, int], np.ndarray]] = {
    "head h has the {} of head h % G": lambda H, G: np.arange(H) % G,
    "head h has the {} of its key head h // (H / G)": lambda H, G: np.arange(H) // (H // G),
    "heads have the {} of each other in reverse": lambda H, G: np.arange(H)[::-1],
}


def reshaped_keys(failing: Failing) -> Steps:
    *lead, K, D = failing.steps.key.shape
    return failing.steps.changed(key=failing.steps.key.reshape(*lead, D, K).swapaxes(-1, -2))


def without_zeros(failing: Failing) -> Steps | None:
    steps, some = failing.steps, scores_of(failing.steps) != 0
    return steps.changed(visible=steps.visible & some) if some.any() else None


def of_cosines(with_scale: bool) -> Change:
    def unit(array: np.ndarray) -> np.ndarray:
        return array / np.sqrt((array**2).sum(axis=-1, keepdims=True))

    def changed(failing: Failing) -> Steps | None:
        s = failing.steps
        return s.changed(query=unit(s.query), key=unit(s.key), scale=s.scale if with_scale else 1.0)

    return changed


def dropped_scores(failing: Failing) -> Steps | None:
    s = failing.steps
    if failing.case.options.get("dropout_keep") is None:
        return None
    return s.changed(factor=1.0, score=lambda p, bias, cap, scale: (cap(p) + bias) * s.factor)


def summed_values(failing: Failing) -> Steps | None:
    """As of an einsum with two letters for the heads."""
    s, (H, G) = failing.steps, (failing.case.inputs[name].shape[1] for name in ("query", "key"))
    if G < 2 or failing.case.operation != "attention":
        return None
    return s.changed(value=np.broadcast_to(s.value.sum(axis=1, keepdims=True) / (H // G), s.value.shape))


def is_scaled(failing: Failing) -> bool:
    """Whether the call has a scale of its own."""
    return failing.case.options.get("scale") is not None


def power_of_two(n: int) -> int:
    """The smallest that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


IGNORED = "the given scale is ignored: 1 / sqrt(D) is used"
OF_ZERO = "a scale of 0 is taken for none: 1 / sqrt(D) is used"
"""The same where the scale is 0; with another one, the second is right."""
SCORE_CHANGES: dict[str, Change] = {
    "the scale is 1: it is left out": scaled(lambda s, f: 1.0),
    IGNORED: scaled(lambda s, f: width(f) ** -0.5),
    OF_ZERO: scaled(lambda s, f: s if s or not is_scaled(f) else width(f) ** -0.5),
    "the scale is 1 / D": scaled(lambda s, f: 1 / width(f)),
    "the scale is that of the model width H * D": scaled(lambda s, f: model_width(f) ** -0.5),
    "the scale is 1 / sqrt(V)": scaled(lambda s, f: value_width(f) ** -0.5),
    "the scale is 1 / sqrt(K), of the number of keys": scaled(lambda s, f: number_of_keys(f) ** -0.5),
    "the scale is 1 / (2 D), as of D ** -1 / 2": scaled(lambda s, f: s if is_scaled(f) else width(f) ** -1 / 2),
    "the scale is one over sqrt(D) rounded down": scaled(
        lambda s, f: s if is_scaled(f) else 1 / max(1, math.isqrt(width(f)))
    ),
    "the scale is sqrt(D): scores are multiplied by it": scaled(lambda s, f: s if is_scaled(f) else width(f) ** 0.5),
    "the given scale divides the scores": scaled(lambda s, f: 1 / s if is_scaled(f) and s else s),
    "the scale is 1 / sqrt(H), of the number of heads": scaled(lambda s, f: max(1, f.steps.query.shape[1]) ** -0.5),
    "the scale is applied twice": scaled(lambda s, f: s * s),
    "the scale is on top of 1 / sqrt(D)": scaled(lambda s, f: s * width(f) ** -0.5),
    "the root of the scale is used once": scaled(lambda s, f: np.sqrt(abs(s))),
    "the scale's sign is lost": scaled(lambda s, f: abs(s)),
    "softcap is ignored": left_out("softcap", softcap=None),
    "bias is ignored": left_out("bias", bias=np.zeros((1, 1, 1, 1)), open=np.ones((1, 1, 1, 1), bool)),
    "sinks are ignored": left_out("sinks", sinks=None),
    "dropout is ignored": left_out("dropout_keep", factor=1.0),
    "query head h reads key head h % G": heads_read(lambda H, G: np.arange(H) % G),
    "query head h reads key head h % G, and the right values": heads_read(lambda H, G: np.arange(H) % G, ("key",)),
    "query head h reads value head h % G, and the right keys": heads_read(lambda H, G: np.arange(H) % G, ("value",)),
    "every query head reads key head 0": heads_read(lambda H, G: np.zeros(H, int), grouped=False),
    "query heads of a group are counted in powers of two: they read the wrong key head": heads_read(
        lambda H, G: np.arange(H) // power_of_two(H // G)
    ),
    "query heads of a group are counted in powers of two, rounded down: they read the wrong key head": heads_read(
        lambda H, G: np.arange(H) // (power_of_two(H // G + 1) // 2)
    ),
    "query heads of a group are counted one too many: they read the wrong key head": heads_read(
        lambda H, G: np.arange(H) // (H // G + 1)
    ),
    "query head h reads key head h // G": heads_read(lambda H, G: np.arange(H) // G),
    "query head h reads key head h, as far as there are so many": heads_read(lambda H, G: np.arange(H)),
    "the sink of head 0 is used for all heads": of_other_heads("sinks", lambda H, G: np.zeros(H, int)),
    **{
        words.format(name): of_other_heads(name, order)
        for name in ("sinks", "bias")
        for words, order in OTHER_HEADS.items()
    },
    "scores are cosines, of queries and keys divided by their lengths": of_cosines(False),
    "scores are cosines times the scale, of queries and keys divided by their lengths": of_cosines(True),
    "dropout is applied to the scores, not to the weights": dropped_scores,
    "every head has the sum of all key heads' values": summed_values,
    "keys [K, D] are reshaped to [D, K], not transposed": reshaped_keys,
    "scores of exactly 0 are taken for forbidden": without_zeros,
    "the scale is rounded to float32": scaled(lambda s, f: float(np.float32(s))),
    "the scale is rounded to bfloat16": scaled(lambda s, f: float(ml_dtypes.bfloat16(s))),
    "the scale is rounded to float16": scaled(lambda s, f: float(np.float16(s))),
    "query heads read key heads in reverse": heads_read(lambda H, G: (G - 1) - np.arange(H) // (H // G), grouped=False),
}


# --- the layout -------------------------------------------------------------------------------------------------------


def with_axes_exchanged(case: Case) -> Case | None:
    """The case with heads as positions, and positions as heads; None where that is no call of attention."""
    inputs, options = case.inputs, case.options
    plain = set(inputs) == {"query", "key", "value"} and options.get("dropout_keep") is None
    if case.operation != "attention" or not plain:
        return None
    Q, K = (inputs[name].shape[2] for name in ("query", "key"))
    mask, H, G = options.get("mask"), *(inputs[name].shape[1] for name in ("query", "key"))
    if K == 0 or Q % K or not isinstance(mask, Causal | SlidingWindow | None):
        return None
    if mask is not None and mask.offset is None and H != G:
        return None
    inputs, cotangents = ({n: a.swapaxes(1, 2) for n, a in arrays.items()} for arrays in (inputs, case.cotangents))
    return replace(case, inputs=inputs, cotangents=cotangents)


def by_other_layout(failing: Failing) -> dict[str, Any] | None:
    case = with_axes_exchanged(failing.case)
    if case is None:
        return None
    steps = steps_of(case)
    found = forward(steps)
    results = {"output": found.output}
    if case.cotangents:
        results |= added_up(pulled_back(steps, case.cotangents["output"].astype(float), found.weights), case)
    return {name: array.swapaxes(1, 2) for name, array in results.items() if name in failing.got}


def output_reshaped(back: bool) -> Callable[[Failing], dict[str, Any] | None]:
    """back: [B, H, Q, V] is read as [B, Q, H, V]; else that is what is read as [B, H, Q, V]."""

    def results(failing: Failing) -> dict[str, Any] | None:
        if failing.case.operation != "attention":
            return None
        output = failing.right("output")
        B, H, Q, V = output.shape
        return {
            "output": output.reshape(B, Q, H, V).swapaxes(1, 2) if back else output.swapaxes(1, 2).reshape(B, H, Q, V)
        }

    return results


RESHAPED = [
    resulting("the output is transposed to [B, Q, H, V], and read as [B, H, Q, V]", output_reshaped(False)),
    resulting("the output [B, H, Q, V] is read as [B, Q, H, V]", output_reshaped(True)),
]
LAYOUT = resulting(f"heads and positions changed places ({OTHER_LAYOUT})", by_other_layout)


# --- one step of the formula done wrong -------------------------------------------------------------------------------


def scored(uses: str, score: Any) -> Change:
    """Scores by another formula, where there is an input or option of this name."""

    def changed(failing: Failing) -> Steps | None:
        given = failing.case.inputs.get(uses, failing.case.options.get(uses))
        return None if given is None else failing.steps.changed(score=score)

    return changed


def weighed(name: str, weights: Callable[[Failing], np.ndarray | None]) -> Mistake:
    """Weights by another formula; before dropout."""

    def results(failing: Failing) -> dict[str, Any] | None:
        if failing.case.operation == "attention_logsumexp":
            return None
        found = weights(failing)
        return None if found is None else {"output": result(failing.steps, found, np.zeros(()))}

    return resulting(name, results)


def softmax_over(*axes: int, among_keys: bool = False, by_zero: bool = False) -> Callable[[Failing], np.ndarray]:
    """Along other axes. among_keys: with the largest score of the row. by_zero: with NaN where the sum is 0."""

    def weights(failing: Failing) -> np.ndarray:
        scores = masked_scores(failing.steps)
        largest = scores.max(axis=-1 if among_keys else axes, keepdims=True, initial=-np.inf)
        exponentials = np.exp(scores - (largest if by_zero else np.maximum(largest, -1e30)))
        total = exponentials.sum(axis=axes, keepdims=True)
        return exponentials / total if by_zero else divided(exponentials, total)

    return weights


def counted_as_zero(failing: Failing) -> np.ndarray | None:
    if failing.case.options.get("mask") is None:
        return None
    s = failing.steps
    exponentials, total, _ = exponentials_of(masked_scores(s), s.sinks)
    return divided(exponentials, total + (~s.allowed).sum(-1, keepdims=True))


def masked_afterwards(failing: Failing) -> np.ndarray | None:
    s = failing.steps
    if failing.case.options.get("mask") is None:
        return None
    return np.where(s.visible, forward(s.changed(visible=np.ones_like(s.visible))).weights, 0)


def beside_cut(first: bool) -> Callable[[Failing], np.ndarray | None]:
    """The sink's column stands at one end, and that at the other end is cut off."""

    def weights(failing: Failing) -> np.ndarray | None:
        s = failing.steps
        if s.sinks is None:
            return None
        exponentials, total, maximum = exponentials_of(failing.forward.scores, s.sinks)
        share = np.broadcast_to(np.exp(s.sinks - maximum), total.shape) / total
        kept = divided(exponentials, total)
        return np.concatenate([share, kept[..., :-1]] if first else [kept[..., 1:], share], axis=-1)

    return weights


def by_sums_so_far(failing: Failing) -> np.ndarray:
    exponentials, total, _ = exponentials_of(failing.forward.scores, failing.steps.sinks)
    return divided(exponentials, np.cumsum(total, axis=-2))


def times_infinity(failing: Failing) -> np.ndarray | None:
    """0 * inf for every pair that the mask allows; where no row has pairs of both kinds, other masks give NaN, too."""
    visible = failing.steps.visible
    if failing.case.options.get("mask") is None or not (visible.any(axis=-1) & ~visible.all(axis=-1)).any():
        return None
    return np.full(visible.shape, np.nan)


def by_a_number(number: float) -> Callable[[Failing], np.ndarray | None]:
    """The weights of all keys, and a number for those that the mask forbids."""

    def weights(failing: Failing) -> np.ndarray | None:
        s = failing.steps
        if failing.case.options.get("mask") is None:
            return None
        return np.where(s.visible, forward(s.changed(visible=np.ones_like(s.visible))).weights, number)

    return weights


def capped_afterwards(failing: Failing) -> np.ndarray | None:
    """Forbidden scores are -softcap, the softcap of -infinity."""
    s = failing.steps
    if s.softcap is None or failing.case.options.get("mask") is None:
        return None
    scores = np.where(s.visible, scores_of(s), s.bias - s.softcap)
    exponentials, total, _ = exponentials_of(np.where(s.open, scores, -np.inf), s.sinks)
    return divided(exponentials, total)


def divided_by_columns(failing: Failing) -> np.ndarray | None:
    """Sums of rows, as a row themselves."""
    s = failing.steps
    exponentials, total, _ = exponentials_of(failing.forward.scores, s.sinks)
    return divided(exponentials, total.swapaxes(-1, -2)) if total.shape[-2] == exponentials.shape[-1] else None


def maximum_of_columns(failing: Failing) -> np.ndarray | None:
    """Each column less its own maximum; sums over rows. Of one query it leaves equal weights, as much else does."""
    scores = failing.forward.scores
    return None if scores.shape[-2] < 2 else weights_less(failing, highest(scores.swapaxes(-1, -2)).swapaxes(-1, -2))


def maximum_as_row(failing: Failing) -> np.ndarray | None:
    """Maxima of rows, as a row themselves."""
    maximum = highest(failing.forward.scores).swapaxes(-1, -2)
    return weights_less(failing, maximum) if maximum.shape[-1] == failing.forward.scores.shape[-1] else None


def weights_less(failing: Failing, subtracted: np.ndarray) -> np.ndarray | None:
    if failing.steps.sinks is not None:
        return None
    exponentials = np.exp(failing.forward.scores - subtracted)
    return divided(exponentials, exponentials.sum(axis=-1, keepdims=True))


def with_number_added(number: float) -> Callable[[Failing], np.ndarray | None]:
    """To the sum of the exponentials; sums that are all the same tell it from no factor."""

    def weights(failing: Failing) -> np.ndarray | None:
        exponentials, total, _ = exponentials_of(failing.forward.scores, failing.steps.sinks)
        return exponentials / (total + number) if np.ptp(total) > 0.01 * np.max(total, initial=0) else None

    return weights


def unshifted_sink(in_maximum: bool) -> Callable[[Failing], np.ndarray | None]:
    """in_maximum: whether the maximum that the scores lack is that of the sink, too."""

    def weights(failing: Failing) -> np.ndarray | None:
        sinks = failing.steps.sinks
        if sinks is None:
            return None
        exponentials, _, _ = exponentials_of(failing.forward.scores, sinks if in_maximum else None)
        return divided(exponentials, exponentials.sum(axis=-1, keepdims=True) + np.exp(sinks))

    return weights


def renormalised(failing: Failing) -> np.ndarray | None:
    keep = failing.case.options.get("dropout_keep")
    if keep is None:
        return None
    kept = np.where(keep, failing.forward.weights, 0)
    return divided(kept, kept.sum(axis=-1, keepdims=True)) * (1 - failing.case.options["dropout_rate"])


def not_rescaled(failing: Failing) -> np.ndarray | None:
    if failing.case.options.get("dropout_keep") is None:
        return None
    return failing.forward.weights * (1 - failing.case.options["dropout_rate"])


def floored(floor: float, least: float) -> Callable[[Failing], np.ndarray | None]:
    """The maximum is kept from falling below a number, and the sum above another; float32 loses what is too small."""

    def weights(failing: Failing) -> np.ndarray | None:
        s, scores = failing.steps, failing.forward.scores
        if s.sinks is not None:
            return None
        best = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        if not np.any(np.isfinite(best) & (best < floor)):
            return None
        smallest = np.finfo(compute_dtype_name(failing.case.dtype)).smallest_subnormal
        exponentials = np.exp(scores - np.maximum(highest(scores), floor))
        exponentials = np.where(exponentials < smallest, 0, exponentials)
        return divided(exponentials, np.maximum(exponentials.sum(axis=-1, keepdims=True), least))

    return weights


def capped_before_the_scale(products: Any, bias: Any, cap: Any, scale: float) -> Any:
    return (scale * cap(products / scale) if scale else products) + bias


def clipped(products: Any, bias: Any, cap: Any, scale: float) -> Any:
    return np.clip(products, cap(-np.inf), cap(np.inf)) + bias


def clipped_at(limit: float) -> Change:
    return lambda failing: failing.steps.changed(score=lambda p, bias, cap, s: np.clip(cap(p) + bias, -limit, limit))


def bias_of_first(axis: int) -> Change:
    def changed(failing: Failing) -> Steps | None:
        s = failing.steps
        if s.bias.shape[axis] < 2:
            return None
        bias, allowed = (np.take(a, [0], axis) for a in (s.bias, s.open))
        return s.changed(bias=bias, open=allowed)

    return changed


def bias_read(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def changed(failing: Failing) -> Steps | None:
        s = failing.steps
        return s.changed(bias=change(s.bias), open=change(s.open)) if "bias" in failing.case.inputs else None

    return changed


def mask_as_numbers(failing: Failing) -> Steps | None:
    s = failing.steps
    if failing.case.options.get("mask") is None:
        return None
    return s.changed(bias=s.bias + s.visible, visible=np.ones_like(s.visible))


FORMULA_CHANGES: dict[str, Change] = {
    "the mask is added to the scores as 0 and 1": mask_as_numbers,
    "the softcap comes before the scale": scored("softcap", capped_before_the_scale),
    "scores are clipped at the softcap, without tanh": scored("softcap", clipped),
    "the softcap is not multiplied back in": scored("softcap", lambda p, b, cap, s: cap(p) / cap(np.inf) + b),
    "scores are not divided by the softcap": scored("softcap", lambda p, b, cap, s: cap(p * cap(np.inf)) + b),
    **{f"scores are clipped to lie between -c and c ({c:g})": clipped_at(c) for c in (5, 10, 20, 30, 50, 80, 88, 100)},
    "bias is added before the softcap": scored("bias", lambda p, b, cap, s: cap(p + b)),
    "bias is added twice": scored("bias", lambda p, b, cap, s: cap(p) + 2 * b),
    "bias is subtracted": scored("bias", lambda p, b, cap, s: cap(p) - b),
    "bias is multiplied by the scale": scored("bias", lambda p, b, cap, s: cap(p) + b * s),
    "bias is divided by the scale": scored("bias", lambda p, b, cap, s: cap(p) + b / s if s else cap(p)),
    "the bias is transposed": bias_read(transposed),
    "the bias is read column by column": bias_read(by_columns),
    "each row has the bias of the first row": bias_of_first(2),
    "bias of batch element 0 is used for all": bias_of_first(0),
    "bias of head 0 is used for all heads": bias_of_first(1),
}


OVER_AXES = (
    ("the softmax runs over queries, not keys", (-2,), False),
    ("the softmax divides by sums over queries, not keys", (-2,), True),
    ("the softmax runs over heads, not keys", (1,), False),
    ("the softmax runs over the batch, not keys", (0,), False),
    ("the softmax runs over all pairs of queries and keys", (-2, -1), False),
)
WEIGHINGS = [
    *(
        weighed(name, softmax_over(*axes, among_keys=among_keys, by_zero=by_zero))
        for name, axes, among_keys in OVER_AXES
        for by_zero in (False, True)
    ),
    weighed("forbidden keys stay in the softmax's denominator with a score of 0", counted_as_zero),
    weighed("the mask is applied after the softmax, which counts forbidden keys", masked_afterwards),
    weighed("the softcap comes after the mask: forbidden scores are -softcap", capped_afterwards),
    *(weighed(f"forbidden weights are a number, not 0 ({n:g})", by_a_number(n)) for n in (-1e9, -1e4, -1e5, -65504.0)),
    weighed("weights in column j are divided by the sum of row j", divided_by_columns),
    weighed("the sink's column stands last, and the first one is cut off", beside_cut(False)),
    weighed("the sink's column stands first, and the last one is cut off", beside_cut(True)),
    weighed("the sum of the exponentials is not set back from row to row", by_sums_so_far),
    weighed("the maximum is taken over queries, not keys", maximum_of_columns),
    weighed("the maximum of row j is subtracted from column j", maximum_as_row),
    *(
        weighed(f"a number is added to the sum of the exponentials ({n:g})", with_number_added(n))
        for n in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1.0)
    ),
    *(
        weighed("the sink's exponential is taken without subtracting the maximum", unshifted_sink(in_maximum))
        for in_maximum in (True, False)
    ),
    weighed("weights are renormalised after dropout", renormalised),
    weighed("weights that dropout keeps are not divided by 1 - rate", not_rescaled),
    *(
        weighed(
            f"rows of low scores fade to 0: their maximum is kept from falling below a number ({floor:g})",
            floored(floor, least),
        )
        for floor in (-1e4, -1e3, -1e5, 0.0)
        for least in (1e-6, 1e-30)
    ),
]


# --- numbers for forbidden scores -------------------------------------------------------------------------------------


def put(value: float) -> Mistake:
    """A number for the scores that the mask forbids; named where they have weight in a row that allows something."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        s = failing.steps
        scores = failing.forward.scores
        best = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        seen = ~s.visible & np.isfinite(best) & (np.exp(value - np.maximum(best, value)) > 0)
        if not seen.any():
            return None
        # What rows that allow nothing give is another matter: the mean, or zeros put in afterwards.
        rows = np.any(s.visible, axis=-1, keepdims=True)
        return whatever_the_scores(failing, np.where(s.visible, scores, value), rows)

    return Mistake(f"forbidden scores are a number, not -inf ({value:g})", answers)


def added(value: float) -> Mistake:
    """A number that is added to forbidden scores, once for each mask that forbids them."""

    def answers(failing: Failing) -> tuple[Arrays, Bounds] | None:
        s = failing.steps
        times = times_forbidden(failing)
        if not times.any():
            return None
        scores = np.where(s.open, scores_of(s) + times * value, -np.inf)
        digits = np.finfo(compute_dtype_name(failing.case.dtype)).eps
        free = ~times.astype(bool).all(axis=-1, keepdims=True)
        lost = np.where(free, 0, np.minimum(4 * digits * abs(value), 1))
        found = whatever_the_scores(failing, scores, np.ones_like(free), lost)
        # Where every number that is so large leaves nothing of the scores, this one cannot be told from others.
        nothing = np.where(free, np.where(s.visible, scores, -np.inf), np.where(s.open, 0, -np.inf))
        even = whatever_the_scores(failing, nothing, np.ones_like(free))
        told = found and even and told_from(even[0]["output"], found[0]["output"], found[1]["output"])
        return found if told else None

    return Mistake(f"a number is added to forbidden scores, which are not -inf ({value:g})", answers)


def times_forbidden(failing: Failing) -> np.ndarray:
    """By how many of the masks that are combined a pair is forbidden."""
    case, mask = failing.case, failing.case.options.get("mask")
    if not isinstance(mask, And):
        return (~failing.steps.visible).astype(int)
    left, right = (replace(failing, case=with_options(case, mask=side)) for side in (mask.left, mask.right))
    return times_forbidden(left) + times_forbidden(right)


def whatever_the_scores(
    failing: Failing, scores: np.ndarray, rows: np.ndarray, lost: Any = 0.0
) -> tuple[Arrays, Bounds] | None:
    """The result in these rows, with a bound for weights of a few roundings each, and a sum over K.

    lost: what the scores of each row are off by.
    """
    s = failing.steps
    exponentials, total, _ = exponentials_of(scores, s.sinks)
    weights = divided(exponentials, total)
    if s.operation == "attention_logsumexp":
        return None
    output = (weights * s.factor) @ s.value if s.operation == "attention" else weights
    return {"output": output}, {"output": of_few_roundings(failing, output, rows) + np.expm1(2 * lost) * size_of(s)}


def of_few_roundings(failing: Failing, output: np.ndarray, rows: np.ndarray, total: Any = 1.0) -> np.ndarray:
    roundings = (failing.steps.key.shape[2] + 8) * 2.0 ** -PRECISION[failing.case.dtype][0]
    return np.broadcast_to(np.where(rows, roundings * size_of(failing.steps) * total, np.inf), output.shape)


def size_of(s: Steps) -> float:
    """Of what is weighed."""
    return float(np.max(np.abs(s.value), initial=0)) if s.operation == "attention" else 1.0


def by_one_logsumexp(failing: Failing) -> tuple[Arrays, Bounds] | None:
    """Weights exp(score - log-sum-exp), where float32 does not hold the latter to the 11 digits of float16.

    Where it holds nothing of the logarithm these are the weights that nobody divided.
    """
    s, case = failing.steps, failing.case
    if case.operation not in ("attention", "attention_weights") or case.dtype == "float64":
        return None
    if s.sinks is not None or case.options.get("dropout_keep") is not None:
        return None
    scores = failing.forward.scores.astype(np.float32).astype(float)
    best = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), -LARGEST["float32"])
    logarithm = np.log(np.exp(scores - best).sum(axis=-1, keepdims=True))
    held = (best + logarithm).astype(np.float32).astype(float)
    lost = np.abs((held - best) - logarithm) > 2.0 ** -PRECISION["float16"][0]
    weights = np.exp(scores - np.where(np.isfinite(held), held, 0))
    if not (lost.any() and np.isfinite(weights).all()):
        return None
    output = weights @ s.value if s.operation == "attention" else weights
    limits = of_few_roundings(failing, output, np.isfinite(held), weights.sum(axis=-1, keepdims=True))
    return {"output": output}, {"output": limits}


# --- exponentials that overflow ---------------------------------------------------------------------------------------


def overflowing(name: str, subtracted: Callable[[Failing], np.ndarray | None]) -> Mistake:
    """NaN or infinity in all rows of which a score lies so far above what is subtracted that no exponential is held.

    In those of which all scores lie so far below it that all exponentials are 0, NaN or 0. Arithmetic in float64 holds
    more exponentials than that of the inputs.
    """

    def results(failing: Failing) -> dict[str, Any] | None:
        low = None if failing.case.operation == "attention_logsumexp" else subtracted(failing)
        if low is None:
            return None
        sinks, scores = failing.steps.sinks, failing.forward.scores
        scores = scores if sinks is None else np.maximum(scores, sinks)
        best = (scores - low).max(axis=-1, keepdims=True, initial=-np.inf)
        for dtype in dict.fromkeys((compute_dtype_name(failing.case.dtype), "float64")):
            output = lost(failing, best, np.finfo(dtype))
            if output is not None:
                return {"output": output}
        return None

    return resulting(name, results)


def lost(failing: Failing, best: np.ndarray, form: np.finfo[Any]) -> np.ndarray | None:
    """The output of arithmetic that holds no exponential out of its range; None where the answer is not like it.

    best: the largest exponent [B, H, Q, 1] of each row. What a mistake leaves open is as it is in the answer: rows of
    exponentials that are nearly lost, and those of which only a sum may be too large.
    """
    got, right, keys = failing.answer("output"), failing.right("output"), failing.forward.scores.shape[-1]
    of_sum = max(keys, 1) * np.abs(failing.steps.value).max(initial=1)
    beyond = best > np.log(form.max)
    above = ~beyond & (best > np.log(form.max) - np.log(of_sum)) & ~np.isfinite(got)
    below = np.isfinite(best) & (best < np.log(form.tiny))
    zero = (best > -LARGEST.get(failing.case.dtype, np.inf)) & (best < np.log(form.smallest_subnormal) - 1)
    if np.isfinite(got)[np.broadcast_to(beyond, got.shape)].any():
        return None
    if (np.isfinite(got) & (got != 0))[np.broadcast_to(zero, got.shape)].any():
        return None
    return np.where(beyond | above | below, got, right) if (beyond | zero).any() else None


def lowest(failing: Failing) -> np.ndarray | None:
    """The smallest score, where the scale is below 0."""
    scores = failing.forward.scores
    lowest = np.where(failing.steps.allowed, scores, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    return np.where(np.isfinite(lowest), lowest, 0) if failing.steps.scale < 0 else None


def of_keys(failing: Failing) -> np.ndarray | None:
    return None if failing.steps.sinks is None else highest(failing.forward.scores)


def of_all_keys(failing: Failing) -> np.ndarray | None:
    return None if failing.steps.visible.all() else highest(scores_of(failing.steps))


def at_least_0(failing: Failing) -> np.ndarray:
    return np.maximum(highest(failing.forward.scores), 0)


def rooted(failing: Failing) -> dict[str, Any] | None:
    """NaN in every row that has a key."""
    s = failing.steps
    if s.scale >= 0 or s.operation == "attention_logsumexp":
        return None
    return {"output": np.where(s.allowed.any(axis=-1, keepdims=True), np.nan, failing.right("output"))}


UNSUBTRACTED = "the maximum is not subtracted: exponentials overflow or are all 0"
TOO_HIGH = "the maximum begins too high, as at 0: all exponentials of scores far below are 0"
"""The same where all scores lie far below 0; of scores far above, the second is right."""
BEFORE_SCALE = "the maximum is taken before a scale below 0: exponentials overflow"
ROOT = "the root of a scale below 0 is taken: it is NaN"
OVERFLOWS = [
    overflowing(BEFORE_SCALE, lowest),
    overflowing("the maximum leaves out the sink: exponentials overflow", of_keys),
    overflowing("the maximum is taken over forbidden keys, too: all exponentials of a row may be 0", of_all_keys),
    overflowing(UNSUBTRACTED, lambda failing: np.zeros((1, 1, 1, 1))),
    overflowing(TOO_HIGH, at_least_0),
]


BY_INFINITY = weighed("the mask is multiplied by infinity: 0 * inf is NaN where it allows a key", times_infinity)
ROOTED = resulting(ROOT, rooted)
NUMBERS = (-1e4, -1e5, -1e9, -1e20, -65504.0, -LARGEST["float32"])
FILLS = [*map(put, (*NUMBERS, 0.0)), *map(added, NUMBERS)]
"""Before the others: where all that a row allows scores lower, only forbidden keys count, as with a mask inverted."""

UNDIVIDED = Mistake(
    "weights are not divided by their sum, or as exp(score - log-sum-exp), which float32 loses beside such scores",
    by_one_logsumexp,
)

CHANGES = MASK_CHANGES | SCORE_CHANGES | FORMULA_CHANGES
STEP_MISTAKES = [
    *(stepped(name, change) for name, change in CHANGES.items()),
    *WEIGHINGS,
    *OVERFLOWS,
    ROOTED,
    *RESHAPED,
    BY_INFINITY,
]
