"""Known losses of precision: factors rounded, a scale or a variance slightly off, narrower arithmetic all through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import Precision
from conformance.bounds.operations import BOUNDS, finished
from conformance.bounds.relaxed import RELAXED
from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case
from conformance.cases.facts import operation_facts
from conformance.checks.comparison import PRECISION
from conformance.diagnosis.extents import in_row
from conformance.diagnosis.matching import SEVERAL, Bounds, Failing, Mistake, agrees, loose, resulting, worst_row
from conformance.diagnosis.norms import rows_of
from conformance.diagnosis.row_sums import to_dtype
from conformance.diagnosis.steps import Steps, added_up, divided, exponentials_of, forward, pulled_back, result
from conformance.oracle.reference import oracle
from specification.dtypes import HALF, compute_dtype_name

FORMATS = {"TF32": 11, "float16": 11, "bfloat16": 8}
"""Binary digits."""
AT_MOST = "perhaps: the errors are no larger than"
"""How a hint begins: it says what the errors may come from, and not what they come from."""
NARROWEST = 2.0**-24
"""The smallest step of float16."""

ROUNDINGS = {
    "weights or their sum rounded to float16": {"weights": "float16"},
    "weights or their sum rounded to bfloat16": {"weights": "bfloat16"},
    "products in TF32": {"products": "tf32", "weights": "float16"},
    "products in float16": {"products": "float16", "weights": "float16"},
    "products in bfloat16": {"products": "bfloat16", "weights": "bfloat16"},
}
"""From the smallest loss to the largest."""
BY_CHANCE = 6.0
"""Standard deviations, 1 / sqrt(n), of the correlation of n unrelated pairs of numbers."""
FEW = 6
"""Numbers below which any errors resemble any others."""
SOME = 8
"""Units of a format by which products and weights that are rounded to it may be off, in all."""
FAR = 2.0
"""Bounds by which no result that conforms may be off for a loss to have been made."""
LIKELY = 2.0**-6
"""The part of a loss's bound that errors of this loss reach, somewhere; smaller ones come from something else."""


def rounded(array: np.ndarray, form: str) -> np.ndarray:
    """To the nearest number of the format, in float64."""
    if form == "bfloat16":
        return array.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float)
    mantissa, exponent = np.frexp(array.astype(float))
    result = np.ldexp(np.rint(np.ldexp(mantissa, FORMATS[form])), exponent - FORMATS[form])
    return np.rint(result / NARROWEST) * NARROWEST if form == "float16" else result


def factors_rounded(form: str) -> Mistake:
    """Query and key, which are then multiplied exactly."""

    def results(failing: Failing) -> dict[str, Any] | None:
        if failing.case.dtype not in ("float32", "float64"):
            return None
        s = failing.steps
        return {"output": forward(s.changed(query=rounded(s.query, form), key=rounded(s.key, form))).output}

    return resulting(f"query and key are rounded to {form} before they are multiplied", results)


def bias_rounded(form: str) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        bias = failing.case.inputs.get("bias")
        if bias is None or bias.dtype.itemsize < 4:
            return None
        return {"output": forward(failing.steps.changed(bias=rounded(failing.steps.bias, form))).output}

    return resulting(f"bias is rounded to {form}", results)


def weights_rounded(form: str) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        if failing.case.operation != "attention":
            return None
        return {"output": result(failing.steps, rounded(failing.forward.weights, form), np.zeros(()))}

    name = f"weights are rounded to {form} before they are multiplied with values"
    return resulting(name, results, strict=True)


def sum_rounded(form: str) -> Mistake:
    """The exponentials' sum."""

    def results(failing: Failing) -> dict[str, Any] | None:
        s = failing.steps
        if s.operation == "attention_logsumexp":
            return None
        exponentials, total, _ = exponentials_of(failing.forward.scores, s.sinks)
        return {"output": result(s, divided(exponentials, rounded(total, form)), np.zeros(()))}

    return resulting(f"the sum of the exponentials is rounded to {form}", results, strict=True)


