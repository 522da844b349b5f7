"""Rotary embeddings gone wrong (POS-3, POS-4): pairs, positions, frequencies and their scalings, too few digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import TANH
from conformance.bounds.rotary import SINGLE, call_of, pair_columns
from conformance.bounds.rotary import Call as Asked
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import add_rounding_bounds, answer_with, change_options, round_to
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import Prediction, Topic, add_bounds, name_entries
from reference_numpy.rotary import rotary_table
from specification.frequencies import attention_factor, exact_frequencies
from specification.rotary import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling

if TYPE_CHECKING:
    from specification.rotary import Scaling

BOTH = ("rotary_embedding", "rotary_frequencies")
ROWS = (4096, 1024, 2048, 8192, 16384, 32768, 65536, 131072)
"""Of tables of sines and cosines."""
AXES = ("heads", "batch elements", "positions")
EDGES = {"high": np.floor, "low": np.ceil}
"""Of Llama 3's ramp, where a step may be."""
RAMPS: dict[str, type] = {"YaRN": YarnScaling, "Llama 3": Llama3Scaling}
INPUTS = "the inputs' dtype"
Tables = tuple[np.ndarray, np.ndarray]
"""Sines and cosines, [.., T, W / 2]."""


turning, mistake = Topic("rotary", "POS-3", BOTH[:1]).entry, Topic("rotary", "POS-4", BOTH).entry
"""A mistake of the embedding alone, and one of its frequencies too."""


# --- the rotation, by other sines and cosines -------------------------------------------------------------------------


def exact_tables(case: Case, positions: np.ndarray | None = None) -> Tables:
    """Sines and cosines of the angles, times the attention factor, of the case's positions or of others."""
    asked, positions = call_of(case), case.inputs["positions"] if positions is None else positions
    return rotary_table(positions, asked.width, float(asked.base), asked.scaling, asked.length, "float64")


def tables_of(case: Case, positions: np.ndarray, frequencies: np.ndarray) -> Tables:
    """The same from positions [T] or [B, T] and frequencies, in float64."""
    angles = positions[..., None, :, None] * frequencies
    size = attention_factor(call_of(case).scaling)
    return np.sin(angles) * size, np.cos(angles) * size


def turn(
    case: Case, firsts: Tables, seconds: Tables | None = None, *, minus: float = -1.0, narrow: str = ""
) -> Results:
    """first * cos - second * sin and second * cos + first * sin, and the gradient of what is computed.

    firsts, seconds: the tables by which first and second columns are computed, the same unless given. minus: the sign
    of the difference. narrow: a dtype to which products are rounded.
    """
    (sine, cosine), (other_sine, other_cosine) = firsts, seconds or firsts
    columns = pair_columns(2 * sine.shape[-1], case.options.get("pairing") or "halves")

    def mix(x: np.ndarray, diagonal: Tables, others: Tables) -> np.ndarray:
        found = x.astype(float)
        pair = [found[..., column] for column in columns]
        products = [pair[0] * diagonal[0], pair[1] * others[0], pair[1] * diagonal[1], pair[0] * others[1]]
        if narrow:
            products = [round_to(product, narrow) for product in products]
        found[..., columns[0]], found[..., columns[1]] = products[0] + products[1], products[2] + products[3]
        return found

    found = {"output": mix(case.inputs["x"], (cosine, other_cosine), (minus * sine, other_sine))}
    if case.cotangents:
        cotangent = case.cotangents["output"]
        found[gradient_name("x")] = mix(cotangent, (cosine, other_cosine), (other_sine, minus * sine))
    return found


def turn_by(tables: Callable[[np.ndarray, np.ndarray], Tables], **others: Any) -> Callable[[Call], Results]:
    """Turn by `tables(sine, cosine)`."""
    return lambda call: turn(call.case, tables(*exact_tables(call.case)), **others)


def reorder_columns(case: Case, before: np.ndarray, after: np.ndarray) -> Results:
    """Turn columns `before` of x, and return columns `after` of that."""
    inputs = case.inputs | {"x": case.inputs["x"][..., before]}
    cotangents = {name: array[..., np.argsort(after)] for name, array in case.cotangents.items()}
    found = turn(replace(case, inputs=inputs, cotangents=cotangents), exact_tables(case))
    orders = {"output": after, gradient_name("x"): np.argsort(before)}
    return {name: array[..., orders[name]] for name, array in found.items()}


