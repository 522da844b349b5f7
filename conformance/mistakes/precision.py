"""Too few digits inside attention (ATT-9): what is rounded on the way, undeclared, or kept narrower than it must be.

Numbers are really rounded. Before that, an implementation's may be off as far as the bounds of attention derive. So
some lie so near the middle of two numbers that they may be rounded either way: that is a prediction's own bound.
Gradients are predicted to be right but for weights and products in the narrow format: few backward passes round as the
forward pass does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from conformance.bounds import bound
from conformance.bounds.arithmetic import EXP, FORMATS, LOG, TANH, Approx, Precision, exact, matmul
from conformance.bounds.attention import SCALE
from conformance.cases.arguments import expected_dtype, is_gradient
from conformance.mistakes.attention_steps import row_maximum
from conformance.mistakes.call import Call
from conformance.mistakes.changes import UNITS, add_in_order, answer_in_float64, round_number, round_stage, round_to
from conformance.mistakes.condition import Condition
from conformance.mistakes.mistake import ATTENTION, Mistake, Prediction, Topic, name_entries

Array = np.ndarray
Stage = Callable[[Approx], Approx]
TOPIC = Topic("precision", "ATT-9", rounds="arithmetic")
MOST = 2**22
"""Numbers that are added up one after the other, at most."""


# --- attention in stages ----------------------------------------------------------------------------------------------


def keep(x: Approx) -> Approx:
    return x


class Stages(NamedTuple):
    """What happens to each quantity on the way.

    Attributes:
        factors: query and key. products: before the scale. scaled: before the bias. scores: after it.
        shift: to scores less their maximum. exponentials: before they are added up if `own_sum`, else after it.
        sum: from the sum of the exponentials and themselves. inside: the format of the softmax's arithmetic.
        add: the values, weighed.
    """

    factors: Stage = keep
    products: Stage = keep
    scaled: Stage = keep
    scores: Stage = keep
    shift: Callable[[Array], Array] = np.asarray
    exponentials: Stage = keep
    own_sum: bool = False
    sum: Callable[[Approx, Approx], Approx] = lambda total, exponentials: total
    weights: Stage = keep
    values: Stage = keep
    add: Callable[[Approx, Approx], Approx] | None = None
    inside: str = ""


def attend(call: Call, stages: Stages) -> dict[str, Approx]:
    """The results of attention in these stages, before they are rounded to their dtype."""
    s, p = call.steps, Precision.make(call.case.dtype)
    query, key = stages.factors(exact(s.query)), stages.factors(exact(s.keys))
    products = stages.products(matmul(query, Approx(*(a.swapaxes(-1, -2) for a in key)), p, SCALE))
    scaled = Approx(s.cap(products.value * s.scale), products.error * abs(s.scale))
    scaled = stages.scaled(scaled._replace(error=scaled.error + (TANH + 2) * p.inner * (s.softcap or 0)))
    scores = stages.scores(Approx(scaled.value + s.bias, scaled.error + 2 * p.inner * np.abs(s.bias)))
    masked = np.where(s.allowed_pairs, scores.value, -np.inf)
    maximum = row_maximum(masked, s.sinks)
    shifted = stages.shift(masked - maximum)
    p = Precision.make(stages.inside) if stages.inside else p
    exact_shift = 0 if stages.inside else 3 * p.inner
    off = np.expm1(scores.error + exact_shift * np.abs(np.where(s.allowed_pairs, shifted, 0)) + EXP * p.inner)
    exponentials = np.where(s.allowed_pairs, np.exp(shifted), 0)
    computed = Approx(exponentials, exponentials * off)
    held = stages.exponentials(computed)
    added = held if stages.own_sum else computed
    added_up = np.sum(added.value, axis=-1, keepdims=True) + (0 if s.sinks is None else np.exp(s.sinks - maximum))
    error = np.sum(added.error, axis=-1, keepdims=True) + (p.gamma(s.sizes[3]) + EXP * p.inner) * added_up
    summed = stages.sum(Approx(added_up, error), held)
    total, error = summed.value, summed.error
    safe = np.where(total == 0, 1, total)
    shares = held.value / safe
    weights = stages.weights(Approx(shares, held.error / safe + shares * (error / safe + 2 * p.inner)))
    logarithm = maximum + np.log(total)
    lost = error / safe + (LOG + 4) * p.inner * (1 + np.abs(np.where(total > 0, logarithm, 0)))
    logsumexp = Approx(logarithm[..., 0], lost[..., 0])
    if s.operation == "attention_logsumexp":
        return {"output": logsumexp}
    filled = Approx(s.fill_empty_rows(weights.value) * s.factor, weights.error * s.factor)
    if s.operation == "attention_weights":
        return {"output": filled}
    add = stages.add or partial(matmul, p=Precision.make(call.case.dtype), roundings=1)
    output = add(filled, stages.values(exact(s.values)))
    return {"output": output} | ({"logsumexp": logsumexp} if s.with_logsumexp else {})


def predict(call: Call, stages: Stages, form: str, store: Callable[..., Approx] = round_stage) -> list[Prediction]:
    """Results in their dtype, and gradients that are right but for weights and products in this format.

    Gradients may also leave the range of 16 bits on the way: then the results alone are predicted.
    """
    case = call.case
    stored = {name: store(x, expected_dtype(name, case)) for name, x in attend(call, stages).items()}
    results, bounds = {n: x.value for n, x in stored.items()}, {n: x.error for n, x in stored.items()}
    alone = Prediction(dict(results), dict(bounds))
    if case.cotangents:
        declared = {"rounding": {"weights": form, "products": form}} if form in FORMATS else {"dtype": form}
        narrow = bound(replace(case, **declared))
        for name in call.right.keys() & {n for n in narrow if is_gradient(n)}:
            results[name], bounds[name] = call.right[name], narrow[name]
    return [Prediction(results, bounds), alone]


def entry(
    name: str,
    says: str,
    narrow: Callable[..., Stages],
    operations: tuple[str, ...] = ATTENTION[:2],
    rounds: str = TOPIC.rounds,
    **parameters: Any,
) -> Mistake:
    """Attention in the stages that `narrow(round, form, **values)` gives; `round` rounds a stage to the format."""

    def change(call: Call, dtype: str, **values: object) -> list[Prediction]:
        form = call.case.dtype if dtype == "the inputs' dtype" else dtype
        is_narrower = UNITS[form] > Precision.make(call.case.dtype).inner
        if "alibi_slopes" in call.case.inputs or not is_narrower:
            return []
        stages = narrow(partial(round_stage, form=form), form, **values)
        size = call.steps.visible.size * (1 if call.steps.value is None else call.steps.value.shape[-1])
        return [] if stages.add is not None and not 0 < size <= MOST else predict(call, stages, form)

    made = TOPIC.entry(name, says, change, operations=operations, needs=("finite",), **parameters)
    return replace(made, rounds=rounds)


# --- the mistakes -----------------------------------------------------------------------------------------------------


def round_weights(narrow: Stage, form: str, when: str) -> Stages:
    if when == "after the division":
        return Stages(weights=narrow)
    return Stages(exponentials=narrow, own_sum="their own sum" in when)


def round_sum(narrow: Stage, form: str, how: str) -> Stages:
    if how == "rounded to":
        return Stages(sum=lambda total, exponentials: narrow(total))
    return Stages(sum=lambda total, exponentials: add_in_order(exponentials, form, -1))


def round_factors(narrow: Stage, form: str, of: str, how: str) -> Stages:
    """Some matrix units cut off."""
    stage = partial(round_stage, form=form, cut=True) if how == "cut off" else narrow
    first, second = (stage if of != other else keep for other in ("weights and values", "query and key"))
    return Stages(factors=first, weights=second, values=second)


def round_scores(narrow: Stage, form: str, when: str) -> Stages:
    if when == "after the bias":
        return Stages(scores=narrow)
    return Stages(scaled=narrow) if when == "before the bias" else Stages(products=narrow)


def round_every_step(narrow: Stage, form: str, softmax: str) -> Stages:
    found = Stages(products=narrow, scaled=narrow, scores=narrow, weights=narrow)
    if softmax == "its result":
        return found
    shift = partial(round_number, form=form)
    return found._replace(shift=shift, exponentials=narrow, sum=lambda total, exponentials: narrow(total))


def add_values_in_order(narrow: Stage, form: str) -> Stages:
    """Each product and each sum is rounded, one key after the other."""

    def add(weights: Approx, values: Approx) -> Approx:
        value = values.value[:, :, None]
        products = Approx(weights.value[..., None] * value, weights.error[..., None] * np.abs(value))
        return Approx(*(array[..., 0, :] for array in add_in_order(narrow(products), form, -2)))

    return Stages(add=add)


def compute_in_float32(call: Call) -> Prediction | None:
    case = call.case
    if case.dtype != "float64":
        return None
    narrow = {name: round_to(a, "float32") if a.dtype == float else a for name, a in case.inputs.items()}
    overflows = any((np.isinf(narrow[name]) & np.isfinite(array)).any() for name, array in case.inputs.items())
    inside = replace(case, inputs=narrow, special=case.special or overflows)  # an overflow has no result in balls
    return Prediction(answer_in_float64(inside), bound(replace(case, dtype="float32")))


def store_otherwise(call: Call, how: str) -> list[Prediction]:
    case = call.case
    cut = how == "cut off to bfloat16, towards zero"
    if "alibi_slopes" in case.inputs or case.dtype != ("bfloat16" if cut else "float16"):
        return []
    store = partial(round_stage, cut=True) if cut else lambda x, dtype: round_stage(round_stage(x, "bfloat16"), dtype)
    return predict(call, Stages(), "bfloat16", store)


HALVES = ("the inputs' dtype", "float16", "bfloat16")
MISTAKES = (
    entry("weights-rounded", "weights are rounded to {dtype} {when}, before they are multiplied with values",
          round_weights, rounds="weights", dtype=HALVES,
          when=("after the division", "before the division", "before the division by their own sum")),
    entry("sum-rounded", "the sum of the exponentials is {how} {dtype}", round_sum, ATTENTION, dtype=HALVES,
          how=("rounded to", "added up, one after the other, in")),
    entry("factors-rounded", "{of} are {how} to {dtype} before they are multiplied", round_factors, rounds="products",
          dtype=("tf32", "bfloat16", "float16"), of=("query and key", "weights and values", "all factors"),
          how=("rounded", "cut off")),
    entry("scores-rounded", "scores are rounded to {dtype} {when}", round_scores, ATTENTION, rounds="scores",
          dtype=HALVES[::-1], when=("after the bias", "before the bias", "before the scale")),
    entry("every-step-rounded", "scores are rounded to {dtype} at every step, and of the softmax {softmax}",
          round_every_step, rounds="scores", dtype=HALVES, softmax=("its result", "every step")),
    entry("values-added-in-16-bits", "weighted values are added up in {dtype}", add_values_in_order, ATTENTION[:1],
          dtype=("float16", "bfloat16")),
    entry("softmax-in-float32", "the softmax of float64 inputs is taken in {dtype}",
          lambda narrow, form: Stages(scores=narrow, shift=partial(round_number, form=form), inside=form), ATTENTION,
          dtype=("float32",)),
    TOPIC.entry("float64-in-float32", "float64 inputs are computed with in float32", compute_in_float32),
    TOPIC.entry("result-rounded", "the result is {how}", store_otherwise, operations=ATTENTION[:1], needs=("finite",),
                how=("cut off to bfloat16, towards zero", "rounded to bfloat16 on its way to float16")),
)  # fmt: skip
OWN = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(OWN["weights-rounded"].choose(dtype=dtype) for dtype in HALVES[1:]),
    OWN["weights-rounded"].choose().limit(Condition("D", whole=16)),
    OWN["sum-rounded"].choose(dtype="bfloat16"),
    OWN["factors-rounded"].choose(of="weights and values"),
    OWN["factors-rounded"].choose(dtype="bfloat16"),
    OWN["result-rounded"].choose(how="rounded to bfloat16 on its way to float16"),
)