MISTAKES = [
    *map(factors_rounded, FORMATS),
    *map(bias_rounded, ("float16", "bfloat16")),
    *map(weights_rounded, ("float16", "bfloat16")),
    *map(sum_rounded, ("float16", "bfloat16")),
]


# --- a scale ----------------------------------------------------------------------------------------------------------

FACTORS = {" (ln 2)": np.log(2), " (log2(e))": 1 / np.log(2), " (sqrt(2))": 2**0.5, " (1 / sqrt(2))": 0.5**0.5}
GRID = np.concatenate([np.geomspace(2.0**-10, 2.0**10, 161), -np.geomspace(2.0**-4, 2.0**4, 33)])


def scale_off(failing: Failing) -> Iterator[str]:
    """Another scale: by how much the answers say themselves."""
    if failing.case.operation != "attention":
        return
    s = failing.steps
    if not s.value.size or s.softcap is not None or not s.scale:
        return
    row = worst_row(failing)
    products = (s.key[row[:2]] @ s.query[row]) * s.scale
    bias, factor = (in_row(np.broadcast_to(a, s.visible.shape), row) for a in (s.bias, np.asarray(s.factor)))
    allowed, value = in_row(s.allowed, row), s.value[row[:2]]
    sinks = None if s.sinks is None else s.sinks[row[1], 0, 0]
    got = failing.answer("output")[row]

    def at(factors: np.ndarray) -> np.ndarray:
        scores = np.where(allowed, factors[:, None] * products + bias, -np.inf)
        exponentials, total, _ = exponentials_of(scores, sinks)
        return (divided(exponentials, total) * factor) @ value

    distances = np.sum((at(GRID[:: 1 if products.size < 2**14 else 4]) - got) ** 2, axis=-1)
    start = GRID[:: 1 if products.size < 2**14 else 4][np.argsort(distances)[:3]]
    for guess in (*start, 1.0):
        x = float(guess)
        for _ in range(12):
            here, ahead = at(np.array([x, x * (1 + 1e-6)]))
            slope = (ahead - here) / (x * 1e-6)
            size = float(np.sum(slope**2))
            step = float(np.sum((got - here) * slope)) / size if size else 0.0
            x += float(np.clip(step, -abs(x) / 2, abs(x) / 2))
        if not np.isfinite(x) or abs(x - 1) < 1e-7:
            continue
        other = forward(s.changed(scale=s.scale * x)).output
        limits = failing.bounds["output"] if abs(x - 1) < 0.1 else loose(failing, "output", other)
        if agrees(failing, "output", other, limits) and not agrees(failing, "output", failing.forward.output, limits):
            known = known_factor(failing, x)
            if np.count_nonzero(failing.off("output")) >= 3 or known in FACTORS:  # one number has some scale always
                yield f"the scale is {x:.6g} times what it must be{known}"
            return


def whole(width: float, other_than: int) -> bool:
    return round(width) != other_than and abs(width - round(width)) < 0.02


def known_factor(failing: Failing, x: float) -> str:
    for name, number in FACTORS.items():
        if abs(x / number - 1) < 1e-3:
            return name
    D = failing.case.inputs["query"].shape[-1]
    width = D / x**2
    if failing.case.options.get("scale") is None and x > 0 and width < 2**14 and whole(width, D):
        return f" (as for a width of {round(width)})"
    return ""


# --- a variance -------------------------------------------------------------------------------------------------------