def split_columns(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First columns, second columns, and those that stay."""
    width, column = call_of(case).width, np.arange(case.inputs["x"].shape[-1])
    first, second = pair_columns(width, case.options.get("pairing") or "halves")
    return column[first], column[second], column[width:]


def reorder_output(call: Call, exchange: bool) -> Results:
    """Exchange the two results of each pair, or return them in the order of the other pairing."""
    first, second, rest = split_columns(call.case)
    if exchange:
        after = np.r_[second, first, rest][np.argsort(np.r_[first, second, rest])]
    elif call.case.options.get("pairing") == "interleaved":
        after = np.r_[first, second, rest]
    else:
        after = np.r_[np.c_[first, second].ravel(), rest]
    return reorder_columns(call.case, np.arange(after.size), after)


def turn_last_columns(call: Call) -> Results | None:
    width, column = call_of(call.case).width, np.arange(call.case.inputs["x"].shape[-1])
    before = np.roll(column, width)
    return reorder_columns(call.case, before, np.argsort(before)) if width < column.size else None


def spread_frequencies(call: Call) -> Results:
    """Tables [f0, f0, f1, f1, ...] for pairs of halves, [f0, f1, ..., f0, f1, ...] for neighbours."""
    (sine, cosine), (first, second, _) = exact_tables(call.case), split_columns(call.case)
    pairs = sine.shape[-1]
    of_column = np.arange(2 * pairs) % pairs
    if (call.case.options.get("pairing") or "halves") == "halves":
        of_column = np.arange(2 * pairs) // 2
    one, other = ((sine[..., of_column[c]], cosine[..., of_column[c]]) for c in (first, second))
    return turn(call.case, one, other)


def spoil_rest(call: Call, becomes: str) -> Results | None:
    """Columns past the rotary width are 0, or pass through a dtype."""
    width, found = call_of(call.case).width, {name: array.copy() for name, array in call.right.items()}
    for array in found.values():
        rest = array[..., width:]
        array[..., width:] = np.zeros_like(rest) if becomes == "0" else round_to(rest, becomes.split()[-1])
    return None if width == call.case.inputs["x"].shape[-1] else found


PAIRS = (
    turning("pairing", "the pairing is {pairing}", answer_with(), pairing=("interleaved", "halves")),
    turning("other-direction", "pairs turn the other way", turn_by(lambda sine, cosine: (-sine, cosine))),
    turning("sine-for-cosine", "sine and cosine are exchanged", turn_by(lambda sine, cosine: (cosine, sine))),
    turning("minus-forgotten", "second * sin is added, not subtracted", turn_by(lambda *tables: tables, minus=1.0)),
    turning("output-exchanged", "the two results of a pair are exchanged", partial(reorder_output, exchange=True)),
    turning("output-in-other-order", "the columns return in the order of the other pairing",
            partial(reorder_output, exchange=False)),
    turning("table-of-other-pairing", "the columns of sine and cosine are those of the other pairing",
            spread_frequencies),
    turning("last-columns-turn", "the last columns turn, not the first", turn_last_columns),
    turning("all-columns-turn", "all columns turn, whatever the rotary width", answer_with(rotary_width=None)),
    turning("other-columns-spoiled", "columns past the rotary width become {becomes}", spoil_rest,
            becomes=("0", "rounded to bfloat16")),
)  # fmt: skip

# --- positions --------------------------------------------------------------------------------------------------------


def read_positions(change: Callable[..., np.ndarray]) -> Callable[..., Case | None]:
    """Turn by `change(positions, **values)`; the length of the sequence remains."""

    def answer(call: Call, **values: object) -> Case | None:
        positions = call.case.inputs["positions"].astype(np.int64)
        other = np.asarray(change(positions, **values))
        if other.size == 0 or other.min() < 0 or other.max() > 2**30 or np.array_equal(other, positions):
            return None
        changed = replace(call.case, inputs=call.case.inputs | {"positions": other})
        return change_options(changed, length=call_of(call.case).length) or changed

    return answer


def take_heads_for_positions(call: Call) -> list[Results]:
    """A head's number is its position, or picks it: x is read as [B, T, H, D]."""
    heads, positions = np.arange(call.case.inputs["x"].shape[1]), call.case.inputs["positions"]
    if not positions.size:
        return []
    picked = (heads, positions[..., heads % positions.shape[-1]])
    tables = [exact_tables(call.case, np.asarray(one)) for one in picked]
    return [turn(call.case, (np.swapaxes(s, -2, -3), np.swapaxes(c, -2, -3))) for s, c in tables]


POSITIONS = (
    turning("positions-shifted", "positions are off by {by}", read_positions(lambda p, by: p + by), by=(1, -1)),
    turning("positions-from-0", "positions count from 0, whatever is given",
            read_positions(lambda p: np.broadcast_to(np.arange(p.shape[-1]), p.shape))),
    turning("positions-from-first", "positions count on from the first one",
            read_positions(lambda p: p[..., :1] + np.arange(p.shape[-1]))),
    turning("positions-of-first-element", "all batch elements have the positions of the first",
            read_positions(lambda p: np.broadcast_to(p[:1], p.shape) if p.ndim == 2 else p)),
    turning("heads-for-positions", "heads are taken for positions", take_heads_for_positions),
    turning("table-ends", "positions past {rows} - 1 are taken for {rows} - 1",
            read_positions(lambda p, rows: np.minimum(p, rows - 1)), rows=ROWS),
    turning("table-starts-anew", "positions are taken modulo {rows}", read_positions(lambda p, rows: p % rows),
            rows=ROWS),
)  # fmt: skip

# --- frequencies ------------------------------------------------------------------------------------------------------


def change_frequencies(formula: Callable[..., np.ndarray | None]) -> Callable[..., Any]:
    """Turn by the frequencies `formula(asked, plain, **values)`; None where there is no place for it.

    plain: base^(-2p / W). The other case divides each of these by a number of its own, as LongRoPE does.
    """

    def answer(call: Call, **values: object) -> Case | Prediction | None:
        asked = call_of(call.case)
        plain = asked.base ** (-2 * np.arange(asked.width // 2) / asked.width)
        found = formula(asked, plain, **values)
        if found is None:
            return None
        divisors, size = tuple((plain / found).tolist()), attention_factor(asked.scaling)
        scaling = LongRopeScaling(
            short_factors=divisors, long_factors=divisors, original_length=2, attention_factor=size
        )
        other = replace(call.case, options=call.case.options | {"scaling": scaling})
        if call.case.operation == "rotary_embedding":
            return other
        return Prediction({"frequencies": found}, {"frequencies": bound(other)["frequencies"]})  # the factor is right

    return answer


def shift_exponent(asked: Asked, plain: np.ndarray, exponent: str) -> Any:
    pair, width = np.arange(len(plain)), asked.width
    shares = {
        "2(p + 1) / W": 2 * (pair + 1) / width,
        "2p / (W - 2)": 2 * pair / max(width - 2, 1),
        "p / W": pair / width,
    }
    return None if asked.scaling is not None else asked.base ** -shares[exponent]


def use_head_width(call: Call) -> list[Any]:
    """base^(-2p / D), the partner p + D / 2 of column p, or both."""
    case, width, column = call.case, call_of(call.case).width, np.arange(call.case.inputs["x"].shape[-1])
    if width == column.size:
        return []
    base, cases = call_of(case).base ** (width / column.size), [case]
    if case.options.get("scaling") is None and base > 1:
        cases = [replace(case, options=case.options | {"base": base}), case]
    if case.options.get("pairing") == "interleaved":
        return cases[:-1]
    order = np.concatenate([column[: width // 2], column[column.size // 2 :][: width // 2], column])
    order = order[np.sort(np.unique(order, return_index=True)[1])]
    return [*cases[:-1], *(reorder_columns(other, order, np.argsort(order)) for other in cases)]


FREQUENCIES = (
    mistake("base", "the base is {base}", answer_with(), rule="POS-3",
            base=(500000.0, 10000.0, 1000000.0, 160000.0, 100000.0)),
    mistake("base-cut-to-integer", "the base is cut to a whole number",
            lambda call: change_options(call.case, base=float(int(call_of(call.case).base))), rule="POS-3"),
    mistake("exponent", "the frequencies are base^(-{exponent})", change_frequencies(shift_exponent), rule="POS-3",
            exponent=("2(p + 1) / W", "2p / (W - 2)", "p / W")),
    turning("partial-by-head-width", "a partial rotation takes the head's width for its own", use_head_width),
)  # fmt: skip

# --- scalings ---------------------------------------------------------------------------------------------------------


def kept_share(asked: Asked, plain: np.ndarray, last: float | None = None, turn: float = 2 * np.pi) -> Any:
    """How much of each frequency YaRN and Llama 3 keep. last: where YaRN's ramp ends at the latest."""
    width, base, scaling = asked.width, asked.base, cast(Any, asked.scaling)
    if isinstance(scaling, Llama3Scaling):
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        return np.clip((scaling.original_length * plain / turn - low) / (high - low), 0, 1)
    start, end = (
        width * math.log(scaling.original_length / (beta * 2 * np.pi)) / (2 * math.log(base))
        for beta in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, width - 1 if last is None else last)
    return 1 - np.clip((np.arange(len(plain)) - start) / (end - start or 0.001), 0, 1)


def mix_frequencies(kept: Callable[..., Any]) -> Callable[..., Any]:
    """A kind of scaling keeps a share `kept(asked, plain, **values)` of each frequency, and divides the rest."""

    def formula(asked: Asked, plain: np.ndarray, scaling: str, **values: object) -> Any:
        if not isinstance(asked.scaling, RAMPS[scaling]):
            return None
        share, factor = kept(asked, plain, **values), cast(Any, asked.scaling).factor
        return share * plain + (1 - share) * plain / factor

    return change_frequencies(formula)


def change_scaling(kind: Any, fields: Callable[..., dict[str, Any]]) -> Callable[..., Case | None]:
    """Scalings of these kinds have `fields(scaling, **values)`."""

    def answer(call: Call, **values: object) -> Case | None:
        scaling = call.case.options.get("scaling")
        if not isinstance(scaling, kind):
            return None
        return change_options(call.case, scaling=replace(scaling, **fields(scaling, **values)))

    return answer


def change_factor(scaling: Scaling, factor: str) -> dict[str, float | None]:
    size = attention_factor(scaling)
    return {"attention_factor": {"1": 1.0, "its square": size**2, "the one that is the default": None}[factor]}


def use_long_list_at_length(call: Call) -> Case | None:
    """The long list at the original length already."""
    asked = call_of(call.case)
    if not isinstance(asked.scaling, LongRopeScaling) or asked.length != asked.scaling.original_length:
        return None
    return change_options(call.case, length=asked.length + 1)


def grow_always(call: Call) -> Case | None:
    """The base of a dynamic scaling grows by its factor, whatever the length."""
    width, base, scaling, _ = call_of(call.case)
    if not isinstance(scaling, DynamicScaling):
        return None
    return change_options(call.case, scaling=None, base=base * scaling.factor ** (width / (width - 2)))


def take_axis_for_length(call: Call, axis: str) -> list[Case]:
    """The size of an axis of x is the sequence's length, or what comes after the first position."""
    asked, x = call_of(call.case), call.case.inputs["x"]
    if not isinstance(asked.scaling, DynamicScaling) or not x.size:
        return []
    size = x.shape[{"heads": 1, "batch elements": 0, "positions": 2}[axis]]
    first = int(call.case.inputs["positions"].min())
    return [replace(call.case, options=call.case.options | {"length": length}) for length in (size + first, size)]


SCALINGS = (
    mistake("scaling-ignored", "the scaling is ignored", answer_with(scaling=None)),
    mistake("attention-factor", "the factor of sine and cosine is {factor}",
            change_scaling((YarnScaling, LongRopeScaling), change_factor),
            factor=("1", "its square", "the one that is the default")),
    mistake("frequencies-multiplied", "frequencies are multiplied by the linear factor, not divided",
            change_frequencies(lambda asked, plain: plain * asked.scaling.factor
                              if isinstance(asked.scaling, LinearScaling) else None)),
    mistake("ramp-inverted", "the ramp of {scaling} is inverted: it keeps slow pairs, not fast ones",
            mix_frequencies(lambda asked, plain: 1 - kept_share(asked, plain)), scaling=tuple(RAMPS)),
    mistake("all-frequencies-divided", "{scaling} has no ramp: all frequencies are divided",
            mix_frequencies(lambda asked, plain: 0 * plain), scaling=tuple(RAMPS)),
    mistake("ramp-is-a-step", "{scaling} has no ramp: what is below the {edge} factor is divided",
            mix_frequencies(lambda asked, plain, edge: EDGES[edge](kept_share(asked, plain))),
            scaling=("Llama 3",), edge=tuple(EDGES)),
    mistake("wavelength-without-2-pi", "wavelengths of {scaling} are 1 / frequency, without 2 pi",
            mix_frequencies(lambda asked, plain: kept_share(asked, plain, turn=1.0)), scaling=("Llama 3",)),
    mistake("ramp-ends-at-last-pair", "the ramp of {scaling} ends at W / 2 - 1 at the latest, not at W - 1",
            mix_frequencies(lambda asked, plain: kept_share(asked, plain, last=plain.size - 1)), scaling=("YaRN",)),
    mistake("ramp-ends-rounded", "the ends of YaRN's ramp have truncate={truncate}",
            change_scaling(YarnScaling, lambda scaling, truncate: {"truncate": truncate}), truncate=(False, True)),
    mistake("usual-ramp", "YaRN's ramp is that of 32 and 1 turns, whatever is given",
            change_scaling(YarnScaling, lambda scaling: {"beta_fast": 32.0, "beta_slow": 1.0})),
    mistake("one-list-of-factors", "LongRoPE's {used} factors are used at any length",
            change_scaling(LongRopeScaling, lambda scaling, used: dict.fromkeys(
               ("short_factors", "long_factors"), getattr(scaling, f"{used}_factors"))), used=("short", "long")),
    mistake("long-factors-too-early", "LongRoPE's long factors are used at the original length already",
            use_long_list_at_length),
    mistake("base-always-grows", "the dynamic base grows by the factor, whatever the length", grow_always),
    turning("axis-for-length", "the dynamic base takes the number of {axis} for the length", take_axis_for_length,
            rule="POS-4", axis=AXES),
)  # fmt: skip

# --- digits -----------------------------------------------------------------------------------------------------------


def exact_frequencies_of(asked: Asked) -> np.ndarray:
    return np.array([float(frequency) for frequency in exact_frequencies(*asked)])


def narrow_frequencies(asked: Asked, dtype: str) -> list[np.ndarray]:
    """The frequencies rounded to a dtype; in float32 also as powers with the exponent 2p / W of that dtype.

    PyTorch and JAX round a float32 power correctly almost always.
    """
    exact = exact_frequencies_of(asked)
    found = [round_to(exact, dtype)]
    if dtype == "float32":
        share = 2 * np.arange(asked.width // 2) / asked.width
        power, scaled = asked.base ** round_to(share, dtype), exact * asked.base**share
        found += [round_to(one * scaled, dtype) for one in (1 / round_to(power, dtype), 1 / power)]
    return found


def round_quantity(call: Call, quantity: str, dtype: str) -> list[Any]:
    """Frequencies, positions or angles in a dtype; angles rounded once, or products of what is rounded."""
    case, asked = call.case, call_of(call.case)
    dtype = case.dtype if dtype == INPUTS else dtype
    if dtype == "float64" or (dtype == "int16" and quantity != "positions"):
        return []
    narrow = narrow_frequencies(asked, dtype)
    if case.operation == "rotary_frequencies":
        return [{"frequencies": one} for one in narrow] if quantity == "frequencies" else []
    whole = case.inputs["positions"].astype(np.int64)
    positions = round_to(whole, dtype)
    if not np.isfinite(positions).all() or (quantity == "positions" and np.array_equal(positions, whole)):
        return []
    if quantity == "positions":
        sine, cosine = exact_tables(case, np.abs(positions).astype(np.int64))
        return [turn(case, (sine * np.sign(positions)[..., None, :, None], cosine))]
    if quantity == "frequencies":
        return [turn(case, tables_of(case, whole, one)) for one in narrow]
    angles = [round_to(whole[..., None, :, None] * exact_frequencies_of(asked), dtype)]
    angles += [round_to(positions[..., None, :, None] * one, dtype) for one in narrow]
    turned = [turn(case, tables_of(case, np.ones(1), one)) for one in angles if np.isfinite(one).all()]
    predictions = [add_bounds(call, results) for results in turned]
    if case.dtype == "float64":  # sines and cosines are float32 as the angles are, off by TANH units and a rounding
        largest = max(np.abs(a).max(initial=0) for a in (case.inputs["x"], *case.cotangents.values()))
        extra = 2 * (TANH + 1) * SINGLE * attention_factor(asked.scaling) * largest
        return [p._replace(bounds={name: limit + extra for name, limit in p.bounds.items()}) for p in predictions]
    return predictions


def round_sines(call: Call, dtype: str, products: bool) -> list[Prediction]:
    """Sines and cosines in a dtype, and the products with them; of exact angles, and of angles in float32."""
    case, positions = call.case, call.case.inputs["positions"].astype(float)
    dtype = case.dtype if dtype == INPUTS else dtype
    single = round_to(positions[..., None, :, None] * narrow_frequencies(call_of(case), "float32")[0], "float32")
    tables = [
        tuple(round_to(a, dtype) for a in one) for one in (exact_tables(case), tables_of(case, np.ones(1), single))
    ]
    return [add_rounding_bounds(call, turn(case, one, narrow=dtype if products else "")) for one in tables]  # type: ignore


DIGITS = (
    mistake("digits", "{quantity} are rounded to {dtype}", round_quantity, rule="POS-3",
            quantity=("angles", "frequencies", "positions"), dtype=("bfloat16", "float16", "float32", "int16", INPUTS)),
    turning("digits-of-sines", "sine and cosine are rounded to {dtype} (products, too: {products})", round_sines,
            dtype=("bfloat16", "float16", INPUTS), products=(False, True)),
    mistake("frequency-for-every-column", "there is a frequency for every column, not for every pair",
            lambda call: [{"frequencies": copies(call.right["frequencies"], 2)} for copies in (np.tile, np.repeat)],
            operations=BOTH[1:]),
)  # fmt: skip

MISTAKES = (*PAIRS, *POSITIONS, *FREQUENCIES, *SCALINGS, *DIGITS)
NAMED = name_entries(MISTAKES)
PLANTED = (
    *(one.choose() for one in MISTAKES),
    NAMED["pairing"].choose(pairing="halves"),
    NAMED["other-direction"].limit(Condition(passes="backward")),
    NAMED["other-columns-spoiled"].choose(becomes="rounded to bfloat16"),
    *(NAMED["table-ends"].choose(rows=rows) for rows in (32768, 131072)),
    NAMED["table-starts-anew"].choose(rows=8192),
    *(NAMED["exponent"].choose(exponent=exponent) for exponent in ("2p / (W - 2)", "p / W")),
    *(NAMED["attention-factor"].choose(factor=factor) for factor in ("its square", "the one that is the default")),
    NAMED["one-list-of-factors"].choose(used="long"),
    *(NAMED["digits"].choose(quantity=quantity, dtype=dtype) for quantity in ("angles", "frequencies", "positions")
      for dtype in ("bfloat16", "float16", "int16" if quantity == "positions" else "float32")
      if (quantity, dtype) != ("angles", "bfloat16")),  # the first
    NAMED["digits-of-sines"].choose(products=True),
    *(NAMED[name].choose().plant_in(*BOTH[::-1], rule="POS-4") for name in (
        "base", "scaling-ignored", "attention-factor", "frequencies-multiplied", "ramp-is-a-step", "ramp-ends-rounded",
        "ramp-ends-at-last-pair", "long-factors-too-early", "base-always-grows")),
    NAMED["digits"].choose(quantity="frequencies", dtype="float32").plant_in(*BOTH[::-1], rule="POS-4"),
)  # fmt: skip