def variance_off(failing: Failing) -> Iterator[str]:
    """Every row of a layer norm has some variance, and it is off by no more than E[x^2] - E[x]^2 can be.

    Of n terms that are added one after the other, E[x^2] is off by at most n u E[x^2], and rounding the squares and the
    difference makes it a few more. What variance a row had is told by the one factor that all its elements have. Only
    rows whose mean exceeds their deviation lose digits in this way.
    """
    case = failing.case
    if case.operation != "layer_norm" or "output" not in failing.wrong:
        return
    r = rows_of(case)
    expected, square = r.square + r.eps, np.mean(r.x**2, axis=-1, keepdims=True)
    off = failing.off("output").reshape(r.x.shape).any(axis=-1, keepdims=True)
    if np.any(off & (square < 2 * r.square)):
        return
    rows = r.deviation * r.weight
    with np.errstate(all="ignore"):
        size = np.sum(rows**2, axis=-1, keepdims=True)
        factor = np.sum((failing.answer("output").reshape(rows.shape) - r.bias) * rows, axis=-1, keepdims=True) / size
        away = np.where(size == 0, 0.0, np.abs(factor**-2 - expected))
        exact = (np.where(size == 0, 0.0, rows * factor) + r.bias).reshape(case.inputs["x"].shape)
        growth = np.fmax(1, factor * np.sqrt(expected))
        bounds = failing.bounds["output"] * growth.reshape(
            *case.inputs["x"].shape[: -case.inputs["weight"].ndim], *(1,) * case.inputs["weight"].ndim
        )
    unit = 2.0 ** -PRECISION[compute_dtype_name(case.dtype)][0]
    small = np.all(away <= (r.weight.size + 4) * unit * (square + expected))
    if small and agrees(failing, "output", exact, bounds):
        yield f"{AT_MOST} a variance of E[x^2] - E[x]^2 would make them"


# --- narrower arithmetic ----------------------------------------------------------------------------------------------


def excused(failing: Failing) -> Iterator[str]:
    """The known losses of precision that can have made these errors, the smallest first; none makes only zeros."""
    if not any(failing.answer(name)[failing.off(name)].any() for name in failing.wrong):
        return
    for name, bounds in losses(failing):
        if may_explain(failing, bounds, least_part(failing.case, name)):
            yield f"{AT_MOST} {name} would make them"


def losses(failing: Failing) -> Iterator[tuple[str, Bounds]]:
    """Names and bounds, from the smallest loss to the largest: float32 for float64, sums over heads, 16 bits."""
    case = failing.case
    attends = operation_facts(case.operation).masked
    if case.dtype == "float64":
        through = ", all through or in the softmax," if attends and "output" in failing.wrong else ""
        yield f"float32 arithmetic{through}", bound(replace(case, dtype="float32"))
    if case.operation == "cross_entropy":
        yield "a log-sum-exp kept as one number", RELAXED[case.operation](case)
        if case.dtype in HALF:
            yield all_in(case.dtype), in_its_dtype(case)
    if case.operation == "attention" and (shared := inputs_of_several_heads(case)):
        yield f"gradients added up over heads in {case.dtype}", added_up_narrowly(case, shared)
    if not attends or undivided(failing):
        return
    for name, rounding in roundings_of(case.dtype).items():
        if not rounding:
            yield name, in_its_dtype(case)
        elif resembles(failing, rounding):
            yield name, bound(replace(case, rounding=rounding))


def roundings_of(dtype: str) -> dict[str, dict[str, str]]:
    """Those of 16-bit inputs to their own dtype first, then arithmetic in it; TF32 holds all their digits."""
    if dtype not in HALF:
        return ROUNDINGS
    own = f"weights or their sum rounded to {dtype}"
    others = {name: rounding for name, rounding in ROUNDINGS.items() if not name.endswith((dtype, "TF32"))}
    return {own: ROUNDINGS[own], all_in(dtype): {}} | others


def in_its_dtype(case: Case) -> Bounds:
    """Bounds of arithmetic that does not widen the inputs."""
    p = Precision.of(case.dtype)
    narrow = replace(p, inner=p.output, inner_tiny=p.output_tiny)
    with np.errstate(all="ignore"):
        found = BOUNDS[case.operation](case, narrow)
        return {name: np.abs(finished(name, approx, case, p)) for name, approx in found.items()}


def resembles(failing: Failing, rounding: dict[str, str]) -> bool:
    """Whether the output's errors go along with those that rounding in one of some ways makes.

    They have about the same size, and are correlated by more than chance would have it: roundings that come in another
    order differ in most places. The last rounding, to 16 bits, is no error, and larger than most. Few numbers go along
    with anything: in 16 bits their size decides, in wider dtypes nothing does.
    """
    if failing.case.operation != "attention":
        return small(failing, rounding)
    if "output" not in failing.wrong:
        return any(only_in_wrong(failing, *steps) for steps in roundings(failing, rounding))
    dtype = failing.case.dtype

    def stored(output: np.ndarray) -> np.ndarray:
        return rounded(output, dtype) if dtype in FORMATS else output

    errors = (failing.answer("output") - stored(failing.right("output"))).ravel()
    made_right = stored(failing.forward.output)
    few = errors.size < FEW
    if few and dtype not in FORMATS:
        return False
    for steps, weights in roundings(failing, rounding):
        made = (stored(result(steps, weights, failing.forward.logsumexp)) - made_right).ravel()
        size = np.sqrt(np.sum(errors**2) * np.sum(made**2))
        alike = few or float(errors @ made) > min(0.75, BY_CHANCE / np.sqrt(errors.size)) * size
        if size and alike and 0.25 < np.sqrt(np.sum(errors**2) / np.sum(made**2)) < 4:
            return True
    return False


def only_in_wrong(failing: Failing, steps: Steps, weights: np.ndarray) -> bool:
    """Whether other steps may give some wrong gradient other digits, and none to results that conform.

    A few elements of what conforms may be rounded otherwise than it is, by chance.
    """
    made = {"output": result(steps, weights, failing.forward.logsumexp)}
    if failing.case.cotangents:
        made |= added_up(pulled_back(steps, failing.bar, weights), failing.case)
    changed = False
    for name in made.keys() & failing.got.keys():
        narrow, right = (to_dtype(a, str(failing.got[name].dtype)) for a in (made[name], failing.right(name)))
        if name in failing.wrong:
            changed |= bool(np.any(narrow != right))
            continue
        with np.errstate(all="ignore"):
            off = np.abs(narrow - failing.right(name)) / failing.bounds[name]
        if np.count_nonzero(off > 1) >= SEVERAL or np.any(off > FAR):
            return False
    return changed


def small(failing: Failing, rounding: dict[str, str]) -> bool:
    """Whether no wrong result is off by more than some units of the format, of the largest number in it."""
    digits = FORMATS["bfloat16" if "bfloat16" in rounding.values() else "float16"]
    return all(
        np.max(np.abs(failing.answer(name) - failing.right(name)), initial=0)
        <= SOME * 2.0**-digits * np.max(np.abs(failing.right(name)), initial=0)
        for name in failing.wrong
    )


def roundings(failing: Failing, rounding: dict[str, str]) -> Iterator[tuple[Steps, np.ndarray]]:
    """Steps and weights of the ways to round."""
    s, f = failing.steps, failing.forward
    form = {"tf32": "TF32"}.get(rounding.get("products", ""), rounding.get("products", ""))
    if not form:
        exponentials, total, _ = exponentials_of(f.scores, s.sinks)
        form = rounding["weights"]
        narrow = rounded(exponentials, form)
        by_sink = total - exponentials.sum(axis=-1, keepdims=True)
        yield s, rounded(f.weights, form)
        yield s, divided(exponentials, rounded(total, form))
        yield s, divided(narrow, total)
        yield s, divided(narrow, narrow.sum(axis=-1, keepdims=True) + by_sink)
        return
    for to in (rounded, cut_off):
        factors = s.changed(query=to(s.query, form), key=to(s.key, form))
        value = to(s.value, form)
        weights = forward(factors).weights
        yield factors, weights
        yield factors.changed(value=value), weights
        yield s.changed(value=value), f.weights
        exponentials, total, _ = exponentials_of(to(f.scores, form), s.sinks)
        yield s, to(divided(to(exponentials, form), to(total, form)), form)


def cut_off(array: np.ndarray, form: str) -> np.ndarray:
    """Towards zero."""
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.trunc(np.ldexp(mantissa, FORMATS[form])), exponent - FORMATS[form])


def undivided(failing: Failing) -> bool:
    """Whether the output is wrong in a row of one key, whose weight is 1 and no matter of rounding."""
    if failing.case.operation != "attention" or "output" not in failing.wrong or failing.steps.sinks is not None:
        return False
    one = failing.steps.allowed.sum(axis=-1, keepdims=True) == 1
    return bool(np.any(failing.off("output") & one))


def may_explain(failing: Failing, bounds: Bounds, least: float) -> bool:
    """Whether all errors lie within the bounds, and the largest of every wrong result is at least this part of them."""
    for name in failing.truth:
        if name not in failing.got or not agrees(failing, name, failing.right(name), bounds[name]):
            return False
        if name in failing.wrong:
            with np.errstate(all="ignore"):
                part = np.abs(failing.answer(name) - failing.right(name)) / bounds[name]
            if not np.nanmax(np.where(failing.off(name), part, 0)) >= least:
                return False
    return True


def least_part(case: Case, name: str) -> float:
    """Between float32 and float64 lies so much that no smaller loss is known.

    Of attention all in 16 bits the bound grows with the number of keys, and much faster than its errors: there it is
    the right answer in float32 that tells.
    """
    if case.operation == "attention" and name == all_in(case.dtype):
        return 0.0
    return 2.0**-20 if case.dtype == "float64" else LIKELY


def all_in(dtype: str) -> str:
    return f"{dtype} arithmetic"


# --- sums over heads that are rounded at every step -------------------------------------------------------------------


def inputs_of_several_heads(case: Case) -> dict[str, np.ndarray]:
    """16-bit inputs that several heads or batch elements read, written out for each of them.

    Who writes them out before widening them to float32 has automatic differentiation add up their gradients in 16 bits.
    """
    if not case.cotangents or case.dtype not in HALF or not case.cotangents["output"].size:
        return {}
    batch, heads = case.inputs["query"].shape[:2]
    wide = {n: np.repeat(a, heads // a.shape[1], 1) for n, a in case.inputs.items() if n in ("key", "value") and a.size}
    if "bias" in case.inputs and case.inputs["bias"].dtype == case.inputs["query"].dtype:
        bias = case.inputs["bias"]
        wide["bias"] = np.broadcast_to(bias, (batch, heads, *bias.shape[-2:]))
    return {name: array for name, array in wide.items() if array.shape != case.inputs[name].shape}


def added_up_narrowly(case: Case, shared: dict[str, np.ndarray]) -> Bounds:
    """Of n terms g, each rounded and within its own bound b, the sum is off by sum(b) + (n - 1) u sum(|g| + b)."""
    spread = replace(case, inputs=case.inputs | shared)
    bounds, terms, own = bound(case), oracle(spread), bound(spread)
    unit = 2.0 ** -PRECISION[case.dtype][0]
    for name in shared.keys() - {*case.constants}:
        of, shape = gradient_name(name), case.inputs[name].shape
        count = shared[name].size // max(case.inputs[name].size, 1)
        error = summed_to(own[of], shape)
        bounds[of] = error + (count - 1) * unit * (summed_to(np.abs(terms[of].high), shape) + error)
    return bounds


def summed_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Over batch and heads, to the shape of what was written out: neighbouring heads belong together."""
    batch, heads, *rest = array.shape
    of, groups = (1, 1, *shape)[-4:-2]
    return array.reshape(of, batch // of, groups, heads // groups, *rest).sum((1, 3)).reshape(shape)
